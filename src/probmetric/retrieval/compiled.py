"""The compiled search engine for CPUs: tiles, threads, memory.

Each worker thread multiplies one tile at a time with a single-threaded BLAS and scans it (`kernels`). In self-retrieval
by labels the similarity matrix is symmetric and only tiles on and above the diagonal are made, each serving its rows
and its columns. Counts are integers and are added under a lock, so neither threads nor tile size change them. The lists
of nearest rows (`Lists`) read the same tiles. Memory: a tile per thread, about 90 bytes per positive pair (beyond
`PAIRS` of those, queries are taken a part at a time) and about 400 bytes a row for lists of ten neighbours.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from probmetric.metrics.ranked import Counts, query_spans
from probmetric.retrieval import kernels
from probmetric.retrieval.keys import BITS, float32_error, on_grid, squared_norms, steps_of
from probmetric.retrieval.problem import Problem
from probmetric.retrieval.relation import LabelRelation

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
TILE = 1024
PAIRS = 1 << 20
UNDECIDED = 16
SAMPLE, CROWDED = 256, 0.1
SPARE = 4


@dataclass
class _Task:
    """Arrays the kernels read, and the counts they add to.

    `search` and `bounds` as in `kernels.count_rows`. Euclidean float32 keys are products times `factor` plus both
    `filter` shifts, that is -|x-y|^2 / 2 in units of the largest norm.
    """

    queries: Floats
    gallery: Floats
    own: Ints
    offsets: Ints
    columns: Ints
    factor: np.float32
    filter_q: Floats
    filter_g: Floats
    search: tuple[Any, ...]
    bounds: tuple[Any, ...]
    above: Ints
    tied: Ints
    symmetric: bool
    start: int
    lists: Lists | None


def compiled_counts(
    problem: Problem, tile: int | None = None, threads: int | None = None, lists: Lists | None = None
) -> Iterator[Counts]:
    """Yield counts of the queries of `problem` (cosine or Euclidean), all at once or some thousands at a time.

    `lists`, of the same rows by cosine, are offered every tile; they are whole after the last of the counts.
    """
    size = tile or _even_tile(len(problem.gallery))
    with one_blas_thread() as available, ThreadPoolExecutor(threads or available) as pool:
        gallery = _side(problem.gallery, str(problem.distance))
        same = problem.queries is problem.gallery
        queries = gallery if same else _side(problem.queries, str(problem.distance))
        for start, stop in query_spans(problem.relation.counts, PAIRS):
            task = _prepare(problem, (queries, gallery), start, stop, pool, lists)
            lock, local = threading.Lock(), threading.local()
            run_all(pool, [(_tile, task, *place, size, lock, local) for place in _grid(task, size)])
            yield Counts(start, stop, task.offsets, task.above, task.tied)


def _even_tile(rows: int) -> int:
    """Side of a tile of at most `TILE`, so that those at the edges are about as large as the others."""
    tiles = -(-rows // TILE)
    return -(-rows // (tiles * kernels.CHUNK)) * kernels.CHUNK


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Hold BLAS to one thread and give the number it had."""
    blas = ThreadpoolController().select(user_api="blas")
    available = max((library["num_threads"] for library in blas.info()), default=1)
    with blas.limit(limits=1):
        yield available


def _grid(task: _Task, size: int) -> Iterator[tuple[int, int]]:
    if task.symmetric:
        yield from diagonals(len(task.queries), size)
        return
    for rows in range(0, len(task.queries), size):
        for cols in range(0, len(task.gallery), size):
            yield rows, cols


def diagonals(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Rows and columns at which the tiles on and above the diagonal begin; successive tiles seldom share either."""
    for gap in range(0, count, size):
        for start in range(0, count - gap, size):
            yield start, start + gap


@dataclass(frozen=True)
class _Side:
    """Queries or gallery: rows, steps of their grids, what is added to products with them (-|y|^2 / 2, or 0)."""

    rows: Floats
    steps: Doubles
    shift: Doubles


def _side(rows: Floats, distance: str) -> _Side:
    steps = steps_of(rows, distance)
    shift = -squared_norms(rows, steps) / 2 if distance == "euclidean" else np.zeros(len(rows))
    return _Side(rows, steps, shift)


def _prepare(
    problem: Problem,
    sides: tuple[_Side, _Side],
    start: int,
    stop: int,
    pool: ThreadPoolExecutor,
    lists: Lists | None,
) -> _Task:
    """The task of queries start..stop-1: exact keys of their positives, in order, and empty counts."""
    distance, part = str(problem.distance), slice(start, stop)
    queries, gallery = sides
    offsets, columns = problem.relation.block(start, stop)
    exact = np.empty(len(columns))
    search = (queries.rows[part], gallery.rows, queries.steps[part], gallery.steps, gallery.shift)
    spans = list(itertools.pairwise(np.linspace(0, stop - start, 65).astype(np.int64)))
    run_all(pool, [(kernels.exact_thresholds, search, offsets, columns, *span, exact) for span in spans])
    unit = (min(queries.steps.min(), gallery.steps.min()) / 2.0**BITS) ** 2
    shift, error = queries.shift[part], float32_error(gallery.rows.shape[1], distance)
    low, high = np.empty(len(exact), dtype=np.float32), np.empty(len(exact), dtype=np.float32)
    bounds = (offsets, low, high, exact, np.empty(0, dtype=np.int16))
    run_all(pool, [(kernels.fill_bounds, bounds, *span, shift, unit, error) for span in spans])
    if _crowded(search, shift, unit, offsets, low):
        bounds = (*bounds[:-1], np.empty(kernels.CELLS * len(exact), dtype=np.int16))
        run_all(pool, [(kernels.fill_tables, bounds, *span) for span in spans])
    whole = stop - start == len(problem.queries)
    return _Task(
        queries=queries.rows[part],
        gallery=gallery.rows,
        own=problem.itself(start, stop),
        offsets=offsets,
        columns=columns,
        factor=np.float32(0 if distance == "cosine" else unit),
        filter_q=(shift * unit).astype(np.float32),
        filter_g=(gallery.shift * unit).astype(np.float32),
        search=search,
        bounds=bounds,
        above=np.zeros(len(columns), dtype=np.int64),
        tied=np.zeros(len(columns), dtype=np.int64),
        symmetric=whole and queries is gallery and isinstance(problem.relation, LabelRelation),
        start=start,
        lists=lists,
    )


def _crowded(search: tuple[Any, ...], shift: Doubles, unit: float, offsets: Ints, low: Floats) -> bool:
    """Whether so many entries of a line reach its farthest positive that tables pay, judged by some of the pairs."""
    asked = np.flatnonzero(np.diff(offsets))[:: max(1, len(shift) // SAMPLE)]
    queries, gallery, _steps_q, _steps_g, shift_g = search
    some = slice(None, None, max(1, len(gallery) // SAMPLE))
    keys = (queries[asked] @ gallery[some].T + shift[asked, None] + shift_g[some]) * unit
    return bool(keys.size) and float((keys >= low[offsets[asked + 1] - 1, None]).mean()) > CROWDED


def run_all(pool: ThreadPoolExecutor, calls: list[tuple[Any, ...]]) -> None:
    """Run calls, each a function and its arguments, in the pool; the first error is raised."""
    for job in [pool.submit(function, *arguments) for function, *arguments in calls]:
        job.result()


def _tile(task: _Task, rows: int, cols: int, size: int, lock: threading.Lock, local: threading.local) -> None:
    """Multiply and scan the tile whose first row is `rows` and first column `cols`."""
    bottom, right = min(rows + size, len(task.queries)), min(cols + size, len(task.gallery))
    shape = (bottom - rows, right - cols)
    if not hasattr(local, "tile"):
        local.tile = np.empty(size * size, dtype=np.float32)
        local.space = (
            np.empty((kernels.CHUNK, size + 1), dtype=np.float32),
            np.empty((kernels.CHUNK, size + 1), dtype=np.int64),
            (
                np.empty(int(np.diff(task.offsets).max()) + 1, dtype=np.int64),
                np.empty(size + 1, dtype=np.int64),
                np.empty(task.gallery.shape[1]),
            ),
        )
    tile = local.tile[: shape[0] * shape[1]].reshape(shape)
    np.matmul(task.queries[rows:bottom], task.gallery[cols:right].T, out=tile)
    if task.factor:
        kernels.shift_products(tile, rows, cols, task.factor, task.filter_q, task.filter_g)
    twice = task.symmetric and cols > rows
    if task.lists is not None:
        task.lists.offer(tile, task.start + rows, cols, twice)
    kernels.mask(tile, rows, cols, task.own, task.offsets, task.columns)
    counted = (task.search, task.bounds)
    patience = tile.size // UNDECIDED
    own = _empty_counts(task, rows, bottom)
    decided = kernels.count_rows(tile, rows, cols, *counted, own, local.space, patience)
    other = _empty_counts(task, cols, right) if twice else own
    if decided and twice:
        decided = kernels.count_columns(tile, rows, cols, *counted, other, local.space, patience)
    if not decided:
        own, other = _exact_tile(task, (rows, bottom), (cols, right), twice, local.space[2][0])
    _add(task, rows, bottom, *own, lock)
    if twice:
        _add(task, cols, right, *other, lock)


def _exact_tile(
    task: _Task, rows: tuple[int, int], cols: tuple[int, int], twice: bool, bins: Ints
) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Counts of the tile's rows and, if `twice`, columns by float64 products, where float32 decides too little."""
    queries, gallery, steps_q, steps_g, shift_g = task.search
    here, there = slice(*rows), slice(*cols)
    products = on_grid(queries[here], steps_q[here]) @ on_grid(gallery[there], steps_g[there]).T
    kernels.mask(products, rows[0], cols[0], task.own, task.offsets, task.columns)
    own = _empty_counts(task, *rows)
    kernels.count_exact_rows(products + shift_g[there], rows[0], task.bounds, own, bins)
    if not twice:
        return own, own
    other = _empty_counts(task, *cols)
    kernels.count_exact_rows(np.ascontiguousarray(products.T) + shift_g[here], cols[0], task.bounds, other, bins)
    return own, other


def _empty_counts(task: _Task, start: int, stop: int) -> tuple[Ints, Ints]:
    count = int(task.offsets[stop] - task.offsets[start])
    return np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)


def _add(task: _Task, start: int, stop: int, above: Ints, tied: Ints, lock: threading.Lock) -> None:
    mine = slice(task.offsets[start], task.offsets[stop])
    with lock:
        task.above[mine] += above
        task.tied[mine] += tied


class Listed(NamedTuple):
    """The first of N lists: exact `cosines` (N,k), descending, and gallery `rows` (N,k), equal ones ascending.

    Where not `sure` (N,), others could belong among them.
    """

    cosines: Doubles
    rows: Ints
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
            kernels.offer(tile, row, column, twice, self._labels, self._reach, *self._near, *self._others)

    def nearest(self) -> Listed:
        """Return the k nearest of each row."""
        listed = self._listed(*self._near, self._k)
        whole = self._near[0].shape[1] == len(self._rows) - 1
        return listed._replace(sure=listed.sure | whole)

    def nearest_of_others(self) -> Listed:
        """Return the nearest of another class than the row's; (N,0) where all are of one."""
        return self._listed(*self._others, min(1, self._others[0].shape[1]))

    def _listed(self, rough: Floats, indices: NDArray[np.int32], k: int) -> Listed:
        exact = np.empty(rough.shape)
        kernels.rescore(self._rows, steps_of(self._rows, "cosine"), indices, exact)
        order = np.lexsort((indices, -exact), axis=1)[:, :k]
        cosines = np.take_along_axis(exact, order, axis=1)
        least = rough[:, -1:] + float32_error(self._rows.shape[1], "cosine")
        rows = np.take_along_axis(indices, order, axis=1).astype(np.int64)
        return Listed(cosines, rows, np.all(cosines[:, -1:] > least, axis=1))


def _empty(rows: int, width: int) -> tuple[Floats, NDArray[np.int32]]:
    return np.full((rows, width), -np.inf, dtype=np.float32), np.full((rows, width), -1, dtype=np.int32)


def searched_lists(rows: Floats, labels: Ints | None, k: int, tile: int | None = None) -> Lists:
    """Return lists that saw every pair of `rows` (N,M), with `labels` (N,) and `k` as of `Lists`."""
    lists, size = Lists(rows, labels, k), tile or TILE
    with one_blas_thread() as available, ThreadPoolExecutor(available) as pool:
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
