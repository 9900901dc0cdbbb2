"""Exact neighbours and ranks in a `Gallery` that is read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probmetric.retrieval._keys import keys, on_grid, steps_of
from probmetric.retrieval.ranks import Counts, Problem, count_above

if TYPE_CHECKING:
    from probmetric.retrieval.gallery import Gallery
    from probmetric.retrieval.neighbours import Neighbours

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]
QUERIES = 1024


def streamed_neighbours(
    queries: NDArray[np.float32],
    gallery: Gallery,
    k: int,
    search: Callable[[NDArray[np.float32], NDArray[np.float32], int], Neighbours],
) -> tuple[Doubles, Ints]:
    """Similarities and row numbers (Q,k) merged from what `search` finds in every block."""
    similarity, index = np.empty((len(queries), 0)), np.empty((len(queries), 0), dtype=np.int64)
    for start, rows in gallery.blocks():
        found = search(queries, rows, min(k, len(rows)))
        similarity = np.concatenate([similarity, found.similarity], axis=1)
        index = np.concatenate([index, found.indices + start], axis=1)
        order = np.lexsort((index, -similarity), axis=1)[:, :k]
        similarity, index = np.take_along_axis(similarity, order, axis=1), np.take_along_axis(index, order, axis=1)
    return similarity, index


def streamed_counts(problem: Problem, block: int | None = None) -> Iterator[Counts]:
    """Counts of `problem`, whose gallery is a `Gallery`, for some queries at a time; one pass of the gallery each."""
    step = block or QUERIES
    for start in range(0, len(problem.queries), step):
        yield _counts(problem, start, min(start + step, len(problem.queries)))


def _counts(problem: Problem, start: int, stop: int) -> Counts:
    offsets, columns = problem.relation.block(start, stop)
    owner = np.repeat(np.arange(stop - start), np.diff(offsets))
    asked = problem.queries[start:stop]
    asked = on_grid(asked, steps_of(asked, "cosine"))
    unsorted = _positive_keys(problem.gallery, asked, owner, columns)
    threshold = unsorted[np.lexsort((-unsorted, owner))]
    above, tied = np.zeros(len(threshold), dtype=np.int64), np.zeros(len(threshold), dtype=np.int64)
    own = None if problem.self_index is None else problem.self_index[start:stop]
    for first, rows in problem.gallery.blocks():
        found = keys(asked, on_grid(rows, steps_of(rows, "cosine")), "cosine")
        _strike(found, owner, columns - first)
        if own is not None:
            _strike(found, np.arange(len(own)), own - first)
        more_above, more_tied = count_above(found, offsets, threshold)
        above += more_above
        tied += more_tied
    return Counts(start, stop, offsets, above, tied)


def _positive_keys(gallery: Gallery, asked: Doubles, owner: Ints, columns: Ints) -> Doubles:
    """Keys (P,) of the queries' positives, in the order of `columns`."""
    found = np.empty(len(columns))
    for first, rows in gallery.blocks():
        here = np.flatnonzero((columns >= first) & (columns < first + len(rows)))
        if len(here):
            listed = rows[columns[here] - first]
            found[here] = np.einsum("pm,pm->p", asked[owner[here]], on_grid(listed, steps_of(listed, "cosine")))
    return found


def _strike(found: Doubles, rows: Ints, columns: Ints) -> None:
    """Take the pairs (row, column) that lie in `found` (Q,B) out of the count."""
    inside = (columns >= 0) & (columns < found.shape[1])
    found[rows[inside], columns[inside]] = -np.inf
