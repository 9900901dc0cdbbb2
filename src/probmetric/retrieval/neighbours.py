"""Nearest-neighbour lists, for figures, search and votes.

The exact path multiplies blocks of exact keys (see `_keys`) and keeps the k largest; equal keys are listed by
ascending gallery row. Large problems are searched by faiss in float32, on a GPU when there is one, with some candidates
to spare; the candidates are put in order by their exact keys, and a query whose spare candidates do not prove its list
right (a key within float32 error of the last place) is searched again by the exact path. Both give the same lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.retrieval._keys import float32_error, keys, on_grid, steps_of
from probmetric.retrieval._streamed import streamed_neighbours
from probmetric.retrieval.gallery import Gallery, GalleryIndex

SPARE = 2
SPARE_SHARE = 4
GPU_LONGEST_LIST = 2048
FAISS_FROM = 4096
EXACT_BYTES = 32 << 20


class Neighbours(NamedTuple):
    """`similarity` (Q,k) cosines, descending, and `indices` (Q,k) gallery rows."""

    similarity: NDArray[np.float64]
    indices: NDArray[np.int64]


def nearest_neighbours(
    embeddings: Any,
    gallery: Any = None,
    *,
    k: int = 1,
    method: Literal["auto", "exact", "faiss"] = "auto",
    normalize: bool = False,
) -> Neighbours:
    """The k nearest gallery rows of each of `embeddings` (Q,M) by cosine; without gallery, self is left out by index.

    The gallery may be an array (N,M), a `Gallery` (streamed, as exact), or a `GalleryIndex` (approximate: a query whose
    lists hold fewer than k rows gets index -1 and similarity -inf in the places left).

    Examples:
        >>> points = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> nearest_neighbours(points, k=1).indices.ravel().tolist()
        [1, 0, 1]
    """
    queries = _rows(embeddings, "embeddings", normalize)
    if isinstance(gallery, Gallery):
        _check_k(k, len(gallery))
        return Neighbours(*streamed_neighbours(queries, gallery, k, _method(method)))
    if isinstance(gallery, GalleryIndex):
        _check_k(k, len(gallery.gallery))
        return _by_index(queries, gallery, k)
    own = gallery is None
    searched = queries if own else _rows(gallery, "gallery", normalize)
    _check_k(k, len(searched) - own)
    if method not in ("auto", "exact", "faiss"):
        raise ValueError(f"method is {method!r}; allowed: 'auto', 'exact', 'faiss'.")
    if method == "exact" or (method == "auto" and len(searched) < FAISS_FROM):
        return by_all_keys(queries, searched, np.arange(len(queries)), k, own)
    return _by_faiss(queries, searched, k, own)


def _check_k(k: int, available: int) -> None:
    if not 1 <= k <= available:
        raise ValueError(f"k is {k}; expected 1 to {available}, the number of rows that can be found.")


def _method(method: Literal["auto", "exact", "faiss"]) -> Callable[..., Neighbours]:
    return lambda queries, rows, k: nearest_neighbours(queries, rows, k=k, method=method)


def _by_index(queries: NDArray[np.float32], index: GalleryIndex, k: int) -> Neighbours:
    """The k best of SPARE_SHARE k candidates, by exact keys."""
    columns = index.candidates(queries, min(SPARE_SHARE * k, len(index.gallery)))
    named, place = np.unique(columns, return_inverse=True)
    rows = index.gallery.rows(named.clip(min=0))
    similarity = _candidate_keys(queries, rows, place.reshape(columns.shape))
    similarity[columns < 0] = -np.inf
    order = np.lexsort((columns, -similarity), axis=1)[:, :k]
    return Neighbours(np.take_along_axis(similarity, order, axis=1), np.take_along_axis(columns, order, axis=1))


def _rows(values: Any, name: str, normalize: bool) -> NDArray[np.float32]:
    rows = arrays.matrix(values, name)
    if normalize:
        return arrays.normalized(rows, name)
    arrays.check_unit_rows(rows, name)
    return rows


def by_all_keys(
    queries: NDArray[np.float32], gallery: NDArray[np.float32], which: NDArray[np.int64], k: int, own: bool
) -> Neighbours:
    """Neighbours of the queries numbered `which` from the exact keys of all pairs; with `own` but themselves."""
    grid = on_grid(gallery, steps_of(gallery, "cosine"))
    similarity, index = np.empty((len(which), k)), np.empty((len(which), k), dtype=np.int64)
    step = max(1, EXACT_BYTES // (8 * len(gallery)))
    for start in range(0, len(which), step):
        rows = which[start : start + step]
        asked = queries[rows]
        found = keys(on_grid(asked, steps_of(asked, "cosine")), grid, "cosine")
        if own:
            found[np.arange(len(rows)), rows] = -np.inf
        similarity[start : start + step], index[start : start + step] = _largest(found, k)
    return Neighbours(similarity, index)


def _largest(found: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The k largest of each row of `found` (B,N), descending, equal ones by ascending column."""
    if k == 1:
        nearest = found.argmax(axis=1)[:, None]
        return np.take_along_axis(found, nearest, axis=1), nearest
    last = -np.partition(-found, k - 1, axis=1)[:, k - 1 : k]
    similarity, index = np.empty((len(found), k)), np.empty((len(found), k), dtype=np.int64)
    for row, values in enumerate(found):
        columns = np.flatnonzero(values >= last[row])
        columns = columns[np.argsort(-values[columns], kind="stable")[:k]]
        similarity[row], index[row] = values[columns], columns
    return similarity, index


def devices() -> int:
    """Number of GPUs that faiss can search on."""
    import faiss

    return int(getattr(faiss, "get_num_gpus", int)())


def _by_faiss(queries: NDArray[np.float32], gallery: NDArray[np.float32], k: int, own: bool) -> Neighbours:
    import faiss

    wide = min(len(gallery), k + own + SPARE)
    index: Any = faiss.IndexFlatIP(gallery.shape[1])
    if devices() > 0 and wide <= GPU_LONGEST_LIST:
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    index.add(gallery)
    rough, columns = index.search(queries, wide)
    similarity, found = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    error = float32_error(gallery.shape[1], "cosine")
    unsure = []
    step = max(1, EXACT_BYTES // (8 * gallery.shape[1] * wide))
    for start in range(0, len(queries), step):
        part = slice(start, min(start + step, len(queries)))
        exact = _candidate_keys(queries[part], gallery, columns[part])
        if own:
            exact[columns[part] == np.arange(part.start, part.stop)[:, None]] = -np.inf
        order = np.lexsort((columns[part], -exact), axis=1)[:, :k]
        similarity[part] = np.take_along_axis(exact, order, axis=1)
        found[part] = np.take_along_axis(columns[part], order, axis=1)
        unsure.append(part.start + np.flatnonzero(similarity[part][:, -1] <= rough[part][:, -1] + error))
    again = np.concatenate(unsure) if wide < len(gallery) else np.array([], dtype=np.int64)
    if again.size:
        similarity[again], found[again] = by_all_keys(queries, gallery, again, k, own)
    return Neighbours(similarity, found)


def _candidate_keys(
    queries: NDArray[np.float32], gallery: NDArray[np.float32], columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    own = on_grid(queries, steps_of(queries, "cosine"))
    listed = gallery[columns.ravel()]
    found = on_grid(listed, steps_of(listed, "cosine")).reshape(*columns.shape, -1)
    return np.einsum("bm,bkm->bk", own, found)
