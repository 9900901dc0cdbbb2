"""Scan tiles of float32 products with numba, for ranks of right answers and lists of the nearest rows.

A float32 product is within

    w = gamma_M + 2^-BITS sqrt(M),  gamma_M = M u / (1 - M u), u = 2^-24

of the exact key of `keys` for any order of its additions (Higham 2002, section 3.1, rows at most 1 long; the second
term is the rounding to BITS places). So float32 ranks a wrong answer correctly if it is further than w from the exact
key of a right answer. For the few nearer ones the exact key is computed. The counts equal those of the float64 path.

A line holds one query's products with successive gallery rows. It is a row of a tile or, where each pair serves both of
its queries, a column, which is copied first. Most time goes into comparing lines with bounds. This is vectorised, with
counts in float32 to fill the vector lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

CHUNK, STRIP, FEW = 16, 128, 4
FLAGS = {"reassoc", "nsz", "contract"}


class Side(NamedTuple):
    """Hold queries or a gallery: `rows` (N,M) float32, `steps` (N,) of their grids, `shift` (N,), -|y|^2 / 2 or 0."""

    rows: Any
    steps: Any
    shift: Any


class Right(NamedTuple):
    """Hold the right answers of Q queries; those of a query start at its entry of `offsets`.

    Attributes:
        offsets: (Q+1,) into the other arrays.
        columns: (P,) gallery rows.
        exact: (P,) exact keys, descending within a query, and the float32 bounds `low` and `high` (P,) between which
            float32 cannot decide.
        above: (P,) number of wrong answers nearer than each, and `tied` (P,), exactly as near.
    """

    offsets: Any
    columns: Any
    exact: Any
    low: Any
    high: Any
    above: Any
    tied: Any


class Lists(NamedTuple):
    """Hold lists of the nearest gallery rows of Q queries.

    Attributes:
        near: (Q,W) float32 products, descending, and `near_rows` (Q,W).
        others: (Q,V) products of the nearest rows with another label, and `other_rows` (Q,V).
        reach: (Q,) product that must be exceeded to change a list.
        labels: (Q,) labels of the queries, and `gallery_labels` (N,).
    """

    near: Any
    near_rows: Any
    others: Any
    other_rows: Any
    reach: Any
    labels: Any
    gallery_labels: Any


class Task(NamedTuple):
    """Hold what a pass reads and adds to; a query must not find the rows `struck` (S,) from its `struck_offsets` on."""

    queries: Side
    gallery: Side
    right: Right
    lists: Lists
    struck_offsets: Any
    struck: Any


@njit(nogil=True, cache=True)
def read_row(x, steps, result):
    """Round row `x` (M,) to its grid and write it to `result` (M,) float64, in steps."""
    for m in range(x.shape[0]):
        result[m] = np.rint(np.float64(x[m]) * steps)


@njit(nogil=True, cache=True, fastmath=FLAGS)
def exact_product(x, y, steps):
    """Return the exact dot product, in steps of both rows, of `x` (M,) from `read_row` and a row `y` (M,)."""
    total = 0.0
    for m in range(x.shape[0]):
        total += x[m] * np.rint(np.float64(y[m]) * steps)
    return total


@njit(nogil=True, cache=True)
def exact_key(x, steps, side, j):
    """Return the key, as `keys.keys`, of a query `x` from `read_row`, with its `steps`, and row j of a side."""
    return exact_product(x, side.rows[j], side.steps[j]) / (steps * side.steps[j]) + side.shift[j]


@njit(nogil=True, cache=True)
def fill_bounds(task, start, stop, unit, error):
    """Fill in the exact keys and float32 bounds of the right answers of queries start..stop-1, nearest first.

    The bounds, rounded outwards, are `error` on either side of the exact key, in the `unit` of float32 keys.
    """
    right, x = task.right, np.empty(task.queries.rows.shape[1])
    for i in range(start, stop):
        s, e = right.offsets[i], right.offsets[i + 1]
        read_row(task.queries.rows[i], task.queries.steps[i], x)
        for p in range(s, e):
            right.exact[p] = exact_key(x, task.queries.steps[i], task.gallery, right.columns[p])
        right.exact[s:e] = np.sort(right.exact[s:e])[::-1]
        for p in range(s, e):
            key = (right.exact[p] + task.queries.shift[i]) * unit
            right.low[p] = np.nextafter(np.float32(key - error), np.float32(-np.inf))
            right.high[p] = np.nextafter(np.float32(key + error), np.float32(np.inf))


@njit(nogil=True, cache=True, fastmath=FLAGS)
def at_least(line, low, high):
    """Return how many entries of `line` (W,), W < 2^24, are >= low, and how many are >= high."""
    one, zero = np.float32(1), np.float32(0)
    some, sure = zero, zero
    for b in range(line.shape[0]):
        some += one if line[b] >= low else zero
        sure += one if line[b] >= high else zero
    return np.int64(some), np.int64(sure)


@njit(nogil=True, cache=True, fastmath=FLAGS)
def place_between(line, low, high):
    """Return the sum of the places in `line` (W,) with low <= entry < high: the place itself if there is one."""
    place = np.float32(0)
    for b in range(line.shape[0]):
        place += np.float32(b) if (line[b] >= low) & (line[b] < high) else np.float32(0)
    return np.int64(place)


@njit(nogil=True, cache=True)
def settle(values, rows, p, query, task):
    """Compare by exact keys the `values` (W,), products with `rows` (W,), that float32 cannot tell from positive p.

    `query` is the query's row from `read_row`, and its steps.
    """
    right = task.right
    low, high = right.low[p], right.high[p]
    for start in range(0, values.shape[0], STRIP):
        strip = values[start : start + STRIP]
        some, sure = at_least(strip, low, high)
        if some == sure:
            continue
        one = some - sure == 1
        first = place_between(strip, low, high) if one else 0
        for b in range(first, first + 1 if one else strip.shape[0]):
            if (strip[b] >= low) & (strip[b] < high):
                key = exact_key(query[0], query[1], task.gallery, rows[start + b])
                right.above[p] += key > right.exact[p]
                right.tied[p] += key == right.exact[p]


@njit(nogil=True, cache=True)
def count_line(values, rows, x, i, task):
    """Add products `values` (W,) of query i with gallery `rows` (W,) to the counts of its right answers.

    The farthest right answer comes first. A product that does not reach it reaches no nearer one; where few products
    reach it, the others are dropped. Overwrites `values`, `rows` and the scratch `x` (M,).
    """
    right, steps = task.right, task.queries.steps[i]
    count, read = values.shape[0], False
    for p in range(right.offsets[i + 1] - 1, right.offsets[i] - 1, -1):
        some, sure = at_least(values[:count], right.low[p], right.high[p])
        if some == 0:
            break
        right.above[p] += sure
        if some > sure:
            if not read:
                read_row(task.queries.rows[i], steps, x)
                read = True
            settle(values[:count], rows[:count], p, (x, steps), task)
        if 2 * some < count and p - right.offsets[i] > FEW:
            kept = 0
            for b in range(count):
                values[kept], rows[kept] = values[b], rows[b]
                kept += values[b] >= right.low[p]
            count = kept


@njit(nogil=True, cache=True)
def strike(line, first, columns):
    """Set the gallery rows `columns` to -inf in a line that begins at row `first`."""
    for p in range(columns.shape[0]):
        b = columns[p] - first
        if 0 <= b < line.shape[0]:
            line[b] = -np.inf


@njit(nogil=True, cache=True)
def enter(keys, rows, value, row):
    """Insert `row` by its `value` in a list (W,)."""
    p = keys.shape[0] - 1
    while p > 0 and keys[p - 1] < value:
        keys[p], rows[p] = keys[p - 1], rows[p - 1]
        p -= 1
    keys[p], rows[p] = value, row


@njit(nogil=True, cache=True)
def list_line(line, first, i, lists):
    """Enter the products `line` (W,) of query i with gallery rows from `first` on in its lists."""
    for b in range(line.shape[0]):
        value, j = line[b], first + b
        if value <= lists.reach[i]:
            continue
        if value > lists.near[i, -1]:
            enter(lists.near[i], lists.near_rows[i], value, j)
        lists.reach[i] = lists.near[i, -1]
        if lists.others.shape[1] > 0:
            if value > lists.others[i, -1] and lists.labels[i] != lists.gallery_labels[j]:
                enter(lists.others[i], lists.other_rows[i], value, j)
            lists.reach[i] = min(lists.reach[i], lists.others[i, -1])


@njit(nogil=True, cache=True)
def scan_line(line, first, i, task, space):
    """Enter a line of query i in its lists and add it to its counts; overwrites the line and `space` (`space_for`)."""
    right, lists, (rows, x) = task.right, task.lists, space
    strike(line, first, task.struck[task.struck_offsets[i] : task.struck_offsets[i + 1]])
    if lists.near.shape[1] > 0 and at_least(line, lists.reach[i], lists.reach[i])[0] > 0:
        list_line(line, first, i, lists)
    s, e = right.offsets[i], right.offsets[i + 1]
    strike(line, first, right.columns[s:e])
    if s < e and at_least(line, right.low[e - 1], right.low[e - 1])[0] > 0:
        for b in range(line.shape[0]):
            rows[b] = first + b
        count_line(line, rows, x, i, task)


@njit(nogil=True, cache=True)
def space_for(width, task):
    """Return scratch for lines of at most `width` entries: gallery rows, and a query on its grid."""
    return np.empty(width, dtype=np.int32), np.empty(task.gallery.rows.shape[1])


@njit(nogil=True, cache=True)
def scan_columns(tile, row, column, task):
    """Scan the columns of a tile, products with the gallery rows from `row` on, as lines of the queries from `column`.

    Columns are copied CHUNK at a time. Rows of the copy are padded so that they fall into different sets of a cache.
    """
    space = space_for(tile.shape[0], task)
    lines = np.empty((CHUNK, tile.shape[0] + CHUNK), dtype=np.float32)
    for start in range(0, tile.shape[1], CHUNK):
        width = min(CHUNK, tile.shape[1] - start)
        for a in range(tile.shape[0]):
            for b in range(width):
                lines[b, a] = tile[a, start + b]
        for b in range(width):
            scan_line(lines[b][: tile.shape[0]], row, column + start + b, task, space)


@njit(nogil=True, cache=True)
def scan_rows(tile, row, column, task):
    """Scan the rows of a tile, products of the queries from `row` on with the gallery rows from `column` on."""
    space = space_for(tile.shape[1], task)
    for a in range(tile.shape[0]):
        scan_line(tile[a], column, row + a, task, space)


@njit(nogil=True, cache=True)
def rescore(side, indices, similarity):
    """Write to `similarity` the exact keys (N,W) of each row of a side with the rows `indices`; -inf where it is -1."""
    x = np.empty(side.rows.shape[1])
    for i in range(indices.shape[0]):
        read_row(side.rows[i], side.steps[i], x)
        for p in range(indices.shape[1]):
            j = indices[i, p]
            similarity[i, p] = exact_key(x, side.steps[i], side, j) if j >= 0 else -np.inf
