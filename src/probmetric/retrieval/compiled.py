"""Search with compiled code on CPUs: tiles, threads, memory.

Each worker thread multiplies one tile at a time with a single-threaded BLAS and scans it (`kernels`). If rows are
searched among themselves, the similarity matrix is symmetric: only tiles on and above the diagonal are computed, and
each serves its rows and its columns. Counts are integers, and one thread at a time adds to those of a query, so neither
threads nor tile size change them. The lists of nearest rows (`Lists`) read the same tiles. Memory: a tile per thread,
about 50 bytes per right answer (beyond `PAIRS` answers, queries come in parts) and 400 bytes a row for lists of ten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles, Floats, Ints
from probmetric.metrics.ranked import Counts, query_spans
from probmetric.retrieval import kernels
from probmetric.retrieval.keys import BITS, float32_error, squared_norms, steps_of
from probmetric.retrieval.problem import Problem, struck_rows
from probmetric.retrieval.relation import SparseRelation

TILE = 1024
PAIRS = 1 << 20
SPARE = 4


def compiled_counts(
    problem: Problem, tile: int | None = None, threads: int | None = None, lists: Lists | None = None
) -> Iterator[Counts]:
    """Yield counts of the queries of `problem` (cosine or Euclidean), all at once or some thousands at a time.

    `lists` of the same rows by cosine see every tile too; they are complete after the last counts.
    """
    blas = ThreadpoolController().select(user_api="blas")
    workers = threads or max((library["num_threads"] for library in blas.info()), default=1)
    gallery = _side(problem.gallery, str(problem.distance))
    same = problem.queries is problem.gallery
    queries = gallery if same else _side(problem.queries, str(problem.distance))
    unit = (min(queries.steps.min(), gallery.steps.min()) / 2.0**BITS) ** 2
    error = float32_error(problem.gallery.shape[1], str(problem.distance))
    factor = 0.0 if problem.distance == "cosine" else unit
    with blas.limit(limits=1), ThreadPoolExecutor(workers) as pool:
        for start, stop in query_spans(problem.relation.counts, PAIRS):
            task = _task(problem, (queries, gallery), slice(start, stop), lists)
            spans = pairwise(np.linspace(0, stop - start, 65).astype(np.int64))
            list(pool.map(lambda span, task=task: kernels.fill_bounds(task, span[0], span[1], unit, error), spans))
            scan = _Scan(task, tile or TILE, same and stop - start == len(queries.rows), factor)
            list(pool.map(lambda place, scan=scan: scan.tile(*place), scan.places()))
            yield Counts(start, stop, task.right.offsets, task.right.above, task.right.tied)


def _side(rows: Floats, distance: str) -> kernels.Side:
    steps = steps_of(rows, distance)
    shift = -squared_norms(rows, steps) / 2 if distance == "euclidean" else np.zeros(len(rows))
    return kernels.Side(rows, steps, shift)


def _task(problem: Problem, sides: tuple[kernels.Side, kernels.Side], part: slice, lists: Lists | None) -> kernels.Task:
    """Return the task of a part of the queries, with empty bounds and counts of 0."""
    queries, gallery = sides
    offsets, columns = problem.relation.block(part.start, part.stop)
    bounds, counts = np.empty((2, len(columns)), dtype=np.float32), np.zeros((2, len(columns)), dtype=np.int64)
    return kernels.Task(
        kernels.Side(queries.rows[part], queries.steps[part], queries.shift[part]),
        gallery,
        kernels.Right(offsets, columns, np.empty(len(columns)), bounds[0], bounds[1], counts[0], counts[1]),
        (lists or Lists(gallery.rows[:0], None, 0)).part(part),
        *problem.struck.block(part.start, part.stop),
    )


class _Scan:
    """Multiply and scan the tiles of a task, each in one thread.

    Euclidean float32 keys are products times `factor` plus both shifts: -|x-y|^2 / 2 in units of the largest norm.
    """

    def __init__(self, task: kernels.Task, size: int, symmetric: bool, factor: float) -> None:
        self.task, self.size, self.symmetric = task, size, symmetric
        self.factor = np.float32(factor)
        self.shift_q = (task.queries.shift * factor).astype(np.float32)
        self.shift_g = (task.gallery.shift * factor).astype(np.float32)
        self.locks = [threading.RLock() for _ in range(0, len(task.queries.rows), size)]

    def places(self) -> list[tuple[int, int]]:
        """Return rows and columns where tiles begin; successive ones of a symmetric scan seldom share either."""
        count, width = len(self.task.queries.rows), len(self.task.gallery.rows)
        if not self.symmetric:
            return [(row, column) for row in range(0, count, self.size) for column in range(0, width, self.size)]
        return [(row, row + gap) for gap in range(0, count, self.size) for row in range(0, count - gap, self.size)]

    def tile(self, row: int, column: int) -> None:
        """Multiply and scan the tile that begins at this row and column; locks keep other threads off its queries."""
        here, there = slice(row, row + self.size), slice(column, column + self.size)
        products = arrays.products(self.task.queries.rows[here], self.task.gallery.rows[there])
        if self.factor:
            products *= self.factor
            products += self.shift_q[here, None] + self.shift_g[there]
        if self.symmetric and column > row:
            with self.locks[column // self.size]:
                kernels.scan_columns(products, row, column, self.task)
        with self.locks[row // self.size]:
            kernels.scan_rows(products, row, column, self.task)


class Listed(NamedTuple):
    """Hold the first k of N lists: exact `cosines` (N,k), descending, and gallery `rows` (N,k), equal ones ascending.

    Where `sure` (N,) is False, other rows could belong in the list.
    """

    cosines: Doubles
    rows: Ints
    sure: Bools


class Lists:
    """Collect candidates for the k nearest of unit `rows` (N,M) among themselves, and for the nearest of another class.

    `labels` (N,) are the classes; without them, or where all are equal, the lists of other classes are empty.
    """

    def __init__(self, rows: Floats, labels: Ints | None, k: int) -> None:
        self._rows, self._k = rows, k
        classes = np.zeros(len(rows), dtype=np.int64) if labels is None else labels
        foreign = len(rows) - int(np.unique(classes, return_counts=True)[1].max(initial=0))
        near, others = _empty(len(rows), min(k + SPARE, len(rows))), _empty(len(rows), min(1 + SPARE, foreign))
        reach = np.full(len(rows), -np.inf, dtype=np.float32)
        self._arrays = kernels.Lists(near[0], near[1], others[0], others[1], reach, classes, classes)

    def part(self, queries: slice) -> kernels.Lists:
        """Return the arrays of some queries, for kernels to add to."""
        near, near_rows, others, other_rows, reach, labels = (values[queries] for values in self._arrays[:-1])
        return kernels.Lists(near, near_rows, others, other_rows, reach, labels, self._arrays.gallery_labels)

    def nearest(self) -> Listed:
        """Return the k nearest of each row."""
        return self._listed(self._arrays.near, self._arrays.near_rows, self._k)

    def nearest_of_others(self) -> Listed:
        """Return the nearest row of another class than each row's own; (N,0) where all rows are of one class."""
        return self._listed(self._arrays.others, self._arrays.other_rows, 1)

    def _listed(self, rough: Floats, indices: NDArray[np.int32], k: int) -> Listed:
        exact = np.empty(rough.shape)
        kernels.rescore(_side(self._rows, "cosine"), indices, exact)
        order = np.lexsort((indices, -exact), axis=1)[:, :k]
        cosines = np.take_along_axis(exact, order, axis=1)
        least = rough[:, -1:] + float32_error(self._rows.shape[1], "cosine")
        rows = np.take_along_axis(indices, order, axis=1).astype(np.int64)
        whole = rough[:, -1:] == -np.inf  # the list holds all rows that can be found
        return Listed(cosines, rows, np.all((cosines[:, -1:] > least) | whole, axis=1))


def _empty(rows: int, width: int) -> tuple[Floats, NDArray[np.int32]]:
    return np.full((rows, width), -np.inf, dtype=np.float32), np.full((rows, width), -1, dtype=np.int32)


def searched_lists(rows: Floats, struck: SparseRelation, k: int) -> Lists:
    """Return lists of k nearest that saw every pair of unit `rows` (N,M) except those `struck`."""
    lists = Lists(rows, None, k)
    nothing = struck_rows(None, None, (len(rows), len(rows)))
    for _ in compiled_counts(Problem(rows, rows, nothing, struck), lists=lists):
        pass
    return lists
