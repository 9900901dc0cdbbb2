"""Exact neighbours of a few queries in rows that lie on disk, at the cost of one product.

The rows are multiplied in float32, as they are mapped. Whatever is within the rounding error of the k-th best can be
among the true k; these few are put in order by their exact keys (see `_keys`), equal ones by ascending row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.retrieval._keys import float32_error, on_grid, steps_of
from probmetric.retrieval.neighbours import Neighbours

CELLS = 2**24


def exact_neighbours(queries: NDArray[np.float32], parts: Sequence[NDArray[np.float32]], *, k: int) -> Neighbours:
    """The k nearest rows of each unit query (Q,M) by cosine, among the unit rows of all `parts` (n,M), in their order.

    Raises:
        ValueError: a query or a row that was found is no unit vector, k is out of range, or the dimensions differ.
    """
    asked = np.ascontiguousarray(queries, dtype=np.float32)
    arrays.check_unit_rows(asked, "queries")
    total = sum(map(len, parts))
    if not 1 <= k <= total:
        raise ValueError(f"k is {k}; expected 1 to {total}, the number of rows that can be found.")
    widths = {part.shape[1] for part in parts}
    if widths != {asked.shape[1]}:
        raise ValueError(f"queries have {asked.shape[1]} dimensions, rows {sorted(widths)}; use one model for both.")
    step = max(1, CELLS // total)
    found = [_nearest(asked[start : start + step], parts, k) for start in range(0, len(asked), step)]
    return Neighbours(*(np.concatenate([getattr(part, name) for part in found]) for name in Neighbours._fields))


def _nearest(asked: NDArray[np.float32], parts: Sequence[NDArray[np.float32]], k: int) -> Neighbours:
    rough = np.concatenate([asked @ part.T for part in parts], axis=1) if len(parts) > 1 else asked @ parts[0].T
    if not np.isfinite(rough).all():
        raise ValueError("a row is not finite")
    last = -np.partition(-rough, k - 1, axis=1)[:, k - 1]
    margin = 2 * float32_error(asked.shape[1], "cosine")
    similarity, index = np.empty((len(asked), k)), np.empty((len(asked), k), dtype=np.int64)
    for number, (query, values, least) in enumerate(zip(asked, rough, last, strict=True)):
        rows = np.flatnonzero(values >= least - margin)
        keys = _exact_keys(query[None], _gathered(parts, rows))
        order = np.argsort(-keys, kind="stable")[:k]
        similarity[number], index[number] = keys[order], rows[order]
    return Neighbours(similarity, index)


def _exact_keys(query: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float64]:
    arrays.check_unit_rows(rows, "gallery rows")
    own, listed = on_grid(query, steps_of(query, "cosine")), on_grid(rows, steps_of(rows, "cosine"))
    return np.asarray(listed @ own[0])


def _gathered(parts: Sequence[NDArray[np.float32]], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The rows (K,M) with these numbers, ascending, through all parts."""
    ends = np.cumsum([0, *map(len, parts)])
    chosen = [
        part[rows[(rows >= start) & (rows < end)] - start]
        for part, start, end in zip(parts, ends, ends[1:], strict=False)
    ]
    return np.concatenate(chosen).astype(np.float32)
