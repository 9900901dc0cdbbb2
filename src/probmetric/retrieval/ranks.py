"""Ranks of the right answers, which is all that retrieval metrics need.

For each positive p of a query two counts are found over the query's negatives n (wrong answers; the query
itself is left out by index): `above` = #{key(n) > key(p)} and `tied` = #{key(n) = key(p)}. With the positives
of a query in descending order, the rank of the j-th is j + above + tied if ties go against the system
(pessimistic), j + above if they go for it. No neighbour list is sorted or stored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probmetric.retrieval._keys import (
    NAMES,
    Distance,
    keys,
    on_grid,
    squared_norms,
    steps_of,
)
from probmetric.retrieval._relation import Relation

Ints = NDArray[np.int64]
BLOCK_BYTES = 32 << 20
SMALLEST_TILE = 256
# What is left to load, and what a search must take to be worth that, by the furthest that is loaded.
_KERNELS = "probmetric.retrieval._nearest_compiled"
_SECONDS_TO_LOAD = {_KERNELS: 0.004, "numba": 0.1, "sys": 1.5}
SMALL = 1 << 21
"""Pairs up to which the compiled path makes all exact keys at once: threads and tiles would cost more."""
FILTERED_DISTANCES: tuple[Distance, ...] = ("cosine", "euclidean")
Engine = Literal["auto", "numpy", "compiled", "torch", "streamed"]


@dataclass(frozen=True)
class Problem:
    """One retrieval task, checked: what is searched (Q,M), in what (N,M), and what counts as right.

    `self_index` (Q,) is the gallery row that is the query itself, -1 for none. The rows are NumPy arrays, or torch
    tensors for the torch engine; the gallery may be a `Gallery` (see `gallery`).
    """

    queries: Any
    gallery: Any
    relation: Relation
    self_index: Ints | None
    distance: Distance

    def itself(self, start: int, stop: int) -> Ints:
        """`self_index` of queries start..stop-1, -1 for all where there is none."""
        return np.full(stop - start, -1) if self.self_index is None else self.self_index[start:stop]


@dataclass(frozen=True)
class Counts:
    """Result for queries start..stop-1: offsets (stop-start+1,) into flat `above` and `tied`, nearest first."""

    start: int
    stop: int
    offsets: Ints
    above: Ints
    tied: Ints


def positive_counts(problem: Problem, block: int | None = None, engine: Engine = "auto") -> Iterator[Counts]:
    """Counts of `problem`, some queries at a time. Neither `block` nor `engine` changes a number."""
    chosen = choose_engine(problem) if engine == "auto" else engine
    if chosen != "numpy" and problem.distance not in FILTERED_DISTANCES:
        raise ValueError(f"engine {chosen!r} knows {FILTERED_DISTANCES}, not {problem.distance!r}; use 'numpy'.")
    if chosen == "streamed":
        from probmetric.retrieval._streamed import streamed_counts

        return streamed_counts(problem, block)
    if chosen == "torch":
        from probmetric.retrieval._ranks_torch import torch_counts

        return torch_counts(problem, block)
    if chosen == "compiled":
        try:
            from probmetric.retrieval._ranks_compiled import compiled_counts
        except (ImportError, RuntimeError):  # not installed, or no folder where numba may keep what it compiles
            if engine == "compiled":
                raise
        else:
            return compiled_counts(problem, block and max(block, SMALLEST_TILE))
    return numpy_counts(problem, block)


def query_spans(positives: Ints, pairs: int) -> Iterator[tuple[int, int]]:
    """Runs of queries, of `positives` (Q,) each, with at most so many `pairs` together (one query at least)."""
    total, start = np.cumsum(positives), 0
    while start < len(positives):
        before = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, before + pairs, side="right")))
        yield start, stop
        start = stop


def choose_engine(problem: Problem) -> Engine:
    """Streamed for a `Gallery`, torch for tensors; numba where its load (1.5 s) pays off; else NumPy."""
    if hasattr(problem.gallery, "blocks"):
        return "streamed"
    if hasattr(problem.gallery, "detach"):
        return "torch"
    queries, dim = problem.queries.shape
    few_positives = problem.relation.counts.sum() <= 512 * queries
    suited = problem.distance in FILTERED_DISTANCES and few_positives
    ready = _KERNELS in sys.modules and queries * len(problem.gallery) <= SMALL
    return "compiled" if suited and (ready or worth_compiling(queries, len(problem.gallery), dim)) else "numpy"


def worth_compiling(queries: int, gallery: int, dim: int) -> bool:
    """Whether a search takes long enough to load numba for it, or the kernels, which may be loaded already."""
    return queries * gallery * (2e-11 * dim + 1.2e-8) > next(
        seconds for module, seconds in _SECONDS_TO_LOAD.items() if module in sys.modules
    )


def numpy_counts(problem: Problem, block: int | None = None) -> Iterator[Counts]:
    """Exact keys of a block of queries by a float64 matrix product, sorted; O(block x N) memory."""
    total, width = len(problem.queries), len(problem.gallery)
    block = block or max(1, BLOCK_BYTES // (8 * width))
    key_block = key_function(problem)
    for start in range(0, total, block):
        stop = min(start + block, total)
        yield counts_of_block(problem, key_block(start, stop), start, stop)


def key_function(problem: Problem) -> Callable[[int, int], NDArray[np.float64]]:
    """Function (start, stop) -> keys (stop-start,N) of those queries."""
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
    found = np.asarray(distance(queries, gallery), dtype=np.float64)
    if found.shape != (len(queries), len(gallery)):
        raise ValueError(
            f"distance returned shape {found.shape} for queries {queries.shape} and gallery {gallery.shape}; "
            f"expected ({len(queries)}, {len(gallery)})."
        )
    if np.isnan(found).any():
        raise ValueError("distance returned NaN; a distance must be a number for every pair.")
    return -found


def counts_of_block(problem: Problem, found: NDArray[np.float64], start: int, stop: int) -> Counts:
    """Counts from the keys `found` (stop-start,N) of queries start..stop-1; `found` is overwritten."""
    rows = np.arange(stop - start)
    offsets, columns = problem.relation.block(start, stop)
    owner = np.repeat(rows, np.diff(offsets))
    threshold = found[owner, columns]
    order = np.lexsort((-threshold, owner))
    threshold = threshold[order]
    found[owner, columns] = -np.inf
    own = problem.itself(start, stop)
    found[rows[own >= 0], own[own >= 0]] = -np.inf
    above, tied = count_above(found, offsets, threshold)
    return Counts(start, stop, offsets, above, tied)


def count_above(found: NDArray[np.float64], offsets: Ints, threshold: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """How many of a row's keys `found` (B,N) are above, and how many equal, each of its thresholds, flat (P,).

    Thresholds of a row lie at its `offsets` (B+1,), descending. Only keys that reach the lowest are sorted.
    """
    above = np.zeros(len(threshold), dtype=np.int64)
    tied = np.zeros_like(above)
    for row in np.flatnonzero(np.diff(offsets)):
        mine = slice(offsets[row], offsets[row + 1])
        near = np.sort(found[row][found[row] >= threshold[mine][-1]])
        right = near.searchsorted(threshold[mine], side="right")
        above[mine] = len(near) - right
        tied[mine] = right - near.searchsorted(threshold[mine], side="left")
    return above, tied


def known_distance(distance: Distance) -> Distance:
    """`distance` unchanged, or a ValueError if it is neither a known name nor a function."""
    if callable(distance) or distance in NAMES:
        return distance
    from probmetric.registry import nearest

    raise ValueError(
        f"distance is {distance!r}: {nearest(str(distance), NAMES)} Or pass a function "
        "(queries (B,M), gallery (N,M)) -> distances (B,N)."
    )
