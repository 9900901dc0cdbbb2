"""The nearest of every row among the others, and the nearest of another class, from tiles of one symmetric product.

Tiles of float32 similarities on and above the diagonal serve their rows and their columns. A row keeps short lists of
its best candidates and the value that an entry must exceed to enter one; past the first tiles few do, and a vectorised
comparison passes over the rest. Candidates are put in order by their exact keys (see `_keys`). What entered no list is
at most float32's error above the list's last entry; a list that this does not prove right is not `sure`.
Memory: a tile per thread, and about 400 bytes a row for ten neighbours.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from probmetric.retrieval._compiled import FLAGS, exact_key, read_row
from probmetric.retrieval._keys import float32_error, steps_of
from probmetric.retrieval._ranks_compiled import TILE, blas_threads, diagonals, run_all

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
SPARE = 4
STRIP = 64


class Listed(NamedTuple):
    """The first of N lists: exact `similarity` (N,k), descending, `indices` (N,k), equal ones by ascending row.

    Where not `sure` (N,), others could belong among them.
    """

    similarity: Doubles
    indices: Ints
    sure: Bools


class Lists:
    """Candidates for the k nearest of each of unit `rows` (N,M) among the others, and for the nearest of another class.

    `labels` (N,) are the classes; without them, or where all are equal, the lists of other classes have no place.
    """

    def __init__(self, rows: Floats, labels: Ints | None, k: int) -> None:
        self._rows, self._k = rows, k
        self._labels = np.zeros(len(rows), dtype=np.int64) if labels is None else labels
        foreign = len(rows) - int(np.unique(self._labels, return_counts=True)[1].max())
        self._near = _empty(len(rows), min(k + SPARE, len(rows) - 1))
        self._others = _empty(len(rows), min(1 + SPARE, foreign))
        self._reach = np.full(len(rows), -np.inf, dtype=np.float32)
        self._locks: dict[int, threading.RLock] = {}

    def offer(self, tile: Floats, row: int, column: int, twice: bool) -> None:
        """Enter the products `tile` (H,W) of the rows from `row` on with those from `column` on.

        With `twice` each pair is entered at both its ends. Every pair is offered once to an end; tiles that begin at
        different rows have none in common.
        """
        first = self._locks.setdefault(row, threading.RLock())
        second = self._locks.setdefault(column, threading.RLock()) if twice else first
        with first, second:
            _offer(tile, row, column, twice, self._labels, self._reach, *self._near, *self._others)

    def nearest(self) -> Listed:
        """The k nearest of each row."""
        found = self._listed(*self._near, self._k)
        whole = self._near[0].shape[1] == len(self._rows) - 1
        return found._replace(sure=found.sure | whole)

    def nearest_of_others(self) -> Listed:
        """The nearest of another class than the row's; (N,0) where all are of one."""
        return self._listed(*self._others, min(1, self._others[0].shape[1]))

    def _listed(self, rough: Floats, indices: NDArray[np.int32], k: int) -> Listed:
        similarity = np.empty(rough.shape)
        _rescore(self._rows, steps_of(self._rows, "cosine"), indices, similarity)
        order = np.lexsort((indices, -similarity), axis=1)[:, :k]
        best = np.take_along_axis(similarity, order, axis=1)
        least = rough[:, -1:] + float32_error(self._rows.shape[1], "cosine")
        found = np.take_along_axis(indices, order, axis=1).astype(np.int64)
        return Listed(best, found, np.all(best[:, -1:] > least, axis=1))


def _empty(rows: int, width: int) -> tuple[Floats, NDArray[np.int32]]:
    return np.full((rows, width), -np.inf, dtype=np.float32), np.full((rows, width), -1, dtype=np.int32)


def searched_lists(rows: Floats, labels: Ints | None, k: int, tile: int | None = None) -> Lists:
    """Lists that saw every pair of `rows` (N,M), as (N,) `labels` and `k` of `Lists`."""
    lists, size = Lists(rows, labels, k), tile or TILE
    with blas_threads() as (available, limited), ThreadPoolExecutor(available if limited else 1) as pool:
        local = threading.local()
        run_all(pool, [(_product, lists, rows, *place, size, local) for place in diagonals(len(rows), size)])
    return lists


def _product(lists: Lists, rows: Floats, row: int, column: int, size: int, local: threading.local) -> None:
    left, right = rows[row : row + size], rows[column : column + size]
    if not hasattr(local, "space"):
        local.space = np.empty(size * size, dtype=np.float32)
    tile = local.space[: len(left) * len(right)].reshape(len(left), len(right))
    np.matmul(left, right.T, out=tile)
    lists.offer(tile, row, column, column > row)


@njit(nogil=True, cache=True, fastmath=FLAGS)
def _any_above(line, bound, bounds, twice):
    """Whether an entry of `line` (W,) exceeds `bound` or, with `twice`, its own of `bounds` (W,)."""
    one, zero = np.float32(1), np.float32(0)
    count = zero
    if twice:
        for b in range(line.shape[0]):
            count += one if line[b] > min(bound, bounds[b]) else zero
    else:
        for b in range(line.shape[0]):
            count += one if line[b] > bound else zero
    return count > zero


@njit(nogil=True, cache=True)
def _enter(i, j, value, keys, rows):
    """Put row j at its place, by `value`, in the list of row i."""
    p = keys.shape[1] - 1
    while p > 0 and keys[i, p - 1] < value:
        keys[i, p] = keys[i, p - 1]
        rows[i, p] = rows[i, p - 1]
        p -= 1
    keys[i, p] = value
    rows[i, p] = j


@njit(nogil=True, cache=True)
def _consider(i, j, value, labels, reach, near, near_rows, others, other_rows):
    """Enter row j in the lists of row i that it belongs to, and say what the next one must exceed."""
    if value > near[i, -1]:
        _enter(i, j, value, near, near_rows)
    reach[i] = near[i, -1]
    if others.shape[1] > 0:
        if value > others[i, -1] and labels[i] != labels[j]:
            _enter(i, j, value, others, other_rows)
        reach[i] = min(reach[i], others[i, -1])


@njit(nogil=True, cache=True)
def _offer(tile, row, column, twice, labels, reach, near, near_rows, others, other_rows):
    """See `Lists.offer`."""
    for a in range(tile.shape[0]):
        i = row + a
        for start in range(0, tile.shape[1], STRIP):
            part = tile[a, start : start + STRIP]
            j = column + start
            if not _any_above(part, reach[i], reach[j : j + part.shape[0]], twice):
                continue
            for b in range(part.shape[0]):
                if part[b] > reach[i] and i != j + b:
                    _consider(i, j + b, part[b], labels, reach, near, near_rows, others, other_rows)
                if twice and part[b] > reach[j + b]:
                    _consider(j + b, i, part[b], labels, reach, near, near_rows, others, other_rows)


@njit(nogil=True, cache=True)
def _rescore(rows, steps, indices, similarity):
    """Exact keys (N,W), equal to those of `_keys.keys`, of each row with those at `indices` (N,W)."""
    x = np.empty(rows.shape[1])
    for i in range(indices.shape[0]):
        read_row(rows[i], steps[i], x)
        for p in range(indices.shape[1]):
            j = indices[i, p]
            similarity[i, p] = exact_key(x, steps[i], rows[j], steps[j], 0.0)
