"""Your own images, listed in a table: a CSV or Parquet file with a line per image.

    data.on_request: {shop: {source: table, raw: shop.csv, label_column: product}}

    path,label,split,price        path below the table's folder (or `images`), class; any columns
    a/1.jpg,mug,train,3.50

Columns, which options may name otherwise: path, label and, where they are there, split (train, val, test) and group
(what must stay together). All others become columns of the manifest. Splits that are not named are made as by `folder`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probmetric.data.manifest import TYPES, DataError
from probmetric.data.sources import RawFiles, Table, _listing, register
from probmetric.data.sources._files import strings
from probmetric.data.sources._own import InColumns, Listed, OwnImages

FILES = (".csv", ".tsv", ".parquet")
LENGTH = "length"  # a column of manifests whose images are stored as files


@register
@dataclass(frozen=True, kw_only=True)
class TableOfImages(OwnImages, InColumns):
    """Images listed in a CSV or Parquet file."""

    where = "your own images: `raw` of the dataset names the CSV or Parquet file that lists them"

    images: str = ""

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Read the table; the images are read later."""
        file, root, listed = self._listed(files)
        outside = [str(path) for path in listed.paths if not _listing.stays_inside(str(path))]
        if outside:
            raise DataError(f"{file}: {len(outside)} path(s) leave the folder {root} ({outside[0]!a}); mend the lines.")
        check_once(file, listed.paths)
        return self.table(root, self.columns(listed, file, files.notes, seed), f"images listed in {file.name}")

    def raw_files(self, files: RawFiles) -> tuple[Path, list[str]]:
        """Return the folder, and the table and the images below it."""
        file, root, listed = self._listed(files)
        return root, [os.path.relpath(file, root), *listed.paths.tolist()]

    def _listed(self, files: RawFiles) -> tuple[Path, Path, Listed]:
        """Return the table, the folder its paths are below, and what it lists."""
        if files.folder is None or files.folder.suffix.lower() not in FILES or not files.folder.is_file():
            raise DataError(f"table: {files.folder or 'no file'} is no {', '.join(FILES)} file; set `raw` to yours.")
        file = files.folder
        return file, Path(self.images) if self.images else file.parent, listed_in(file, self.names, columns_of(file))


def columns_of(file: Path) -> dict[str, np.ndarray]:
    """Columns (N,) of a CSV, TSV or Parquet file: numbers, or text.

    Raises:
        DataError: it cannot be read, or lists nothing.
    """
    return _of_parquet(file) if file.suffix.lower() == ".parquet" else _of_csv(file)


def listed_in(file: Path, names: dict[str, str], columns: dict[str, np.ndarray]) -> Listed:
    """What the `columns` of a file list; `names` says which of them hold path, label, split and group.

    Raises:
        DataError: no such column, or a cell without path or label.
    """
    for role in ("path", "label"):
        if names[role] not in columns:
            raise DataError(
                f"{file} has no column {names[role]!r}; it has {', '.join(columns)}. Name it: `{role}_column: ...`."
                f"{_separated(columns)}"
            )
    own = {role: _texts(file, role, columns[name]) for role, name in names.items() if name in columns}
    for role in ("path", "label"):
        empty = np.flatnonzero(own[role] == "")
        if len(empty):
            raise DataError(f"{file}: row {empty[0] + 1} has no {role}; mend it ({len(empty)} such).")
    _check_names(file, own["label"])
    taken = {*names.values(), *TYPES, "clean_label", LENGTH}
    extra = {name: values for name, values in columns.items() if name not in taken}
    return Listed(own["path"], own["label"], own.get("split"), own.get("group"), extra)


def _separated(columns: Iterable[str]) -> str:
    """What to do about a head that is one column, cut by something else than we cut by."""
    head = list(columns)
    found = next((mark for mark in (";", "\t") if len(head) == 1 and mark in head[0]), "")
    return f" Its columns are separated by {found!r}: write it with commas, or with tabs as .tsv." if found else ""


def _texts(file: Path, role: str, values: np.ndarray) -> np.ndarray:
    """Values (N,) as text, "" where there is none: NaN is no label.

    Raises:
        DataError: bytes that are not UTF-8.
    """
    if values.dtype.kind == "f":
        return strings(["" if np.isnan(value) else str(value) for value in values])
    try:
        return strings([value.decode() if isinstance(value, bytes) else str(value) for value in values])
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: a {role} is not UTF-8 ({error.object!r}); write it as text.") from error


def _check_names(file: Path, labels: np.ndarray) -> None:
    """Raise `DataError` for labels (N,) that are two names of one class, which nobody would see: `mug ` and `1.0`."""
    names = set(labels.tolist())
    for row, name in enumerate(labels.tolist(), start=1):
        if name != name.strip():
            raise DataError(f"{file}: row {row}: the label {name!r} begins or ends with white space; remove it.")
        if name.endswith(".0") and name[:-2] in names:
            raise DataError(f"{file}: row {row}: the label {name!r} is {name[:-2]!r} elsewhere; write it one way.")


def check_once(file: Path, paths: np.ndarray) -> None:
    """Raise `DataError` if two of the `paths` (N,) lead to one file, also written as `a//1.jpg` or `a/./1.jpg`."""
    first: dict[str, int] = {}
    for row, path in enumerate(map(str, paths), start=1):
        before = first.setdefault(posixpath.normpath(path), row)
        if before != row:
            which = f"rows {before} and {row} list one image ({path!a})"
            raise DataError(f"{file}: {which}, which would be its own neighbour; remove one.")


def _of_csv(file: Path) -> dict[str, np.ndarray]:
    """Columns (N,) of text, or of numbers where every cell is one; tab-separated if the file is called .tsv."""
    lines = [
        (number, cells) for number, cells in _listing.csv_lines(file, "\t" if file.suffix == ".tsv" else ",") if cells
    ]
    if len(lines) < 2:
        raise DataError(f"{file} lists nothing; its first line names the columns, the others the images.")
    head = lines[0][1]
    if len(set(head)) < len(head):
        raise DataError(f"{file}: a column is named twice in {', '.join(head)}; rename it.")
    for number, cells in lines[1:]:
        if len(cells) != len(head):
            raise DataError(f"{file}, line {number}: {len(cells)} of {len(head)} columns; mend the line.")
    columns = zip(*(cells for _, cells in lines[1:]), strict=True)
    return {name: _numbers_or_text(list(cells)) for name, cells in zip(head, columns, strict=True)}


def _numbers_or_text(cells: list[str]) -> np.ndarray:
    for kind in (np.int64, np.float64):
        try:
            values = np.array(cells, dtype=kind)
        except (ValueError, OverflowError):
            continue
        if np.array_equal(np.char.strip(values.astype(str)), np.array(cells)):  # not 007 or 1e3: these are names
            return values
    return strings(cells)


def _of_parquet(file: Path) -> dict[str, np.ndarray]:
    """Columns (N,) of numbers or text; others are left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file} cannot be read ({error}); write it again.") from error
    if not table.num_rows:
        raise DataError(f"{file} lists nothing.")
    found = {}
    for name in table.column_names:
        column = table.column(name)
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            plain = column.null_count == 0
            values = column.to_pylist()
            found[name] = np.array(values) if plain else strings(["" if v is None else str(v) for v in values])
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
            found[name] = strings(["" if value is None else str(value) for value in column.to_pylist()])
    return found
