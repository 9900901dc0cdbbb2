"""Count the ranks of right answers, which are all that retrieval metrics need.

For each right answer p of a query two numbers are counted over the query's wrong answers n: `above` =
#{key(n) > key(p)} and `tied` = #{key(n) = key(p)}. With right answers in descending order, the rank of the j-th is
j + above + tied if ties go against the system (pessimistic), else j + above. No neighbour list is sorted or stored.

The compiled engine takes large problems, torch takes CUDA tensors, NumPy takes the rest. All give the same counts.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from probmetric.metrics.arrays import Doubles, Floats, products, row_norms
from probmetric.metrics.ranked import Counts
from probmetric.retrieval.keys import Distance, DistanceFunction, float32_error, keys, on_grid, squared_norms, steps_of
from probmetric.retrieval.problem import FILTERED_DISTANCES, Problem

BLOCK_BYTES = 32 << 20
# Pairs from which a search takes longer than loading numba (its first use compiles for 25 s), and most right answers of
# a query with which compiled code is faster.
COMPILED_FROM, COMPILED_POSITIVES = 1 << 25, 512
SAMPLE, UNDECIDED = 256, 1 / 16


def ranks(problem: Problem) -> Iterator[Counts]:
    """Yield the counts of a problem, some queries at a time."""
    if problem.on_gpu:
        counts: Iterator[Counts] = engine("torch_engine").torch_counts(problem)
    elif compiles(problem):
        counts = engine("compiled").compiled_counts(problem)
    else:
        counts = numpy_counts(problem)
    return counts


def engine(name: str) -> Any:
    """Import an engine when it is needed: torch and numba take a second to load."""
    return importlib.import_module(f"probmetric.retrieval.{name}")


def compiles(problem: Problem) -> bool:
    """Say whether the compiled engine takes this problem: a large one, by cosine or Euclidean distance.

    Where float32 leaves too many pairs undecided, as in a collapsed embedding, float64 products of all are faster.
    """
    queries, pairs = len(problem.queries), len(problem.queries) * len(problem.gallery)
    few = problem.relation.counts.sum() <= COMPILED_POSITIVES * queries
    suited = not problem.on_gpu and few and problem.distance in FILTERED_DISTANCES
    return suited and pairs >= COMPILED_FROM and has_kernels() and undecided(problem) < UNDECIDED


def undecided(problem: Problem) -> float:
    """Return the share of a sample of pairs that float32 cannot tell from a right answer."""
    distance, some = problem.distance, problem.gallery[:: max(1, len(problem.gallery) // SAMPLE)]
    queries = np.flatnonzero(problem.relation.counts)
    queries = queries[:: max(1, len(queries) // SAMPLE)]
    largest = float(row_norms(problem.gallery).max()) ** 2 if distance == "euclidean" else 1.0
    error, close = float32_error(some.shape[1], str(distance)) * largest, 0
    for query in queries.tolist():
        right = problem.gallery[problem.relation.block(query, query + 1)[1]]
        levels, values = (_rough_keys(problem.queries[query], rows, distance) for rows in (right, some))
        levels.sort()
        close += int((levels.searchsorted(values + error) > levels.searchsorted(values - error)).sum())
    return close / max(1, len(queries) * len(some))


def _rough_keys(query: Floats, rows: Floats, distance: Distance) -> Doubles:
    values = products(rows, query[None])[:, 0].astype(np.float64)
    return values if distance == "cosine" else values - row_norms(rows) ** 2 / 2


@functools.cache
def has_kernels() -> bool:
    """Say whether the compiled engine loads: numba is installed and has a folder for its compiled code."""
    try:
        engine("compiled")
    except (ImportError, RuntimeError):
        return False
    return True


def numpy_counts(problem: Problem, block: int | None = None) -> Iterator[Counts]:
    """Yield counts from exact keys of a block of queries, by a float64 matrix product; O(block x N) memory."""
    total, width = len(problem.queries), len(problem.gallery)
    block = block or max(1, BLOCK_BYTES // (8 * width))
    key_block = key_function(problem)
    for start in range(0, total, block):
        stop = min(start + block, total)
        yield counts_of_block(problem, key_block(start, stop), start, stop)


def key_function(problem: Problem) -> Callable[[int, int], Doubles]:
    """Return the function (start, stop) -> keys (stop-start,N) of queries start..stop-1."""
    distance, queries, gallery = problem.distance, problem.queries, problem.gallery
    if not isinstance(distance, str):
        return lambda start, stop: _user_keys(distance, queries[start:stop], gallery)
    steps_q, steps_g = steps_of(queries, distance), steps_of(gallery, distance)
    grid, norms = on_grid(gallery, steps_g), squared_norms(gallery, steps_g)
    return lambda start, stop: keys(on_grid(queries[start:stop], steps_q[start:stop]), grid, distance, norms)


def _user_keys(distance: DistanceFunction, queries: Floats, gallery: Floats) -> Doubles:
    exact = np.asarray(distance(queries, gallery), dtype=np.float64)
    if exact.shape != (len(queries), len(gallery)):
        raise ValueError(
            f"distance returned shape {exact.shape} for queries {queries.shape} and gallery {gallery.shape}; "
            f"expected ({len(queries)}, {len(gallery)})."
        )
    if np.isnan(exact).any():
        raise ValueError("distance returned NaN; a distance must be a number for every pair.")
    return -exact


def counts_of_block(problem: Problem, exact: Doubles, start: int, stop: int) -> Counts:
    """Return the counts from the keys `exact` (stop-start,N) of queries start..stop-1; overwrites `exact`."""
    offsets, columns = problem.relation.block(start, stop)
    owner = np.repeat(np.arange(stop - start), np.diff(offsets))
    threshold = exact[owner, columns]
    threshold = threshold[np.lexsort((-threshold, owner))]
    exact[owner, columns] = -np.inf
    exact[problem.struck.of(np.arange(start, stop))] = -np.inf
    above, tied = np.zeros_like(columns), np.zeros_like(columns)
    for row in np.flatnonzero(np.diff(offsets)):
        part = slice(offsets[row], offsets[row + 1])
        near = np.sort(exact[row][exact[row] >= threshold[part][-1]])
        right = near.searchsorted(threshold[part], side="right")
        above[part] = len(near) - right
        tied[part] = right - near.searchsorted(threshold[part], side="left")
    return Counts(start, stop, offsets, above, tied)
