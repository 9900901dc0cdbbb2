"""Counts of negatives above each positive, from float32 tiles, for large problems (compiled by numba).

A tile of similarities comes from one float32 matrix product. Such a product is within

    w = gamma_M + 2^-BITS sqrt(M),  gamma_M = M u / (1 - M u), u = 2^-24

of the exact key of `keys` for any order of its additions (Higham 2002, section 3.1, rows at most 1 long; the second
term is the reading to BITS places). A negative further than w from a positive's exact key is therefore on the right
side of it; for the few nearer ones the exact key is computed. The counts are those of the float64 path, to the last.

Where near-ties are the rule, as in a collapsed embedding, the tile is multiplied again in float64 on the grids of
`keys`, which is exact, and counted without a margin.

Of a line (a row of a tile, and a column where each pair serves both of its ends) only the entries that reach the line's
farthest positive matter. They are found by a vectorised comparison, and placed among the positives by bisection.
"""

from __future__ import annotations

import numpy as np
from numba import njit

CHUNK = 16
CELLS = 16
FEW = 128
STRIP = 64
FLAGS = {"reassoc", "nsz", "contract"}


@njit(nogil=True, cache=True)
def read_row(x, steps, result):
    """Row `x` (M,) read to its grid of `steps` to 1, in steps, into `result` (M,) float64."""
    for m in range(x.shape[0]):
        result[m] = np.rint(np.float64(x[m]) * steps)


@njit(nogil=True, cache=True, fastmath=FLAGS)
def exact_product(x, y, steps):
    """Dot product, in steps of both, of `x` (M,) from `read_row` and a row `y` (M,); exact in any order."""
    total = 0.0
    for m in range(x.shape[0]):
        total += x[m] * np.rint(np.float64(y[m]) * steps)
    return total


@njit(nogil=True, cache=True)
def exact_key(x, step_x, y, step_y, shift_y):
    """Key of a query, read as `x` (M,), against a gallery row `y` (M,); equal to that of `keys.keys`."""
    return exact_product(x, y, step_y) / (step_x * step_y) + shift_y


@njit(nogil=True, cache=True, fastmath=FLAGS)
def sort_descending(keys, space):
    """Sort `keys` (P,), P <= FEW, in place, by counting for each how many come before it; `space` (P,) is scratch.

    Counts in float64 fill the vector lanes and leave no branch to be mispredicted.
    """
    for p in range(keys.shape[0]):
        value, before = keys[p], 0.0
        for q in range(keys.shape[0]):
            before += 1.0 if keys[q] > value else 0.0
        for q in range(p):
            before += 1.0 if keys[q] == value else 0.0
        space[np.int64(before)] = value
    keys[:] = space[: keys.shape[0]]


@njit(nogil=True, cache=True)
def exact_thresholds(search, offsets, columns, start, stop, result):
    """Exact keys (flat) of the positives, gallery rows `columns` (flat), of queries start..stop-1, descending."""
    queries, gallery, steps_q, steps_g, shift_g = search
    x, space = np.empty(queries.shape[1]), np.empty(FEW)
    for i in range(start, stop):
        read_row(queries[i], steps_q[i], x)
        s, e = offsets[i], offsets[i + 1]
        for p in range(s, e):
            j = columns[p]
            result[p] = exact_key(x, steps_q[i], gallery[j], steps_g[j], shift_g[j])
        if e - s <= FEW:
            sort_descending(result[s:e], space)
        else:
            result[s:e] = np.sort(result[s:e])[::-1]


@njit(nogil=True, cache=True, fastmath=FLAGS)
def at_least(line, bound):
    """Number of entries of `line` (W,), W < 2^24, that are >= bound; counted in float32 to fill the vector lanes."""
    one, zero = np.float32(1), np.float32(0)
    count = zero
    for j in range(line.shape[0]):
        count += one if line[j] >= bound else zero
    return np.int64(count)


@njit(nogil=True, cache=True, fastmath=FLAGS)
def any_at_least(line, bounds):
    """Whether any entry of `line` (CHUNK,) reaches its own bound (CHUNK,)."""
    one, zero = np.float32(1), np.float32(0)
    count = zero
    for j in range(CHUNK):
        count += one if line[j] >= bounds[j] else zero
    return count > zero


@njit(nogil=True, cache=True)
def bisect(high, value):
    """Index of the first of `high` (P,), descending, that is <= value; P if none."""
    first, left = 0, high.shape[0]
    while left > 0:
        half = left >> 1
        if high[first + half] > value:
            first += half + 1
            left -= half + 1
        else:
            left = half
    return first


@njit(nogil=True, cache=True)
def is_tabled(positives):
    """Whether a query of so many positives has a table: neither too few to be worth it nor too many for int16."""
    return 2 < positives < 1 << 14


@njit(nogil=True, cache=True)
def cells_of(low, high, cells):
    """Origin and cells per unit of the table of a query, low[-1] being in its first, high[0] near its last."""
    origin = low[low.shape[0] - 1]
    return origin, np.float32(cells - 2) / max(high[0] - origin, np.float32(1e-30))


@njit(nogil=True, cache=True)
def fill_bounds(bounds, start, stop, shift, unit, error):
    """Float32 bounds, rounded outwards, of the interval around the key of each positive of queries start..stop-1 in
    which float32 cannot decide: `error` either side of the exact key, in units of float32's keys.
    """
    offsets, low, high, exact, _tables = bounds
    for i in range(start, stop):
        for p in range(offsets[i], offsets[i + 1]):
            key = (exact[p] + shift[i]) * unit
            low[p] = np.nextafter(np.float32(key - error), np.float32(-np.inf))
            high[p] = np.nextafter(np.float32(key + error), np.float32(np.inf))


@njit(nogil=True, cache=True)
def fill_tables(bounds, start, stop):
    """Tables of queries start..stop-1, flat, CELLS cells per positive."""
    offsets, low, high, _exact, tables = bounds
    for i in range(start, stop):
        s, e = offsets[i], offsets[i + 1]
        if is_tabled(e - s):
            fill_table(low[s:e], high[s:e], tables[CELLS * s : CELLS * e])


@njit(nogil=True, cache=True)
def fill_table(low, high, table):
    """Tabulate `bisect` on equal cells from low[-1] to beyond high[0].

    An entry is twice the index of the first of `high` that is in its cell or a lower one, plus 1 where the cell touches
    an undecided interval: the index of a value there may be a later one. The cell of a value is monotone in it,
    rounding included, so a value in another cell than a bound's is on the same side of the bound as its cell.
    """
    origin, step = cells_of(low, high, table.shape[0])
    cell, last = 0, table.shape[0] - 1
    for p in range(low.shape[0] - 1, -1, -1):
        first = min(np.int64((low[p] - origin) * step), last)
        final = min(np.int64((high[p] - origin) * step), last)
        while cell < first:
            table[cell] = 2 * (p + 1)
            cell += 1
        while cell < final:
            table[cell] = 2 * (p + 1) + 1
            cell += 1
        table[final] = 2 * p + 1
        cell = max(cell, final + 1)
    table[cell:] = 0


@njit(nogil=True, cache=True)
def cell_of(value, origin, step, cells):
    """Cell of a `value` not below `origin`, unsigned: an index that cannot be negative is not checked for it."""
    return np.uint64(min(np.int64((value - origin) * step), cells - 1))


@njit(nogil=True, cache=True)
def tally(values, count, table, origin, step, bins, unsure):
    """Add `count` values to `bins` by their cells; returns how many, listed in `unsure`, may belong further on."""
    listed = np.int64(0)
    for n in range(count):
        entry = np.uint64(table[cell_of(values[n], origin, step, table.shape[0])])
        bins[entry >> np.uint64(1)] += 1
        unsure[listed] = n
        listed += np.int64(entry & np.uint64(1))
    return listed


@njit(nogil=True, cache=True)
def settle(key, value, p, low, exact, above, tied):
    """Compare the exact `key` of an entry with those of positive p and nearer ones, as far as `value` cannot decide."""
    while p >= 0 and low[p] <= value:
        above[p] += key > exact[p]
        tied[p] += key == exact[p]
        p -= 1


@njit(nogil=True, cache=True)
def place_by_table(i, values, listed, count, search, low, high, exact, table, above, tied, scratch):
    """As `place`, up to `bins`: first all entries by their cells, then those whose cell does not tell."""
    queries, gallery, steps_q, steps_g, shift_g = search
    bins, unsure, x = scratch
    origin, step = cells_of(low, high, table.shape[0])
    near = 0
    for m in range(tally(values, count, table, origin, step, bins, unsure)):
        n = unsure[m]
        begin = np.int64(table[cell_of(values[n], origin, step, table.shape[0])]) >> 1
        first = begin
        while first < high.shape[0] and high[first] > values[n]:
            first += 1
        bins[begin] -= 1
        bins[first] += 1
        if first > 0 and low[first - 1] <= values[n]:
            if near == 0:
                read_row(queries[i], steps_q[i], x)
            near += 1
            j = listed[n]
            key = exact_key(x, steps_q[i], gallery[j], steps_g[j], shift_g[j])
            settle(key, values[n], first - 1, low, exact, above, tied)
    return near


@njit(nogil=True, cache=True)
def place(i, values, listed, count, search, bounds, counts, base, scratch):
    """Add the first `count` entries, keys `values` of query i against gallery rows `listed`, to the counts of i.

    Those that float32 cannot decide, low <= key < high, are compared by their exact keys; returns how many these are.
    `exact`, `low`, `high` (P,) descend.
    """
    queries, gallery, steps_q, steps_g, shift_g = search
    offsets, all_low, all_high, all_exact, tables = bounds
    s, e = offsets[i], offsets[i + 1]
    low, high, exact = all_low[s:e], all_high[s:e], all_exact[s:e]
    above, tied = counts[0][s - base : e - base], counts[1][s - base : e - base]
    bins, _unsure, x = scratch
    near, last = 0, e - s
    bins[: last + 1] = 0
    if tables.shape[0] > 0 and is_tabled(last):
        table = tables[CELLS * s : CELLS * e]
        near = place_by_table(i, values, listed, count, search, low, high, exact, table, above, tied, scratch)
        count = 0
    for n in range(count):
        first = bisect(high, values[n])
        if first > 0 and low[first - 1] <= values[n]:
            if near == 0:
                read_row(queries[i], steps_q[i], x)
            near += 1
            j = listed[n]
            key = exact_key(x, steps_q[i], gallery[j], steps_g[j], shift_g[j])
            settle(key, values[n], first - 1, low, exact, above, tied)
        bins[first] += 1
    sure = 0
    for p in range(last):
        sure += bins[p]
        above[p] += sure
    return near


@njit(nogil=True, cache=True)
def shift_products(tile, rows, cols, factor, shift_q, shift_g):
    """Euclidean float32 keys from products: scaled, with both shifts added."""
    for a in range(tile.shape[0]):
        for b in range(tile.shape[1]):
            tile[a, b] = tile[a, b] * factor + (shift_q[rows + a] + shift_g[cols + b])


@njit(nogil=True, cache=True)
def mask(tile, rows, cols, own, offsets, columns):
    """Take positives and the query itself out of `tile`."""
    for a in range(tile.shape[0]):
        i = rows + a
        for p in range(offsets[i], offsets[i + 1]):
            b = columns[p] - cols
            if 0 <= b < tile.shape[1]:
                tile[a, b] = -np.inf
        b = own[i] - cols
        if own[i] >= 0 and 0 <= b < tile.shape[1]:
            tile[a, b] = -np.inf


@njit(nogil=True, cache=True)
def count_rows(tile, rows, cols, search, bounds, counts, space, patience):
    """Counts from the rows of `tile`, queries rows.. against gallery rows cols.. .

    `search` = queries (Q,M), gallery (G,M), steps of their grids, shifts of the gallery; `bounds` = offsets and, flat,
    low, high and exact keys of the positives; `counts` = above and tied of the positives of these rows only; `space` is
    scratch memory. Returns False, the counts spoilt, once float32 leaves more than `patience` entries undecided.
    """
    offsets, low = bounds[0], bounds[1]
    values, listed, scratch = space
    base = offsets[rows]
    for a in range(tile.shape[0]):
        s, e = offsets[rows + a], offsets[rows + a + 1]
        if s == e or at_least(tile[a], low[e - 1]) == 0:
            continue
        bound = low[e - 1]
        line = tile[a]
        count = 0
        for b in range(line.shape[0]):
            values[0, count] = line[b]
            listed[0, count] = cols + b
            count += line[b] >= bound
        patience -= place(rows + a, values[0], listed[0], count, search, bounds, counts, base, scratch)
        if patience < 0:
            return False
    return True


@njit(nogil=True, cache=True)
def count_exact_rows(keys, rows, bounds, counts, bins):
    """Counts from the rows of a tile of exact `keys` (H,W), positives and self at -inf: queries rows.. ."""
    offsets, exact = bounds[0], bounds[3]
    base = offsets[rows]
    for a in range(keys.shape[0]):
        s, e = offsets[rows + a], offsets[rows + a + 1]
        thresholds = exact[s:e]
        bins[: e - s + 1] = 0
        for b in range(keys.shape[1]):
            first = bisect(thresholds, keys[a, b])
            while first < e - s and thresholds[first] == keys[a, b]:
                counts[1][s - base + first] += 1
                first += 1
            bins[first] += 1
        sure = 0
        for p in range(e - s):
            sure += bins[p]
            counts[0][s - base + p] += sure


@njit(nogil=True, cache=True)
def count_columns(tile, rows, cols, search, bounds, counts, space, patience):
    """Counts from the columns of `tile`: the points of columns cols.. as queries against those of rows rows.. ."""
    offsets, low = bounds[0], bounds[1]
    values, listed, scratch = space
    reach = np.empty(CHUNK, dtype=np.float32)
    sizes = np.empty(CHUNK, dtype=np.int64)
    for c in range(0, tile.shape[1], CHUNK):
        width = min(CHUNK, tile.shape[1] - c)
        for b in range(width):
            s, e = offsets[cols + c + b], offsets[cols + c + b + 1]
            reach[b] = np.float32(np.inf) if s == e else low[e - 1]
        sizes[:] = 0
        for a in range(tile.shape[0]):
            part = tile[a, c : c + width]
            if width == CHUNK and not any_at_least(part, reach):
                continue
            for b in range(width):
                values[b, sizes[b]] = part[b]
                listed[b, sizes[b]] = rows + a
                sizes[b] += part[b] >= reach[b]
        for b in range(width):
            if sizes[b] > 0:
                j = cols + c + b
                patience -= place(j, values[b], listed[b], sizes[b], search, bounds, counts, offsets[cols], scratch)
                if patience < 0:
                    return False
    return True


@njit(nogil=True, cache=True, fastmath=FLAGS)
def any_above(line, bound, bounds, twice):
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
def enter(i, j, value, keys, rows):
    """Put row j at its place, by `value`, in the list of row i."""
    p = keys.shape[1] - 1
    while p > 0 and keys[i, p - 1] < value:
        keys[i, p] = keys[i, p - 1]
        rows[i, p] = rows[i, p - 1]
        p -= 1
    keys[i, p] = value
    rows[i, p] = j


@njit(nogil=True, cache=True)
def consider(i, j, value, labels, reach, near, near_rows, others, other_rows):
    """Enter row j in the lists of row i that it belongs to, and say what the next one must exceed."""
    if value > near[i, -1]:
        enter(i, j, value, near, near_rows)
    reach[i] = near[i, -1]
    if others.shape[1] > 0:
        if value > others[i, -1] and labels[i] != labels[j]:
            enter(i, j, value, others, other_rows)
        reach[i] = min(reach[i], others[i, -1])


@njit(nogil=True, cache=True)
def offer(tile, row, column, twice, labels, reach, near, near_rows, others, other_rows):
    """Enter the products of a tile in the lists of its rows and, with `twice`, of its columns."""
    for a in range(tile.shape[0]):
        i = row + a
        for start in range(0, tile.shape[1], STRIP):
            part = tile[a, start : start + STRIP]
            j = column + start
            if not any_above(part, reach[i], reach[j : j + part.shape[0]], twice):
                continue
            for b in range(part.shape[0]):
                if part[b] > reach[i] and i != j + b:
                    consider(i, j + b, part[b], labels, reach, near, near_rows, others, other_rows)
                if twice and part[b] > reach[j + b]:
                    consider(j + b, i, part[b], labels, reach, near, near_rows, others, other_rows)


@njit(nogil=True, cache=True)
def rescore(rows, steps, indices, similarity):
    """Exact keys (N,W), equal to those of `keys.keys`, of each row with those at `indices` (N,W)."""
    x = np.empty(rows.shape[1])
    for i in range(indices.shape[0]):
        read_row(rows[i], steps[i], x)
        for p in range(indices.shape[1]):
            j = indices[i, p]
            similarity[i, p] = exact_key(x, steps[i], rows[j], steps[j], 0.0)
