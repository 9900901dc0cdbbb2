"""Search of a gallery larger than memory should hold: exact, by blocks of rows that are mapped from disk.

    python benchmarks/galleries.py                        2,000,000 x 512 (4 GB below --folder), 1,000 queries
    python benchmarks/galleries.py --rows 200000

Rows are unit vectors around class centres, ten to a class, written in files of 250,000. Reported: seconds (the
load is recorded), peak resident memory above the start, and how often the nearest other row is of the query's class.
The page cache counts as nobody's memory: where it holds the files, nothing is read from the disk.
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

from probmetric.retrieval import match_record, search

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
        parts = [np.load(file, mmap_mode="r") for file in files]
        results = measure(parts, np.sort(np.random.default_rng(1).choice(options.rows, options.queries, replace=False)))
    report = {"shape": [options.rows, options.dim], "queries": options.queries, **hardware(), "results": results}
    keep(report, options.output)


def parse() -> argparse.Namespace:
    """Command line."""
    found = parser(__doc__)
    found.add_argument("--rows", type=int, default=2_000_000)
    found.add_argument("--dim", type=int, default=512)
    found.add_argument("--queries", type=int, default=1_000)
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
        files.append(folder / f"{first:09d}.npy")
        np.save(files[-1], mean)
    return files


def measure(parts: list[np.ndarray], chosen: np.ndarray) -> list[dict[str, Any]]:
    """One entry per contender; `chosen` (Q,) are the rows that ask."""
    results: list[dict[str, Any]] = []
    rows = sum(map(len, parts))
    labels = np.arange(rows) // PER_CLASS
    queries = np.concatenate(
        [
            part[chosen[(chosen >= first) & (chosen < first + len(part))] - first]
            for first, part in zip(range(0, rows, ROWS_PER_FILE), parts, strict=True)
        ]
    )

    def timed(name: str, work: Callable[[], Any]) -> Any:
        before, start = peak_mb(), time.perf_counter()
        found = work()
        seconds = time.perf_counter() - start
        results.append({"what": name, "seconds": round(seconds, 2), "peak_mb": round(peak_mb() - before)})
        return found

    timed(
        "read every row",
        lambda: sum(
            float(part[start : start + 16_384].sum()) for part in parts for start in range(0, len(part), 16_384)
        ),
    )
    results[-1]["mb_per_s"] = round(rows * parts[0].shape[1] * 4 / 1e6 / results[-1]["seconds"])
    nearest = timed("exact neighbours, k = 10", lambda: search(queries, parts, 10, self_index=chosen))
    results[-1]["recall_at_1"] = round(float(np.mean(labels[nearest.rows[:, 0]] == labels[chosen])), 4)
    timed("match record", lambda: match_record(queries, parts, labels, self_index=chosen))
    timed("one query, k = 10", lambda: search(queries[:1], parts, 10))
    return results


def peak_mb() -> float:
    """Largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
