"""Find exact nearest neighbours by cosine, for search, votes, figures and the match record.

Blocks of the gallery, in memory or mapped from disk, are multiplied in float32. For each query the k best and a few
more are kept and ordered by their exact keys (see `keys`), equal ones by ascending row. The key of a row outside the
list is at most float32's error above the last float32 key in it. A query whose list this does not prove right is
searched again by the exact keys of all rows. Tensors on a GPU are multiplied there; the compiled engine searches large
sets among themselves. Both give the same lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Doubles, Floats, Ints
from probmetric.retrieval.keys import float32_error, on_grid, steps_of
from probmetric.retrieval.problem import numpy_rows, own_rows, struck_rows
from probmetric.retrieval.rank_counts import COMPILED_FROM, engine, has_kernels
from probmetric.retrieval.relation import SparseRelation

SPARE = 4
STORED = (np.dtype(np.float16), np.dtype(np.int8))
BLOCK_ROWS = 16_384
CELLS = 1 << 22
LONGEST_LIST = 64


class Nearest(NamedTuple):
    """Hold gallery `rows` (Q,k) and their `cosines` (Q,k), nearest first, equal ones by ascending row."""

    rows: Ints
    cosines: Doubles


def search(
    queries: Any,
    gallery: Any = None,
    k: int = 1,
    *,
    self_index: Any = None,
    ignore: Any = None,
    normalize: bool = False,
) -> Nearest:
    """Return the k nearest gallery rows of each query by cosine.

    Args:
        queries: (Q,M) unit rows.
        gallery: (N,M) unit rows: an array, a tensor on a GPU, a memory map (read in blocks), or a list of these (n,M)
            with rows numbered through. Rows of float16 or int8 are directions: their norms do not matter. None asks
            each query among the others.
        k: length of the lists.
        self_index: (Q,) gallery row that is the query itself and must not be found, -1 for none; for a gallery that
            contains the queries.
        ignore: further gallery rows that a query must not find: (Q,N) bool, a SciPy sparse matrix (Q,N), an integer
            array (P,2) of pairs of query and gallery row, or a list of gallery rows for each query.
        normalize: divide rows by their norms first.

    Raises:
        ValueError: k is below 1 or above the number of rows that every query can find, a row is not finite or not a
            unit vector, or dimensions differ.

    Examples:
        >>> points = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> rows, cosines = search(points, k=1)
        >>> rows.ravel().tolist(), cosines.ravel().round(6).tolist()
        ([1, 0, 1], [0.8, 0.8, 0.6])
    """
    unit = numpy_rows(queries, "queries", normalize=normalize)
    parts = [unit] if gallery is None else parts_of(gallery, unit.shape[1], normalize)
    struck = struck_rows(own_rows(self_index, gallery, len(unit)), ignore, (len(unit), sum(map(len, parts))))
    if not arrays.is_cuda(queries):
        listed = nearest(Search(unit, parts, struck, normalize=normalize and gallery is not None), k)
        return Nearest(listed.rows, listed.cosines.clip(-1.0, 1.0))
    check_k(k, struck, parts)
    whole = np.concatenate([as_read(part, normalize) for part in parts])
    rows, cosines = engine("torch_engine").torch_nearest(unit, whole, struck, k)
    return Nearest(rows, cosines.clip(-1.0, 1.0))


def nearest(space: Search, k: int) -> Nearest:
    """Return the k nearest of a checked search; compiled code searches a large set among itself."""
    check_k(k, space.struck, space.parts)
    among, large = space.parts[0] is space.queries, len(space.queries) ** 2 >= COMPILED_FROM
    if among and large and k <= LONGEST_LIST and has_kernels():
        return settled(space, engine("compiled").searched_lists(space.queries, space.struck, k).nearest())
    return space.nearest(k)


def check_k(k: int, struck: SparseRelation, parts: list[Array]) -> None:
    """Raise a ValueError where a query cannot find k rows."""
    count = sum(map(len, parts))
    available = count - int(struck.counts.max())
    if available < 1:
        raise ValueError(f"nothing can be found: a query ignores, or is, every row of the gallery ({count}) but junk.")
    arrays.check_count(k, "k", most=available)


def settled(search: Search, listed: Any) -> Nearest:
    """Return the contents of compiled lists (`compiled.Listed`); queries that are not sure are searched again."""
    search.search_again(np.flatnonzero(~listed.sure), listed.rows, listed.cosines)
    return Nearest(listed.rows, listed.cosines)


def in_parts(gallery: Any) -> bool:
    """Say whether a gallery is a list of arrays (n,M), whose rows are numbered through."""
    return isinstance(gallery, list | tuple) and len(gallery) > 0 and getattr(gallery[0], "ndim", 0) == 2


def parts_of(gallery: Any, dim: int, normalize: bool = False) -> list[Array]:
    """Return the gallery as arrays (n,M); rows on disk stay there, and are checked when a search finds them."""
    if isinstance(gallery, np.memmap) or (isinstance(gallery, np.ndarray) and gallery.dtype in STORED):
        gallery = [gallery]
    parts = list(gallery) if in_parts(gallery) else [numpy_rows(gallery, "gallery", normalize=normalize)]
    if not any(map(len, parts)):
        raise ValueError("the gallery has no rows; nothing can be found in it.")
    widths = {part.shape[1] for part in parts}
    kinds = {part.dtype for part in parts} - {*STORED, np.dtype(np.float32), np.dtype(np.float64)}
    if kinds:
        raise TypeError(f"gallery has dtype {kinds.pop()}; expected float32, float64, float16, or int8.")
    if widths != {dim}:
        raise ValueError(f"queries have {dim} dimensions, rows {sorted(widths)}; use one model for both.")
    return parts


@dataclass(frozen=True)
class Search:
    """Search the gallery's `parts` (n,M) for unit `queries` (Q,M), without the rows `struck` of each query.

    If `classes` (Q,) are given, a query also leaves out the rows whose `labels` (N,) equal its class. `normalize`
    divides rows of the parts by their norms.
    """

    queries: Floats
    parts: list[Array]
    struck: SparseRelation
    classes: Ints | None = None
    labels: Ints | None = None
    normalize: bool = False

    def nearest(self, k: int) -> Nearest:
        """Return the k nearest: candidates ordered by exact keys, searched again where one may be missing."""
        rows, rough = self._listed(np.arange(len(self.queries)), k + SPARE, exact=False)
        cosines, ordered = np.empty((len(rows), k)), np.empty((len(rows), k), dtype=np.int64)
        step = max(1, CELLS // (self.queries.shape[1] * rows.shape[1]))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            exact = self._exact(part, rows[part])
            order = np.lexsort((rows[part], -exact), axis=1)[:, :k]
            cosines[part] = np.take_along_axis(exact, order, axis=1)
            ordered[part] = np.take_along_axis(rows[part], order, axis=1)
        unsure = cosines[:, -1] <= rough[:, -1] + float32_error(self.queries.shape[1], "cosine")
        self.search_again(np.flatnonzero(unsure), ordered, cosines)
        return Nearest(ordered, cosines)

    def search_again(self, which: Ints, rows: Ints, cosines: Doubles) -> None:
        """Replace lists `rows` and `cosines` (Q,k) of the queries `which` by a search with exact keys of all rows."""
        if len(which):
            rows[which], cosines[which] = self._listed(which, rows.shape[1], exact=True)

    def _listed(self, which: Ints, width: int, exact: bool) -> tuple[Ints, Doubles]:
        """Return the rows (B,W) nearest to the queries `which` (B,), and their products, descending; -1, -inf for none.

        Products are exact keys, with equal ones by ascending row, or float32 products.
        """
        rows, products = np.full((len(which), width), -1), np.full((len(which), width), -np.inf)
        for first, block in self._blocks():
            searched = on_grid(block, steps_of(block, "cosine")) if exact else block
            for start in range(0, len(which), CELLS // BLOCK_ROWS):
                part = slice(start, start + CELLS // BLOCK_ROWS)
                queries: Array = self.queries[which[part]]
                if exact:
                    queries = on_grid(queries, steps_of(queries, "cosine"))
                values = arrays.products(queries, searched)
                if not np.isfinite(values[0]).all():
                    row = first + int(np.argmin(np.isfinite(values[0])))
                    raise ValueError(f"gallery: row {row} is not finite. Drop it or mend the model that made it.")
                self._strike(values, which[part], first)
                _enter(values, first, rows[part], products[part])
        return rows, products

    def _blocks(self) -> Iterator[tuple[int, Floats]]:
        """Yield the first row's number and the rows (B,M) of every block, in order."""
        first = 0
        for part in self.parts:
            for start in range(0, len(part), BLOCK_ROWS):
                yield first + start, as_read(part[start : start + BLOCK_ROWS], self.normalize)
            first += len(part)

    def _strike(self, products: Array, which: Ints, first: int) -> None:
        """Set `products` (B,G), columns from `first` on, to -inf where the queries `which` (B,) must not find them."""
        owner, columns = self.struck.of(which)
        here = (columns >= first) & (columns < first + products.shape[1])
        products[owner[here], columns[here] - first] = -np.inf
        if self.classes is not None and self.labels is not None:
            products[self.classes[which, None] == self.labels[first : first + products.shape[1]]] = -np.inf

    def _exact(self, part: slice, rows: Ints) -> Doubles:
        """Return the exact keys (B,W) of the queries `part` with the gallery `rows` (B,W); -inf where a row is -1."""
        queries, listed = self.queries[part], rows >= 0
        candidates = gathered(self.parts, np.where(listed, rows, max(0, rows.max())).ravel(), self.normalize)
        searched = on_grid(candidates, steps_of(candidates, "cosine")).reshape(*rows.shape, -1)
        products: Doubles = np.einsum("bm,bwm->bw", on_grid(queries, steps_of(queries, "cosine")), searched)
        return np.where(listed, products, -np.inf)


def as_read(rows: Array, normalize: bool = False) -> Floats:
    """Return stored rows (B,M) as float32; those of float16 or int8 are directions, divided by their norms."""
    values = np.asarray(rows, dtype=np.float32)
    return arrays.normalized(values) if normalize or rows.dtype in STORED else values


def gathered(parts: Sequence[Array], rows: Ints, normalize: bool = False) -> Floats:
    """Return the `rows` (K,M) with these numbers, counted through all parts.

    Raises:
        ValueError: a row is not a unit vector.
    """
    listed = np.empty((len(rows), parts[0].shape[1]), dtype=np.float32)
    first = 0
    for part in parts:
        here = np.flatnonzero((rows >= first) & (rows < first + len(part)))
        listed[here] = as_read(part[rows[here] - first], normalize)
        first += len(part)
    arrays.check_unit_rows(listed, "gallery rows")
    return listed


def _enter(products: Array, first: int, rows: Ints, listed: Doubles) -> None:
    """Enter products (B,G) with the gallery rows from `first` on in the lists `rows` and `listed` (B,W).

    Of equal products, those with lower rows stay.
    """
    width = listed.shape[1]
    for query in np.flatnonzero(products.max(axis=1) > listed[:, -1]):
        columns = np.flatnonzero(products[query] > listed[query, -1])
        values = products[query, columns]
        if len(columns) > width:
            reaching = values >= -np.partition(-values, width - 1)[width - 1]
            columns, values = columns[reaching], values[reaching]
        values = np.concatenate([listed[query], values])
        order = np.argsort(-values, kind="stable")[:width]
        rows[query], listed[query] = np.concatenate([rows[query], columns + first])[order], values[order]
