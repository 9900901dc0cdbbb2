"""Read listings and tables that other people wrote, and refuse wrong ones with file and line.

Accepted: UTF-8 and, with a byte-order mark, UTF-16; Windows line ends, blank lines. Refused: other bytes, an empty
listing, a line with too few columns, numbers that are not plain ASCII digits or out of range, paths that leave the
dataset's folder, an entry listed twice. Every source reads its text with these functions, and `check_table` checks the
table of every source.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.data.manifest import SPLITS, DataError, is_utf8, refusing, stays_inside, text
from probmetric.data.sources._files import strings
from probmetric.io import check_readable, opened_table, separator

if TYPE_CHECKING:
    from probmetric.data.sources._base import Table

_DIGITS = re.compile(r"[0-9]{1,18}")
_SHOWN, BLOCK = 80, 2**10
INCOMPLETE = "the dataset is incomplete, get it again"


@dataclass(frozen=True)
class Row:
    """One line of a listing, cut into columns; `number` counts lines from 1."""

    path: Path
    number: int
    cells: list[str]

    def bad(self, what: str) -> DataError:
        """Make the error that this line is wrong; it names file, line, problem and fix."""
        return bad_line(self.path, self.number, what)

    def whole(self, column: int, low: int = 0, high: int = 2**62) -> int:
        """Return the cell as a whole number from `low` to `high`."""
        cell = self.cells[column]
        if not _DIGITS.fullmatch(cell) or not low <= int(cell) <= high:
            raise self.bad(f"{_short(cell)} is no whole number from {low} to {high:,}")
        return int(cell)

    def inside(self, column: int) -> str:
        """Return the cell as a path that stays inside the dataset's folder."""
        cell = self.cells[column]
        if not stays_inside(cell):
            raise self.bad(f"the path {_short(cell)} leaves the dataset's folder")
        return cell


def bad_line(path: Path, number: int, what: str) -> DataError:
    """Make the error that line `number` of `path` is wrong."""
    return DataError(f"{path}, line {number}: {what}; get the file again, or mend the line.")


def rows(
    path: Path, columns: int, *, separator: str | None = None, header: Sequence[str] = (), announced: bool = False
) -> list[Row]:
    """Return the lines of a listing that are not blank (at least one), each cut into its columns.

    Args:
        path: the file.
        columns: how many columns a line has, 0 where that differs; without a separator the last one may hold spaces.
        separator: text between columns; None: white space.
        header: names the first line must hold.
        announced: the first line holds one number, which is the first row returned.
    """
    end, cuts = ("\r", -1) if separator else (None, columns - 1)  # without a separator spaces at the end go, too
    listed = [Row(path, number, line.rstrip(end).split(separator, cuts)) for number, line in _lines(path)]
    if header and (not listed or listed[0].cells != list(header)):
        raise DataError(
            f"{path} does not begin with the header {' '.join(header)!r}; it is another file, get it again."
        )
    first, rest = ([listed[0]] if announced and listed else []), listed[bool(header) or announced :]
    if not rest:
        raise DataError(f"{path} lists nothing; get it again.")
    for row in rest:
        if columns and len(row.cells) != columns:
            raise row.bad(f"{len(row.cells)} of {columns} columns")
    return [*first, *rest]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line that is not blank."""
    check_readable(path)
    try:
        with refusing(f"{path} cannot be read", INCOMPLETE, OSError), opened_table(path) as file:
            lines = file.read().split("\n")
    except UnicodeDecodeError as error:
        number, byte = error.object[: error.start].count(b"\n") + 1, error.object[error.start]
        raise DataError(
            f"{path}, line {number}: byte {byte:#04x} is not {error.encoding.upper()}; save the file as UTF-8 (Excel: "
            "`CSV UTF-8`), or get it again."
        ) from error
    yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def once(listed: Sequence[Row], column: int) -> None:
    """Raise `DataError` at a row whose cell in `column` occurred in an earlier row."""
    seen: dict[str, int] = {}
    for row in listed:
        earlier = seen.setdefault(row.cells[column], row.number)
        if earlier != row.number:
            raise row.bad(f"{_short(row.cells[column])} is listed already in line {earlier}")


def csv_lines(path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of every row of a CSV file, also blank ones; the number is that of its last line."""
    number = 0
    check_readable(path)
    try:
        with refusing(f"{path} cannot be read", INCOMPLETE, OSError), opened_table(path) as file:
            lines = csv.reader(file, strict=True, delimiter=delimiter or separator(path))
            for cells in lines:
                number = lines.line_num
                yield number, cells
    except UnicodeDecodeError:
        list(_lines(path))  # the error names the line
        raise
    except csv.Error as error:
        raise bad_line(path, number + 1, f"no readable CSV from here on ({error})") from error


def csv_columns(
    path: Path,
    needed: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    delimiter: str = ",",
    pack: Callable[[list[str]], np.ndarray] = strings,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the line numbers (N,) of the rows of a CSV file that are not blank, and their cells by column (N,).

    Args:
        path: the file.
        needed: names of columns; without any, all of them are returned.
        optional: columns that are returned where the file has them.
        delimiter: the character between cells; "": the candidate that the header line has most often.
        pack: makes an array of cells, some thousand at a time, because one `str` per cell takes the most memory.
    """
    lines = ((number, cells) for number, cells in csv_lines(path, delimiter) if cells)
    head = next(lines, (1, []))[1]
    lacking = [name for name in needed if name not in head]
    if lacking:
        raise DataError(f"{path} has no column {lacking}; found {head}.")
    if len(set(head)) < len(head):
        raise DataError(f"{path}: a column is named twice in {', '.join(head)}; rename it.")
    names = [name for name in head if not needed or name in (*needed, *optional)]
    places = [head.index(name) for name in names]
    blocks = [[np.empty(0, dtype=np.int64), *(pack([]) for _ in names)]]
    while rows := list(itertools.islice(lines, BLOCK)):
        for number, cells in rows:
            if len(cells) != len(head):
                raise bad_line(path, number, f"{len(cells)} of {len(head)} columns")
        packed = (pack([cells[place] for _, cells in rows]) for place in places)
        blocks.append([np.array([number for number, _ in rows]), *packed])
    numbers, *columns = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return numbers, dict(zip(names, columns, strict=True))


def mat_variable(path: Path, name: str) -> Any:
    """Return a variable of a .mat file."""
    from scipy.io import loadmat

    with refusing(f"{path} is no readable .mat file", "get it again"):
        variables = loadmat(path, squeeze_me=True, variable_names=[name])
    if name not in variables:
        raise DataError(f"{path} holds no variable {name!r}; it is another file, get it again.")
    return variables[name]


def numbers(path: Path, lines: np.ndarray, cells: np.ndarray, kind: type, low: float, high: float) -> np.ndarray:
    """Return cells (N,) of a column, text in ASCII bytes, as numbers (N,) of `kind` from `low` to `high`.

    `lines` (N,) holds the line number of each cell.
    """
    try:
        values: np.ndarray = cells.astype(kind)
    except (ValueError, OverflowError):
        values = np.array([_number(cell, kind) for cell in cells])
    wrong = np.flatnonzero(~((values >= low) & (values <= high)))
    if len(wrong):
        cell = cells[wrong[0]].decode(errors="replace")
        raise bad_line(path, int(lines[wrong[0]]), f"{_short(cell)} is no number from {low:g} to {high:g}")
    return values


def _number(cell: bytes, kind: type) -> float:
    """Return a cell as a number of `kind`; NaN if it is not a number."""
    try:
        return float(np.array([cell]).astype(kind)[0])
    except (ValueError, OverflowError):
        return np.nan


def _short(value: str) -> str:
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def check_labels(where: str, images: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> None:
    """Raise `DataError` unless every image (N, H, W, C) has a label (N,) that is one of the class `names`."""
    if images.ndim != 4 or 0 in images.shape:
        raise DataError(
            f"{where}: images of shape {images.shape}; expected (N, H, W, C), none of them 0; get it again."
        )
    if labels.shape != images.shape[:1]:
        raise DataError(f"{where}: {len(images):,} images, but labels of shape {labels.shape}; get both files again.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{where}: labels are {labels.dtype}; expected whole numbers; get the file again.")
    wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(wrong):
        raise DataError(
            f"{where}: label {labels[wrong[0]]} of image {wrong[0]} (from 0) is none of the {len(names)} classes 0 to "
            f"{len(names) - 1}; get the file again."
        )


def check_table(name: str, table: Table) -> None:
    """Raise `DataError` unless the table of a source is a valid dataset.

    It needs at least one image; no path twice; labels contiguous from 0, each with one class name, no name twice; known
    splits; text that can be written; pairs of test images only.
    """
    columns = table.columns
    sizes = {column: len(values) for column, values in columns.items()}
    if set(sizes.values()) != {sizes["path"]} or not sizes["path"]:
        raise DataError(f"{name}: no image is listed, or columns of unequal length: {sizes}; get the dataset again.")
    _check_paths(name, columns["path"])
    _check_classes(name, columns["label"], columns["class_name"])
    unknown = sorted(set(columns["split"].tolist()) - set(SPLITS))
    if unknown:
        raise DataError(f"{name}: the split {_short(str(unknown[0]))} is none of {', '.join(SPLITS)}.")
    _check_pairs(name, table)


def _check_paths(name: str, paths: np.ndarray) -> None:
    order = np.argsort(paths, kind="stable")
    twice = order[1:][paths[order[1:]] == paths[order[:-1]]]
    if len(twice):
        raise DataError(
            f"{name}: {text(paths[twice[0]])!a} is listed twice (of {len(twice):,} such); an image would be its own "
            "neighbour. Remove the repeated line or file."
        )
    unwritable = next((path for path in map(text, paths) if not is_utf8(path)), None)
    if unwritable is not None:
        raise DataError(f"{name}: the file name {unwritable!a} is not UTF-8; rename it.")


def _check_classes(name: str, labels: np.ndarray, class_names: np.ndarray) -> None:
    numbers, first, which = np.unique(labels, return_index=True, return_inverse=True)
    gap = np.flatnonzero(numbers != np.arange(len(numbers)))
    if len(gap):
        raise DataError(
            f"{name}: no image has the label {gap[0]}; labels must be 0 to {len(numbers) - 1}, without gaps."
        )
    names = class_names[first]
    other = np.flatnonzero(class_names != names[which.reshape(-1)])
    if len(other):
        both = f"{names[labels[other[0]]]!a} and {class_names[other[0]]!a}"
        raise DataError(f"{name}: class {labels[other[0]]} has two names, {both}.")
    unwritable = next((value for value in map(str, names) if not is_utf8(value)), None)
    if unwritable is not None:
        raise DataError(f"{name}: the class name {unwritable!a} is not UTF-8; rename it.")


def _check_pairs(name: str, table: Table) -> None:
    if not table.pairs:
        return
    members = np.array([pair[:2] for pair in table.pairs])
    if members.min() < 0 or members.max() >= len(table.columns["path"]):
        raise DataError(f"{name}: a pair to be verified names an image that is not listed.")
    wrong = np.flatnonzero((table.columns["split"][members] != "test").any(axis=1))
    if len(wrong):
        paths = " and ".join(text(table.columns["path"][row]) for row in members[wrong[0]])
        raise DataError(
            f"{name}: {len(wrong):,} pairs to be verified are not of test images, e.g. {paths}; give the list of pairs "
            "of the test people."
        )
