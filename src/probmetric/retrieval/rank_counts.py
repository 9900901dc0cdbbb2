"""Ranks of the right answers, which is all that retrieval metrics need.

For each positive p of a query two numbers are counted over the query's negatives n (wrong answers; the query
itself is left out by index): `above` = #{key(n) > key(p)} and `tied` = #{key(n) = key(p)}. With the positives
of a query in descending order, the rank of the j-th is j + above + tied if ties go against the system
(pessimistic), j + above if they go for it. No neighbour list is sorted or stored.

The compiled engine takes large problems, torch takes CUDA tensors, NumPy the rest. All give the same counts.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics.ranked import Counts
from probmetric.retrieval.keys import Distance, keys, on_grid, squared_norms, steps_of
from probmetric.retrieval.problem import FILTERED_DISTANCES, Problem

Ints = NDArray[np.int64]
BLOCK_BYTES = 32 << 20
# Pairs from which a search takes longer than loading numba does, and right answers a query up to which it pays.
COMPILED_FROM, COMPILED_POSITIVES = 1 << 24, 512


def ranks(problem: Problem) -> Iterator[Counts]:
    """Yield the counts of a problem, some queries at a time."""
    if problem.on_gpu:
        from probmetric.retrieval.torch_engine import torch_counts

        return torch_counts(problem)
    if compiles(problem):
        from probmetric.retrieval.compiled import compiled_counts

        return compiled_counts(problem)
    return numpy_counts(problem)


def compiles(problem: Problem) -> bool:
    """Whether the compiled engine takes this problem: a large one, by cosine or Euclidean distance."""
    queries, pairs = len(problem.queries), len(problem.queries) * len(problem.gallery)
    few = problem.relation.counts.sum() <= COMPILED_POSITIVES * queries
    suited = not problem.on_gpu and few and problem.distance in FILTERED_DISTANCES
    return suited and pairs >= COMPILED_FROM and has_kernels()


@functools.cache
def has_kernels() -> bool:
    """Whether the compiled engine loads: numba is installed, and has a folder to keep what it compiles."""
    try:
        importlib.import_module("probmetric.retrieval.compiled")
    except (ImportError, RuntimeError):
        return False
    return True


def numpy_counts(problem: Problem, block: int | None = None) -> Iterator[Counts]:
    """Yield counts from the exact keys of a block of queries, by a float64 matrix product; O(block x N) memory."""
    total, width = len(problem.queries), len(problem.gallery)
    block = block or max(1, BLOCK_BYTES // (8 * width))
    key_block = key_function(problem)
    for start in range(0, total, block):
        stop = min(start + block, total)
        yield counts_of_block(problem, key_block(start, stop), start, stop)


def key_function(problem: Problem) -> Callable[[int, int], NDArray[np.float64]]:
    """Return the function (start, stop) -> keys (stop-start,N) of those queries."""
    distance, queries, gallery = problem.distance, problem.queries, problem.gallery
    if not isinstance(distance, str):
        return lambda start, stop: _user_keys(distance, queries[start:stop], gallery)
    steps = steps_of(gallery, distance)
    grid, norms = on_grid(gallery, steps), squared_norms(gallery, steps)
    if queries is gallery:
        return lambda start, stop: keys(grid[start:stop], grid, distance, norms)
    own = steps_of(queries, distance)
    return lambda start, stop: keys(on_grid(queries[start:stop], own[start:stop]), grid, distance, norms)


def _user_keys(distance: Distance, queries: NDArray[np.float32], gallery: NDArray[np.float32]) -> NDArray[np.float64]:
    assert not isinstance(distance, str)
    exact = np.asarray(distance(queries, gallery), dtype=np.float64)
    if exact.shape != (len(queries), len(gallery)):
        raise ValueError(
            f"distance returned shape {exact.shape} for queries {queries.shape} and gallery {gallery.shape}; "
            f"expected ({len(queries)}, {len(gallery)})."
        )
    if np.isnan(exact).any():
        raise ValueError("distance returned NaN; a distance must be a number for every pair.")
    return -exact


def counts_of_block(problem: Problem, exact: NDArray[np.float64], start: int, stop: int) -> Counts:
    """Return the counts from the keys `exact` (stop-start,N) of queries start..stop-1; overwrites `exact`."""
    rows = np.arange(stop - start)
    offsets, columns = problem.relation.block(start, stop)
    owner = np.repeat(rows, np.diff(offsets))
    threshold = exact[owner, columns]
    order = np.lexsort((-threshold, owner))
    threshold = threshold[order]
    exact[owner, columns] = -np.inf
    own = problem.itself(start, stop)
    exact[rows[own >= 0], own[own >= 0]] = -np.inf
    above, tied = count_above(exact, offsets, threshold)
    return Counts(start, stop, offsets, above, tied)


def count_above(exact: NDArray[np.float64], offsets: Ints, threshold: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Count the keys `exact` (B,N) of a row that are above, and those that equal, each of its thresholds, flat (P,).

    Thresholds of a row lie at its `offsets` (B+1,), descending. Only keys that reach the lowest are sorted.
    """
    above = np.zeros(len(threshold), dtype=np.int64)
    tied = np.zeros_like(above)
    for row in np.flatnonzero(np.diff(offsets)):
        part = slice(offsets[row], offsets[row + 1])
        near = np.sort(exact[row][exact[row] >= threshold[part][-1]])
        right = near.searchsorted(threshold[part], side="right")
        above[part] = len(near) - right
        tied[part] = right - near.searchsorted(threshold[part], side="left")
    return above, tied
