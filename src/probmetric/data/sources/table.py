"""Your own images, listed in a table: a CSV (separated by commas, semicolons or tabs) or Parquet file.

    data.on_request: {shop: {source: table, raw: shop.csv, label_column: product}}

    path,label,split,price        path below the table's folder (or `images`), class; any columns
    a/1.jpg,mug,train,3.50

The table needs the columns path and label. It may have split (train, val, test, query or calibration, gallery;
`split_column: ""` ignores it) and group (images of one group stay together). Options can give other column names. All
other columns are copied to the manifest, except those named like its own (`offset`, `length`, ...). `blur`, `noise`,
`occlusion`, `warp` and `distortion` are strengths, which evaluation compares with the uncertainty. Without a column
split, splits are made as by `folder`. Paths from another machine, also from Windows, are found if they agree with the
files here after their first folders. The error for a missing image names its row, before anything is prepared.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.manifest import TYPES, DataError, refusing, stays_inside
from probmetric.data.sources import RawFiles, Table, _listing, register
from probmetric.data.sources._files import missing_files, strings
from probmetric.data.sources._own import Columns, InColumns, OwnImages
from probmetric.metrics.arrays import MISSING
from probmetric.metrics.severity import STRENGTHS

FILES = (".csv", ".tsv", ".parquet")
NEEDED = ("path", "label")
VECTORS = ("vector", "vectors", "mean", "embedding", "embeddings")
MATRICES = (*VECTORS, "similarities", "scores", "indices")  # lists of one length
BATCH_ROWS = 8192  # of vectors that are read at once
SOURCE_ROW = "source_row"
OURS = ("clean_label", "length", SOURCE_ROW)  # of manifests with label noise, images stored as files, vectors


@register
@dataclass(frozen=True, kw_only=True)
class TableOfImages(OwnImages, InColumns):
    """Images listed in a CSV or Parquet file."""

    where = "your own images: `raw` of the dataset names the CSV or Parquet file that lists them"

    images: str = ""

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Read the table; the images are read later."""
        file, root, listed = self._listed(files)
        check_once(file, listed["path"])
        return self.table(root, self.columns(listed, file, files.notes, seed), f"images listed in {file.name}")

    def raw_files(self, files: RawFiles) -> tuple[Path, list[str]]:
        """Return the folder, and the table and the images below it."""
        file, root, listed = self._listed(replace(files, notes=[]))  # `read` adds the same notes
        tables = [file, *(file.parent / name for name in self.listings)]
        return root, [*(os.path.relpath(table, root) for table in tables), *listed["path"].tolist()]

    def _listed(self, files: RawFiles) -> tuple[Path, Path, Columns]:
        """Return the table, the folder above its paths, and the columns of the images that exist.

        Raises:
            DataError: images are missing, and `on_error` is not `skip`.
        """
        file = files.users_file(FILES)
        root = Path(os.path.expandvars(self.images)).expanduser() if self.images else file.parent
        listed = listed_in(file, self.names, columns_of(file))
        listed["path"], missing = _located(root, listed["path"], files.notes)
        if not len(missing):
            return file, root, listed
        path, count = str(listed["path"][missing[0]]), len(listed["path"])
        what = "is not in" if stays_inside(path) else "leaves"
        problem = (
            f"row {missing[0] + 1}: {path!a} {what} the folder {root}; {len(missing)} of {count} images are missing"
        )
        if self.on_error == "raise" or len(missing) == count:
            raise DataError(
                f"{file}, {problem}; mend the rows, name the folder of the images (images: ...; `probmetric init` "
                "finds that of absolute paths), or leave them out (on_error: skip)."
            )
        files.notes.append(f"{len(missing)} row(s) left out whose image is missing, e.g. {problem}")
        keep = np.delete(np.arange(count), missing)
        return file, root, {name: values[keep] for name, values in listed.items()}


def _located(root: Path, paths: np.ndarray, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the paths (N,) as they lie below `root`, and the rows whose file is not there.

    A table may come from another machine. If no path exists as written, Windows separators and drives are understood,
    and the first folders may differ: the same number of them is dropped from all paths.
    """
    absolute = f"{root.resolve()}/"
    paths, missing = _spelt(root, [str(path).removeprefix(absolute) for path in paths])
    if len(missing) < len(paths):
        return paths, missing
    parts = [[part for part in re.split(r"[\\/]", str(path)) if part not in ("", ".")] for path in paths]
    for dropped in range(max(map(len, parts)) if not any(".." in path for path in parts) else 0):
        moved, missing_there = _spelt(root, ["/".join(path[dropped:]) for path in parts])
        if 2 * len(missing_there) < len(paths):
            if before := "/".join(parts[0][:dropped]):
                notes.append(f"paths are read below {root} without what stands before them, such as {before!a}")
            return moved, missing_there
    return paths, missing


def _spelt(root: Path, listed: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return paths (N,) in the Unicode form in which they lie below `root`, and the rows whose file is not there."""
    paths = strings(listed)
    missing = _missing(root, paths)
    for form in ("NFC", "NFD") if len(missing) else ():
        others = strings([unicodedata.normalize(form, path) for path in paths[missing].tolist()])
        there = np.setdiff1d(np.arange(len(missing)), _missing(root, others))
        paths[missing[there]] = others[there]
        missing = np.delete(missing, there)
    return paths, missing


def _missing(root: Path, paths: np.ndarray) -> np.ndarray:
    """Return the rows of paths (N,) that leave `root`, or lead to no file below it."""
    inside = [row for row, path in enumerate(paths) if stays_inside(str(path))]
    absent = [inside[row] for row in missing_files(root, paths[inside])]
    return np.union1d(absent, np.setdiff1d(np.arange(len(paths)), inside)).astype(np.int64)


def columns_of(file: Path, *, vectors: bool = False) -> Columns:
    """Return columns (N,) of a CSV, TSV or Parquet file: numbers, truth values or text.

    Args:
        file: the file.
        vectors: whether columns of lists are returned too, as matrices (N, M).

    Raises:
        DataError: the file cannot be read, or has no rows.
    """
    if file.suffix.lower() == ".parquet":
        return _of_parquet(file, vectors)
    lines, columns = _listing.csv_columns(file, delimiter="")
    if not len(lines):
        raise DataError(f"{file} lists nothing; its first line names the columns, the others the images.")
    return {name: _numbers_or_text(cells) for name, cells in columns.items()}


def listed_in(file: Path, names: dict[str, str], columns: Columns) -> Columns:
    """Return path, class_name and other columns of a file.

    `names` says which of its `columns` hold path, label, split and group. Without a name for path, the result has no
    path; "" for split or group ignores that column.

    Raises:
        DataError: a needed or renamed column is missing, or a cell of path, label or split is empty.
    """
    for role, name in names.items():
        if name not in columns and (role in NEEDED or name not in (role, "")):
            by_init = f" (`probmetric init --{role}-column ...`)" if role in NEEDED else ""
            raise DataError(
                f"{file} has no column {name!r} of texts or numbers; it has {', '.join(map(repr, columns))}. Name it: "
                f"`{role}_column: ...`{by_init}."
            )
    texts = {role: _texts(file, role, columns[name]) for role, name in names.items() if name and name in columns}
    for cells in texts.values():
        cells[np.isin(cells, MISSING)] = ""
    texts = {role: cells for role, cells in texts.items() if role in NEEDED or (cells != "").any()}
    for role in (role for role in (*NEEDED, "split") if role in texts):
        empty = np.flatnonzero(texts[role] == "")
        if len(empty):
            raise DataError(f"{file}: row {empty[0] + 1} has no {role}; mend it ({len(empty)} such).")
    _check_names(file, texts["label"])
    texts["label"] = strings([unicodedata.normalize("NFC", name) for name in texts["label"]])
    taken = {*names, *names.values(), *TYPES, *OURS}
    extra = {name: values for name, values in columns.items() if name not in taken and values.ndim == 1}
    extra = {name: cells for name, cells in extra.items() if not any(isinstance(cell, bytes) for cell in cells)}
    extra |= {name: _strengths(extra[name]) for name in STRENGTHS if name in extra}
    return extra | {"class_name" if role == "label" else role: values for role, values in texts.items()}


def _strengths(cells: np.ndarray) -> np.ndarray:
    """Return strengths (N,) as floats, NaN where a cell is empty; return the cells unchanged if one is not a number."""
    try:
        return np.array([np.nan if str(cell).strip() in MISSING else float(cell) for cell in cells])
    except ValueError:
        return cells


def _texts(file: Path, role: str, values: np.ndarray) -> np.ndarray:
    """Return values (N,) as text: whole numbers without a point, "" for missing values (NaN is no label).

    Raises:
        DataError: bytes that are not UTF-8.
    """
    if values.dtype.kind == "f":
        return strings([_cell(value) if value == value else "" for value in values.tolist()])
    try:
        return strings([value.decode() if isinstance(value, bytes) else str(value) for value in values])
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: a {role} is not UTF-8 ({error.object!r}); write it as text.") from error


def _check_names(file: Path, labels: np.ndarray) -> None:
    """Raise `DataError` if labels (N,) spell one class in two ways that are easy to miss, such as `mug ` or `1.0`."""
    names = set(labels.tolist())
    for row, name in enumerate(labels.tolist(), start=1):
        if name != name.strip():
            raise DataError(f"{file}: row {row}: the label {name!r} begins or ends with white space; remove it.")
        if name.endswith(".0") and name[:-2] in names:
            raise DataError(f"{file}: row {row}: the label {name!r} is {name[:-2]!r} elsewhere; write it one way.")


def check_once(file: Path, paths: np.ndarray) -> None:
    """Raise `DataError` if two of the `paths` (N,) lead to one file, also spelled as `a//1.jpg` or `a/./1.jpg`."""
    first: dict[str, int] = {}
    for row, path in enumerate(map(str, paths), start=1):
        before = first.setdefault(posixpath.normpath(path), row)
        if before != row:
            which = f"rows {before} and {row} list one image ({path!a})"
            raise DataError(f"{file}: {which}, which would be its own neighbour; remove one.")


def _numbers_or_text(cells: np.ndarray) -> np.ndarray:
    """Return cells (N,) as numbers if each is a number in its usual form; 007 and 1e3 are names.

    If some cells are empty, numbers stay text, 3.0 as 3.
    """
    every, filled = slice(None), ~np.isin(cells, MISSING)
    for kind, rows in ((np.int64, every), (np.float64, every), (np.float64, filled)):
        try:
            values = cells[rows].astype(kind)
        except (ValueError, OverflowError):
            continue
        if np.array_equal(np.char.strip(values.astype(str)), cells[rows].astype(str)):
            if rows is every:
                return values
            cells = cells.copy()
            cells[rows] = strings([_cell(value) for value in values.tolist()])
    return cells


def _of_parquet(file: Path, vectors: bool) -> Columns:
    """Return the columns (N,) of numbers, truth values or text, with `vectors` also matrices; leave out all others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with (
        refusing(f"{file} cannot be read", "write it again", OSError, pa.ArrowException),
        pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as parts,
    ):
        nested = {field.name: field.type for field in parts.schema_arrow if pa.types.is_nested(field.type)}
        table = parts.read([name for name in parts.schema_arrow.names if name not in nested])
        count = parts.metadata.num_rows
        if not count:
            raise DataError(f"{file} lists nothing.")
        lists = [name for name, kind in nested.items() if vectors and hasattr(kind, "value_type")]
        matrices = {name: _matrix(file, name, parts) for name in lists}
        columns = {name: matrix for name, matrix in matrices.items() if matrix is not None}
    pa.default_memory_pool().release_unused()  # as much as the vectors hold
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_primitive(kind) and not pa.types.is_temporal(kind) and not column.null_count:
            columns[name] = np.array(column.to_pylist())
        else:
            columns[name] = strings([_cell(value) for value in column.to_pylist()])
    return columns


def _cell(value: Any) -> Any:
    """Return a cell as text, "" where it is empty; whole numbers without a point, bytes unchanged."""
    if isinstance(value, float):
        value = Decimal(repr(value))
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    return "" if value is None else value if isinstance(value, bytes) else str(value)


def _matrix(file: Path, name: str, parts: Any) -> np.ndarray | None:
    """Return a column of lists of one length as a matrix (N, M); only one batch at a time is in memory twice.

    None for lists of several lengths, such as tags.

    Raises:
        DataError: the column is one of `MATRICES`, and has empty cells or lists of several lengths.
    """
    import pyarrow.compute as pc

    matrix, first = np.empty((0, 0)), 0
    for batch in parts.iter_batches(BATCH_ROWS, columns=[name]):
        array = batch.column(0)
        values, lengths = array.flatten(), pc.unique(pc.list_value_length(array))
        rows = values.to_numpy(zero_copy_only=False)
        if not first and len(lengths) == 1:
            matrix = np.empty((parts.metadata.num_rows, lengths[0].as_py() or 0), dtype=rows.dtype)
        if array.null_count or values.null_count or rows.size != len(array) * matrix.shape[1] or len(lengths) != 1:
            if name in MATRICES:
                raise DataError(f"{file}: {name} has empty cells, or lists that differ in length; mend them.")
            return None
        matrix[first : first + len(array)] = rows.reshape(len(array), -1)
        first += len(array)
    return matrix
