"""An approximate index of a million vectors, its answers scored exactly again, and its loss inside the certificate.

    python benchmarks/approximate.py                    1,000,000 x 768, faiss IVF with 8 bits a number, 12,000 queries

Rows are unit vectors around class centres, ten to a class; queries are fresh rows of the same classes. The index gives
the `DEPTH` nearest by its rough cosines, these are scored exactly, and the lists are certified (`Gallery.from_labels`):
calibration queries go through the same index, so an answer that it misses is an error like any other. Reported:
milliseconds of a query on its own (median), how often the nearest is found and right, what is certified at `RISK`, and
in how many of `SPLITS` calibration sets of `CALIBRATION` queries the other queries broke the promise (.1 is allowed).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from _machine import hardware, keep, parser

from probmetric import Gallery, trust
from probmetric.retrieval import search

PER_CLASS, SPREAD, BLOCK = 10, 2.4, 100_000
DEPTH, RISK, CALIBRATION, SPLITS, ALONE = 50, 0.05, 2_000, 200, 50


def main() -> None:
    """Draw vectors, build the index, measure, print and perhaps keep the report."""
    options = parse()
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((options.rows // PER_CLASS, options.dim), dtype=np.float32)
    labels = np.repeat(np.arange(len(centres)), PER_CLASS)
    gallery = np.empty((len(labels), options.dim), dtype=np.float32)
    for start in range(0, len(labels), BLOCK):
        gallery[start : start + BLOCK] = drawn(generator, centres, labels[start : start + BLOCK])
    truth = generator.integers(0, len(centres), options.queries)
    queries = drawn(generator, centres, truth)

    exact = search(queries[: options.exact], gallery, 2)
    report: dict[str, Any] = {"shape": list(gallery.shape), "queries": options.queries, **hardware()}
    report["exact"] = {
        # in parts, as a stored gallery is: rows are checked where they are found
        "milliseconds": milliseconds(lambda row: search(queries[row : row + 1], [gallery], 2), 20),
        "right": float((labels[exact.rows[:, 0]] == truth[: options.exact]).mean()),
    }
    started = time.perf_counter()
    index: Any = faiss.index_factory(options.dim, f"IVF{options.cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(gallery[generator.choice(len(gallery), 64 * options.cells, replace=False)])
    index.add(gallery)
    report["build_seconds"] = round(time.perf_counter() - started, 1)
    for probes in (8, 32, 128):
        index.nprobe = probes
        scores, nearest = best_of(index, gallery, queries)
        same = float((nearest[: options.exact, 0] == exact.rows[:, 0]).mean())
        took = milliseconds(lambda row: best_of(index, gallery, queries[row : row + 1]), ALONE)
        report[f"{probes} probes"] = {"milliseconds": took, "nearest_found": same} | promise(
            scores, nearest, labels, truth
        )
    keep(report, options.output)


def parse() -> argparse.Namespace:
    """Command line."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--dim", type=int, default=768)
    options.add_argument("--queries", type=int, default=12_000)
    options.add_argument("--exact", type=int, default=1_000, help="queries searched exactly, for comparison")
    options.add_argument("--cells", type=int, default=1024)
    return options.parse_args()


def drawn(generator: np.random.Generator, centres: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return a unit vector (N, M) of each class."""
    rows = centres[labels] + SPREAD * generator.standard_normal((len(labels), centres.shape[1]), dtype=np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def best_of(index: Any, gallery: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return exact cosines and rows (Q, DEPTH), the best first, of what the index finds nearest."""
    nearest = index.search(queries, DEPTH)[1]
    exact = np.stack([gallery[rows] @ query for rows, query in zip(nearest, queries, strict=True)])
    order = np.argsort(-exact, axis=1, kind="stable")
    return np.take_along_axis(exact, order, axis=1), np.take_along_axis(nearest, order, axis=1)


def milliseconds(ask: Callable[[int], Any], times: int) -> float:
    """Return the median time of a query on its own."""
    taken = []
    for row in range(times):
        started = time.perf_counter()
        ask(row)
        taken.append(1000 * (time.perf_counter() - started))
    return round(float(np.median(taken)), 1)


def promise(scores: np.ndarray, nearest: np.ndarray, labels: np.ndarray, truth: np.ndarray) -> dict[str, float | None]:
    """Return what the lists are worth: right answers, certified coverage, broken promises."""
    right = labels[nearest[:, 0]] == truth
    first, others = slice(CALIBRATION), slice(CALIBRATION, None)
    gallery = Gallery.from_labels(labels, depth=DEPTH)
    certificate = gallery.certify(None, (scores[first], nearest[first]), truth[first], risk=RISK, score="gap")
    answers = gallery.search((scores[others], nearest[others]), risk=certificate)
    accepted = np.array([not answer.withheld for answer in answers])
    doubt = gap_doubt(scores, labels[nearest])
    generator = np.random.default_rng(0)
    broken = 0
    for _ in range(SPLITS):
        order = generator.permutation(len(right))
        calibration, rest = order[first], order[others]
        threshold = trust.certify(doubt[calibration], right[calibration], risk=RISK).threshold
        answered = rest if threshold is None else rest[doubt[rest] <= threshold]
        broken += threshold is not None and bool((~right[answered]).mean() > RISK)
    return {
        "right": float(right.mean()),
        "certified_coverage": float(certificate.coverage),
        "fresh_answered": float(accepted.mean()),
        "fresh_wrong": float((~right[others][accepted]).mean()) if accepted.any() else None,
        "promise_broken": broken / SPLITS,
    }


def gap_doubt(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return minus how much nearer (Q,) the answer is than the first of another class, or the last of its list."""
    other = classes != classes[:, :1]
    place = np.where(other.any(axis=1), other.argmax(axis=1), -1)
    return np.asarray(scores[np.arange(len(scores)), place] - scores[:, 0], dtype=np.float64)


if __name__ == "__main__":
    main()
