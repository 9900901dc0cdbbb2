"""Vectors of a frozen model, without images, on which you train heads, losses and uncertainties.

    data.on_request: {shop: {source: embeddings, raw: vectors.parquet}}
    methods: {pfe: {backbone: vectors, loss: arcface, uncertainty: pfe}}

    .parquet      a column `vector` of lists, and label, split, group, path and any others as in `table`
    .npz          arrays `vector` (N, M) and label, ... (N,)
    .npy          vectors (N, M); the other columns are in the CSV file of the same name
    .safetensors  tensors `vector` (or `mean`) (N, M) and label, ...; also an embeddings file of this package

images.bin holds the vectors as float32, each padded with zeros to S x S x 3 bytes; the view `vectors` reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probmetric.data.manifest import DataError, refusing
from probmetric.data.sources import RawFiles, Table, options, register
from probmetric.data.sources._files import strings
from probmetric.data.sources._own import Columns, InColumns
from probmetric.data.sources.table import SOURCE_ROW, VECTORS, check_once, columns_of, listed_in
from probmetric.io import FileError, read_tensors

FILES = (".parquet", ".npz", ".npy", ".safetensors")


@register
@dataclass(frozen=True, kw_only=True)
class Embeddings(InColumns):
    """Vectors of a frozen model."""

    where = "your own vectors: `raw` of the dataset names their file"
    view = options(name="vectors")

    vector_column: str = ""

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Read vectors and labels."""
        file = files.users_file(FILES)
        vectors, listed = self._read(file)
        # position among the vectors of each manifest row (some rows are left out)
        listed = {SOURCE_ROW: np.arange(len(vectors))} | listed
        columns = self.columns(listed, file, files.notes, seed)
        return Table(
            columns,
            _Padded(vectors, columns[SOURCE_ROW]),
            self.protocol,
            f"vectors of {vectors.shape[1]} dimensions from {file.name}",
            facts={"dimensions": int(vectors.shape[1])},
        )

    def raw_files(self, files: RawFiles) -> tuple[Path, list[str]]:
        """Return the file of vectors, and the file beside it that describes its rows."""
        file = files.users_file(FILES)
        beside = [file.with_suffix(".csv").name] if file.suffix.lower() == ".npy" else []
        return file.parent, [file.name, *beside, *self.listings]

    def _read(self, file: Path) -> tuple[np.ndarray, Columns]:
        """Return vectors (N, M) float32, finite, and the columns that describe them."""
        arrays = arrays_of(file)
        name = self.vector_column or next((name for name in VECTORS if name in arrays), "")
        if name not in arrays:
            raise DataError(f"{file} has no vectors; it holds {', '.join(arrays)}. Name them: `vector_column: ...`.")
        vectors = arrays.pop(name)
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or 0 in vectors.shape:
            shape = f"{name} is {vectors.dtype} {vectors.shape}"
            raise DataError(f"{file}: {shape}; expected (N, M) numbers; write vectors as float32.")
        with np.errstate(over="ignore"):
            vectors = vectors.astype("<f4", copy=False)
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise DataError(f"{file}: vector {bad[0]} (from 0) is not finite in float32, {len(bad)} in all; drop them.")
        columns = {
            name: values for name, values in arrays.items() if values.ndim == 1 and values.dtype.kind not in "cV"
        }
        for other, values in columns.items():
            if len(values) != len(vectors):
                raise DataError(f"{file}: {len(values)} entries of {other} for {len(vectors)} vectors; give one each.")
        names = self.names
        numbered = self.path_column == "path" and "path" not in columns
        if numbered:
            del names["path"]
        listed = listed_in(file, names, columns)
        if numbered:
            listed["path"] = strings([f"{file.stem}/{row:07}" for row in range(len(vectors))])
        check_once(file, listed["path"])
        return vectors, listed


class _Padded:
    """Reader of row -> vector as S x S x 3 bytes."""

    def __init__(self, vectors: np.ndarray, rows: np.ndarray) -> None:
        """Take vectors (N, M) little-endian float32, and the position among them of each manifest row."""
        self._vectors, self._rows = vectors, rows
        self._side = math.ceil(math.sqrt(4 * vectors.shape[1] / 3))

    def __call__(self, row: int) -> np.ndarray:
        """Return bytes (S, S, 3) of one vector."""
        padded = np.zeros(3 * self._side**2, dtype=np.uint8)
        data = self._vectors[self._rows[row]].view(np.uint8)
        padded[: len(data)] = data
        return padded.reshape(self._side, self._side, 3)


def arrays_of(file: Path) -> dict[str, np.ndarray]:
    """Return name -> array for all arrays in the file; no code in it is executed.

    Raises:
        DataError: the file is damaged, or holds Python objects.
    """
    kind = file.suffix.lower()
    if kind == ".parquet":
        return columns_of(file, vectors=True)
    if kind == ".safetensors":
        try:
            return dict(read_tensors(file)[0])
        except (FileError, TypeError) as error:  # NumPy has no bfloat16
            what = "damaged" if isinstance(error, FileError) else str(error)
            raise DataError(f"{file} cannot be read ({what}); write it again, vectors as float32.") from error
    advice = "write it with numpy.save, without objects"
    with refusing(f"{file} cannot be read", advice), file.open("rb") as opened:  # NumPy leaves a damaged one open
        try:
            loaded = np.load(opened, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                return {name: loaded[name] for name in loaded.files}
        except MemoryError as error:  # a damaged header may state any size
            raise ValueError(str(error)) from error
    return columns_beside(file) | {"vector": loaded}


def columns_beside(file: Path) -> Columns:
    """Return the columns of the CSV file beside a file that holds vectors only.

    Raises:
        DataError: the CSV file is missing, or cannot be read.
    """
    listing = file.with_suffix(".csv")
    if not listing.is_file():
        raise DataError(f"{file} has no labels: put them into {listing.name} beside it, a line per vector.")
    return columns_of(listing)
