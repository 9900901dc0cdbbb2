"""Galleries larger than memory: unit rows in several embeddings files, read block by block, and indexes over them.

A `Gallery` stands wherever `retrieval_metrics` and `nearest_neighbours` take a gallery. Both stay exact: a query's
neighbours are merged from the blocks' own lists, and the ranks of its positives are sums over the blocks of how many
wrong answers lie above. A `GalleryIndex` (inverted lists of faiss, 8 bits a coordinate) answers neighbour queries from
a share of the gallery; its candidates are put in order by exact keys, so that what it finds is right, and only what it
does not look at can be missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.io import FileError, atomic_path
from probmetric.metrics import arrays

BLOCK_ROWS = 16_384
TRAINING_ROWS_PER_LIST = 64


class Gallery:
    """Embeddings files as one gallery; `labels` (N,) are in memory, rows are read when needed.

    Row numbers run through the files in the order given.
    """

    def __init__(self, files: Sequence[str | Path], *, block_rows: int = BLOCK_ROWS) -> None:
        """Open `files` (safetensors with `mean` (n,M) and `label` (n,)).

        Args:
            files: embeddings files of one dimension M.
            block_rows: rows held in memory at a time.

        Raises:
            FileError: no file, a file without these tensors, or files of different dimensions.
        """
        if not files:
            raise FileError("a gallery needs at least one embeddings file.")
        if block_rows < 1:
            raise ValueError(f"block_rows is {block_rows}; use at least 1.")
        self.files, self.block_rows = [Path(file) for file in files], block_rows
        shapes = [_shape(file) for file in self.files]
        dims = {shape[1] for shape in shapes}
        if len(dims) > 1:
            raise FileError(
                f"the files of a gallery have different dimensions: {sorted(dims)}; embed them with one run."
            )
        self.shape = (sum(shape[0] for shape in shapes), dims.pop())
        self._starts = np.cumsum([0, *(shape[0] for shape in shapes)])
        self.labels: NDArray[np.int64] = np.concatenate([_tensor(file, "label") for file in self.files]).astype(
            np.int64
        )

    def __len__(self) -> int:
        """Number of rows N."""
        return self.shape[0]

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """First row number and unit rows (B,M) of every block, in order."""
        for file, begin, end in zip(self.files, self._starts, self._starts[1:], strict=False):
            with _open(file) as opened:
                rows = opened.get_slice("mean")
                count = int(end - begin)
                for start in range(0, count, self.block_rows):
                    block = np.asarray(rows[start : min(start + self.block_rows, count)], dtype=np.float32)
                    arrays.check_unit_rows(block, f"{file}, rows from {start}")
                    yield int(begin) + start, block

    def rows(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows (K,M) at the row numbers `index` (K,)."""
        found = np.empty((len(index), self.shape[1]), dtype=np.float32)
        which = np.searchsorted(self._starts, index, side="right") - 1
        for number in np.unique(which):
            mine = np.flatnonzero(which == number)
            with _open(self.files[number]) as opened:
                rows = opened.get_slice("mean")
                for place in mine:
                    local = int(index[place] - self._starts[number])
                    found[place] = rows[local : local + 1]
        return found


class GalleryIndex:
    """Inverted lists over a `Gallery`; `probes` of its `lists` are searched for a query."""

    def __init__(self, gallery: Gallery, lists: Any, probes: int) -> None:
        self.gallery, self.lists = gallery, lists
        self.probes = probes

    @classmethod
    def build(cls, gallery: Gallery, *, lists: int | None = None, probes: int = 32, seed: int = 0) -> GalleryIndex:
        """Cluster a sample of the rows and enter all of them, block by block.

        Args:
            gallery: what will be searched.
            lists: number of clusters; by default 4 sqrt(N), at most a row each.
            probes: clusters searched per query; more find more, in more time.
            seed: of the sample and of the clustering.
        """
        import faiss

        count, dim = gallery.shape
        lists = min(lists or int(4 * count**0.5), count)
        index = faiss.IndexIVFScalarQuantizer(
            faiss.IndexFlatIP(dim), dim, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        index.cp.seed = seed
        index.train(_sample(gallery, min(count, lists * TRAINING_ROWS_PER_LIST), seed))
        for _, rows in gallery.blocks():
            index.add(rows)
        return cls(gallery, index, probes)

    @classmethod
    def load(cls, path: str | Path, gallery: Gallery, *, probes: int = 32) -> GalleryIndex:
        """The index `save` wrote, over the same gallery.

        Raises:
            FileError: the file is missing or belongs to another gallery.
        """
        import faiss

        if not Path(path).exists():
            raise FileError(f"{path} is missing; build the index again.")
        index = faiss.read_index(str(path))
        if (index.ntotal, index.d) != gallery.shape:
            raise FileError(
                f"{path} indexes {index.ntotal} x {index.d} rows, the gallery has {gallery.shape}; rebuild it."
            )
        return cls(gallery, index, probes)

    def save(self, path: str | Path) -> None:
        """Write the index; the gallery's files stay where they are."""
        import faiss

        with atomic_path(path) as temporary:
            faiss.write_index(self.lists, str(temporary))

    def candidates(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Row numbers (Q,count) of probable neighbours, -1 where the lists held too few."""
        import faiss

        parameters: Any = faiss.SearchParametersIVF()
        parameters.nprobe = min(self.probes, self.lists.nlist)
        # faiss.contrib.torch_utils, once anything imports it, replaces `search` by one that takes no parameters.
        search = getattr(self.lists, "search_numpy", self.lists.search)
        _, found = search(queries, count, params=parameters)
        return found.astype(np.int64)


def _sample(gallery: Gallery, count: int, seed: int) -> NDArray[np.float32]:
    """`count` rows without replacement, read in one pass."""
    chosen = np.sort(np.random.default_rng(seed).choice(len(gallery), count, replace=False))
    parts = []
    for start, rows in gallery.blocks():
        first, last = np.searchsorted(chosen, [start, start + len(rows)])
        parts.append(rows[chosen[first:last] - start])
    return np.concatenate(parts)


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise FileError(f"{file} cannot be read ({error}); run the embed step again.") from error


def _shape(file: Path) -> tuple[int, int]:
    with _open(file) as opened:
        missing = {"mean", "label"} - set(opened.keys())
        if missing:
            raise FileError(f"{file} lacks {', '.join(sorted(missing))}: it is no embeddings file.")
        rows, dim = opened.get_slice("mean").get_shape()
        return int(rows), int(dim)


def _tensor(file: Path, name: str) -> NDArray[Any]:
    with _open(file) as opened:
        return opened.get_tensor(name)
