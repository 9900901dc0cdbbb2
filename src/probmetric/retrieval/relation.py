"""Say which gallery rows are right answers to a query, and which rows it must not find.

Right answers come from equal labels or from a sparse relation (in place recognition an image within 25 m is right, so
there are no classes). Both give the pairs of a run of queries at a time, so that the pairs of a data set with few,
large classes are never all in memory. The query's own row and rows to ignore are struck out by their numbers, never by
their position in a sorted list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probmetric.metrics.arrays import Ints, to_numpy


class SparseRelation:
    """Hold listed pairs of queries (P,) and gallery rows (P,) without those of `struck`; `counts` (Q,) per query."""

    def __init__(
        self, queries: Ints, columns: Ints, shape: tuple[int, int], struck: SparseRelation | None = None
    ) -> None:
        pairs = np.unique(queries * shape[1] + columns)
        self.pairs: Ints = pairs if struck is None else np.setdiff1d(pairs, struck.pairs, assume_unique=True)
        self.queries, self.columns = self.pairs // shape[1], self.pairs % shape[1]
        self.counts = np.bincount(self.queries, minlength=shape[0])
        self.offsets = _offsets(self.counts)

    def block(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return the offsets and gallery rows of queries start..stop-1."""
        first, last = self.offsets[start], self.offsets[stop]
        return self.offsets[start : stop + 1] - first, self.columns[first:last]

    def among(self, kept: Ints) -> SparseRelation:
        """Return the pairs with the gallery rows `kept` (K,), ascending, which get new numbers."""
        place = np.searchsorted(kept, self.columns).clip(max=len(kept) - 1)
        here = kept[place] == self.columns
        return SparseRelation(self.queries[here], place[here], (len(self.counts), len(kept)))

    def of(self, which: Ints) -> tuple[Ints, Ints]:
        """Return positions in `which` (B,), queries in any order, and gallery rows of all their pairs."""
        counts = self.counts[which]
        ends = np.cumsum(counts)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        return np.repeat(np.arange(len(which)), counts), self.columns[np.repeat(self.offsets[which], counts) + within]


class LabelRelation:
    """Find gallery rows with the query's label, without those of `struck`; `counts` (Q,) per query."""

    def __init__(self, labels: Ints, gallery_labels: Ints, struck: SparseRelation) -> None:
        self._order = np.argsort(gallery_labels, kind="stable")
        ordered = gallery_labels[self._order]
        self._first = np.searchsorted(ordered, labels, side="left")
        self._last = np.searchsorted(ordered, labels, side="right")
        self._struck, self._width = struck, len(gallery_labels)
        alike = labels[struck.queries] == gallery_labels[struck.columns]
        self.counts = self._last - self._first - np.bincount(struck.queries[alike], minlength=len(labels))

    def block(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return the offsets and gallery rows of queries start..stop-1."""
        first, sizes = self._first[start:stop], self._last[start:stop] - self._first[start:stop]
        queries = np.repeat(np.arange(start, stop), sizes)
        columns = self._order[np.arange(len(queries)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)]
        pairs = queries * self._width + columns  # ascending: rows of a class are in order
        place = np.searchsorted(self._struck.pairs, pairs)
        kept = np.append(self._struck.pairs, -1)[place] != pairs
        return _offsets(self.counts[start:stop]), columns[kept]


Relation = LabelRelation | SparseRelation


def sparse_relation(
    values: Any, shape: tuple[int, int], name: str, struck: SparseRelation | None = None
) -> SparseRelation:
    """Make a relation of a SciPy sparse matrix or bool array (Q,N), index pairs (P,2), or rows for each query.

    Raises:
        ValueError: wrong shape, or a row that does not exist; the message has the argument `name` and the entry.
    """
    if hasattr(values, "tocoo"):
        if tuple(values.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(values.shape)}; expected (queries, gallery) = {shape}.")
        entries = values.tocoo()
        listed = np.asarray(entries.data) != 0
        queries, columns = _ints(entries.row)[listed], _ints(entries.col)[listed]
    elif hasattr(values, "detach") or isinstance(values, np.ndarray):
        pairs = to_numpy(values)
        if pairs.dtype == bool and pairs.shape == shape:
            pairs = np.argwhere(pairs)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise ValueError(
                f"{name} has shape {pairs.shape}, dtype {pairs.dtype}; expected integer pairs (P, 2) of query and "
                f"gallery row, a bool array or SciPy sparse matrix {shape}, or a list of gallery rows for each query."
            )
        queries, columns = _ints(pairs[:, 0]), _ints(pairs[:, 1])
    else:
        queries, columns = _listed(values, *shape, name)
    for side, rows, size in (("query", queries, shape[0]), ("gallery", columns, shape[1])):
        bad = np.flatnonzero((rows < 0) | (rows >= size))
        if bad.size:
            raise ValueError(f"{name}: entry {bad[0]} names {side} row {rows[bad[0]]}; there are {size} rows.")
    return SparseRelation(queries, columns, shape, struck)


def _listed(values: Any, count: int, width: int, name: str) -> tuple[Ints, Ints]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ValueError(
            f"{name} is a {type(values).__name__}; expected pairs, a matrix, or a list with one list a query."
        )
    if len(values) != count:
        raise ValueError(f"{name} lists {len(values)} queries; there are {count}.")
    rows = [_rows(row, width, name) for row in values]
    return np.repeat(np.arange(count), [len(row) for row in rows]), np.concatenate([*rows, _ints([])])


def _rows(values: Any, width: int, name: str) -> Ints:
    """Return gallery rows (P,) of one query, from rows or from a bool for each of them (N,)."""
    rows = to_numpy(values)
    if rows.dtype == bool and rows.shape == (width,):
        return np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(f"{name}: a query has {values!s:.80}; expected a list of gallery rows, or of {width} bools.")
    return _ints(rows)


def _ints(values: Any) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _offsets(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts)))
