"""Which gallery rows are right answers to which query.

Two forms: equal labels, and a sparse relation given outright (place recognition calls an image within 25 m a
match, which is no equivalence and has no labels). Both hand out the positives of a run of queries at a time,
so that the pairs of a data set with few, large classes are never all in memory. A query that is itself a row
of the gallery is left out by its index, never by its position in a sorted list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics.arrays import to_numpy

Ints = NDArray[np.int64]


class Relation(Protocol):
    """Positives of queries: `counts` (Q,) of them, and `block` to list those of a run of queries."""

    counts: Ints

    def block(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Offsets (stop-start+1,) and gallery rows, flat, of queries start..stop-1; self left out."""
        ...


class LabelRelation:
    """Gallery rows with the query's label."""

    def __init__(self, labels: Ints, gallery_labels: Ints, self_index: Ints | None) -> None:
        self._order = np.argsort(gallery_labels, kind="stable")
        ordered = gallery_labels[self._order]
        self._first = np.searchsorted(ordered, labels, side="left")
        self._last = np.searchsorted(ordered, labels, side="right")
        self._self = self_index
        self.counts = self._last - self._first
        if self_index is not None:
            known = self_index >= 0
            self.counts[known] -= gallery_labels[self_index[known]] == labels[known]

    def block(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Offsets and gallery rows of the positives of queries start..stop-1."""
        first, last = self._first[start:stop], self._last[start:stop]
        offsets = _offsets(last - first)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], last - first)
        columns = self._order[np.repeat(first, last - first) + within]
        if self._self is None:
            return offsets, columns
        keep = columns != np.repeat(self._self[start:stop], last - first)
        return _offsets(self.counts[start:stop]), columns[keep]


class SparseRelation:
    """Positives listed one by one: offsets (Q+1,) into gallery rows, flat."""

    def __init__(self, queries: Ints, columns: Ints, shape: tuple[int, int], self_index: Ints | None) -> None:
        _check_range(queries, shape[0], "query")
        _check_range(columns, shape[1], "gallery")
        pairs = np.unique(queries * shape[1] + columns)
        queries, columns = pairs // shape[1], pairs % shape[1]
        if self_index is not None:
            keep = columns != self_index[queries]
            queries, columns = queries[keep], columns[keep]
        self.counts = np.bincount(queries, minlength=shape[0])
        self._offsets, self._columns = _offsets(self.counts), columns

    def block(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Offsets and gallery rows of the positives of queries start..stop-1."""
        first, last = self._offsets[start], self._offsets[stop]
        return self._offsets[start : stop + 1] - first, self._columns[first:last]


def sparse_relation(positives: Any, shape: tuple[int, int], self_index: Ints | None) -> SparseRelation:
    """Relation from a SciPy sparse matrix (Q,N), index pairs (P,2), or one sequence of gallery rows per query."""
    if hasattr(positives, "tocoo"):
        if tuple(positives.shape) != shape:
            raise ValueError(f"positives has shape {tuple(positives.shape)}; expected (queries, gallery) = {shape}.")
        entries = positives.tocoo()
        kept = np.asarray(entries.data) != 0
        return SparseRelation(_ints(entries.row)[kept], _ints(entries.col)[kept], shape, self_index)
    if hasattr(positives, "detach") or isinstance(positives, np.ndarray):
        pairs = to_numpy(positives)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise ValueError(
                f"positives has shape {pairs.shape}, dtype {pairs.dtype}; expected integer pairs (P, 2) of query and "
                "gallery row, a SciPy sparse matrix, or a list with one sequence of gallery rows per query."
            )
        return SparseRelation(_ints(pairs[:, 0]), _ints(pairs[:, 1]), shape, self_index)
    return _from_lists(positives, shape, self_index)


def _from_lists(positives: Sequence[Any], shape: tuple[int, int], self_index: Ints | None) -> SparseRelation:
    if len(positives) != shape[0]:
        raise ValueError(f"positives lists {len(positives)} queries; there are {shape[0]}.")
    columns = [_ints(to_numpy(row)) for row in positives]
    queries = np.repeat(np.arange(shape[0]), [len(row) for row in columns])
    return SparseRelation(queries, np.concatenate([*columns, _ints([])]), shape, self_index)


def _ints(values: Any) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _offsets(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts)))


def _check_range(indices: Ints, size: int, side: str) -> None:
    bad = np.flatnonzero((indices < 0) | (indices >= size))
    if bad.size:
        raise ValueError(f"positives: entry {bad[0]} names {side} row {indices[bad[0]]}; there are {size} rows.")
