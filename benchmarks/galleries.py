"""Retrieval from a gallery larger than memory should hold: exact by streaming from disk, approximate by an index.

    python benchmarks/galleries.py                        2,000,000 x 512 (4 GB below --folder), 1,000 queries
    python benchmarks/galleries.py --rows 200000

Rows are unit vectors around class centres, ten to a class, written in files of 250,000. Reported: seconds (the
load is recorded), peak resident memory above the start, and for the index what share of the true ten nearest neighbours
it finds, and how often the nearest other row it finds is of the query's class. The page cache counts as nobody's
memory: where it holds the files, streaming does not touch the disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _machine import hardware, keep, parser
from safetensors.numpy import save_file

from probmetric.retrieval import Gallery, GalleryIndex, nearest_neighbours, retrieval_metrics

ROWS_PER_FILE = 250_000
PER_CLASS = 10
SPREAD = 2.1


def main() -> None:
    """Write a gallery, measure, print and perhaps keep the report."""
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        # In a process of its own, whose memory is not counted.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            files = pool.submit(write_gallery, Path(folder), options.rows, options.dim).result()
        gallery = Gallery(files)
        chosen = np.sort(np.random.default_rng(1).choice(options.rows, options.queries, replace=False))
        queries, labels = gallery.rows(chosen), gallery.labels[chosen]
        results = measure(gallery, queries, labels, chosen, options.probes)
    report = {"shape": [options.rows, options.dim], "queries": options.queries, **hardware(), "results": results}
    keep(report, options.output)


def parse() -> argparse.Namespace:
    """Command line."""
    found = parser(__doc__)
    found.add_argument("--rows", type=int, default=2_000_000)
    found.add_argument("--dim", type=int, default=512)
    found.add_argument("--queries", type=int, default=1_000)
    found.add_argument("--probes", type=int, nargs="+", default=[32, 128, 512])
    found.add_argument("--folder", help="where the files go (default: the system's temporary folder)")
    return found.parse_args()


def write_gallery(folder: Path, rows: int, dim: int) -> list[Path]:
    """Files of unit rows (rows, dim) in classes of ten."""
    generator = np.random.default_rng(0)
    files = []
    for first in range(0, rows, ROWS_PER_FILE):
        count = min(ROWS_PER_FILE, rows - first)
        labels = (first + np.arange(count)) // PER_CLASS
        centres = generator.standard_normal((labels[-1] - labels[0] + 1, dim), dtype=np.float32)
        mean = generator.standard_normal((count, dim), dtype=np.float32) * SPREAD
        mean += centres[labels - labels[0]]
        mean /= np.linalg.norm(mean, axis=1, keepdims=True)
        files.append(folder / f"{first:09d}.safetensors")
        save_file({"mean": mean, "label": labels.astype(np.int64)}, files[-1])
    return files


def measure(
    gallery: Gallery, queries: np.ndarray, labels: np.ndarray, chosen: np.ndarray, probes: list[int]
) -> list[dict[str, Any]]:
    """One entry per contender."""
    results: list[dict[str, Any]] = []
    size = gallery.shape[0] * gallery.shape[1] * 4

    def timed(name: str, work: Callable[[], Any], **extra: Any) -> Any:
        before, start = peak_mb(), time.perf_counter()
        found = work()
        seconds = time.perf_counter() - start
        results.append({"what": name, "seconds": round(seconds, 2), "peak_mb": round(peak_mb() - before), **extra})
        return found

    timed("read every block", lambda: sum(len(rows) for _, rows in gallery.blocks()))
    results[-1]["mb_per_s"] = round(size / 1e6 / results[-1]["seconds"])
    exact = timed("exact neighbours, k = 10", lambda: nearest_neighbours(queries, gallery, k=10))
    metrics = timed(
        "every retrieval metric", lambda: retrieval_metrics(queries, labels, gallery=gallery, query_index=chosen)
    )
    results[-1]["recall_at_1"] = metrics["recall_at_1"]
    index = timed("build the index", lambda: GalleryIndex.build(gallery))
    for count in probes:
        index.probes = count
        found = timed(f"index, {count} probes", lambda: nearest_neighbours(queries, index, k=10))
        shared = [len(np.intersect1d(a, b)) for a, b in zip(found.indices, exact.indices, strict=True)]
        results[-1]["true_neighbours_found"] = round(float(np.mean(shared)) / 10, 4)
        nearest = [next(row for row in rows if row != own) for rows, own in zip(found.indices, chosen, strict=True)]
        results[-1]["recall_at_1"] = round(float(np.mean(gallery.labels[nearest] == labels)), 4)
    return results


def peak_mb() -> float:
    """Largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
