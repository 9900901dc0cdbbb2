"""The files of a gallery: how they are written, read and checked.

    gallery.json                  model digest, dimension, the files below
    rows-<digest>.safetensors     mean (n, M), uncertainty (n,): memory-mapped, one file per addition
    entries-<digest>.parquet      path and class of every row
    looks-<digest>.safetensors    what a sample of the images looks like (`_look`)

A file is named by its content and never changes; `gallery.json` is written after those it names, so a reader sees the
old gallery or the new one. What was read is compared with the name; of rows files over `VERIFIED_BYTES`, which stay on
disk, with sums in their header (`_row_sums`) when the rows are first asked for.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.io import (
    FileError,
    atomic_path,
    check_responds,
    digest_of,
    present,
    read_json,
    read_tensors,
    signed,
    unsigned,
    write_json,
    write_tensors,
)
from probmetric.metrics.arrays import UNIT_TOLERANCE
from probmetric.serving._look import KEPT
from probmetric.serving._row_sums import changed_row, row_sums

GALLERY = "gallery"
INDEX, EARLIER_LOOKS = "gallery.json", "looks.safetensors"
AGAIN = "make the gallery again (`probmetric index`)"
VERIFIED_BYTES = 256 * 2**20
_SUMS = {"mean": "sums", "uncertainty": "uncertainty_sums"}  # tensor -> its entry in the header
_ROWS = re.compile(r"rows-[0-9a-f]{16}\.safetensors")
_ENTRIES = re.compile(r"entries-[0-9a-f]{16}\.parquet")
_LOOKS = re.compile(r"looks-[0-9a-f]{16}\.safetensors")


@dataclass(frozen=True)
class Part:
    """Rows that were added together.

    Attributes:
        mean: of each (n, M).
        uncertainty: of each (n,).
        file: name of their file, once they are stored.
        unchecked: their file, where it was too large to be checked when it was opened.
        sums: what that says of its tensors, by name (`_row_sums`); nothing where it has the name only.
    """

    mean: np.ndarray
    uncertainty: np.ndarray
    file: str = ""
    unchecked: Path | None = None
    sums: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its file: the digest of its rows and uncertainties."""
        if self.file:
            return self.file
        digest = hashlib.sha256(np.ascontiguousarray(self.mean).data)
        digest.update(np.ascontiguousarray(self.uncertainty).data)
        return f"rows-{digest.hexdigest()[:16]}.safetensors"

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """`mean`, once it is known to be what was written.

        Raises:
            FileError: it is not.
        """
        if self.unchecked is not None:
            _check_sums(self.unchecked, self)
        return self.mean

    def where(self, keep: np.ndarray) -> Part:
        """The rows for which `keep` (n,) is true."""
        return self if keep.all() else Part(self.rows[keep], self.uncertainty[keep])


@dataclass(frozen=True)
class Content:
    """What the files hold: digest of the model, dimension, rows, path and class of each row, looks (n, L)."""

    model: str
    dim: int
    parts: list[Part]
    paths: list[str]
    class_names: list[str]
    looks: np.ndarray


def read(folder: Path) -> Content:
    """The gallery in `folder`; its rows stay on disk.

    Raises:
        FileError: it is missing, damaged, or holds something that cannot be a gallery.
    """
    index = _read_index(folder)
    parts = [_open_part(folder / name, index["dim"]) for name in index["rows"]]
    paths, class_names = _read_entries(folder / index["entries"])
    count = sum(len(part.mean) for part in parts)
    if count != len(paths):
        raise FileError(f"{folder} has {count} rows and {len(paths)} names; {AGAIN}.")
    if len(set(paths)) < len(paths):
        raise FileError(f"{folder} names an image twice; {AGAIN}.")
    return Content(index["model"], index["dim"], parts, paths, class_names, _read_looks(folder, index.get("looks")))


def write(folder: Path, content: Content) -> list[Part]:
    """Store `content`, of the rows only those that are not there yet; returns its parts, their rows on disk.

    Raises:
        FileError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [_stored(part, folder) for part in content.parts]
    entries = _write_entries(folder, content.paths, content.class_names)
    looks = _write_looks(folder, content.looks)
    values = {"format": 1, "model": content.model, "dim": content.dim, "rows": names, "entries": entries}
    write_json(folder / INDEX, signed(values | {"looks": looks}))
    _remove_others(folder, {*names, entries, looks})
    return [_open_part(folder / name, content.dim) for name in names]


def _stored(part: Part, folder: Path) -> str:
    """Name of the file that holds `part`; written unless it is there."""
    name = part.name
    if not (folder / name).exists():
        tensors = {"mean": np.asarray(part.rows), "uncertainty": np.asarray(part.uncertainty)}
        large = part.mean.nbytes + part.uncertainty.nbytes > VERIFIED_BYTES
        write_tensors(folder / name, tensors, {_SUMS[key]: row_sums(tensors[key]) for key in tensors if large})
    return name


def _read_index(folder: Path) -> dict[str, Any]:
    """The checked content of gallery.json: a file name that leads elsewhere is refused."""
    path = folder / INDEX
    if not present(path):
        raise FileError(f"{folder} is no gallery (it has no {INDEX}); make one with `probmetric index`.")
    if path.stat().st_size > 16 * 2**20:
        raise FileError(f"{path} is larger than 16 MiB; {AGAIN}.")
    values = unsigned(read_json(path, AGAIN), path, AGAIN)
    sound = (
        isinstance(values, dict)
        and values.get("format") == 1
        and isinstance(values.get("model"), str)
        and isinstance(values.get("dim"), int)
        and 0 <= values["dim"] <= 2**20
        and isinstance(values.get("rows"), list)
        and all(isinstance(name, str) and _ROWS.fullmatch(name) for name in values["rows"])
        and _ENTRIES.fullmatch(str(values.get("entries")))
        and (values.get("looks") in (None, "") or _LOOKS.fullmatch(str(values["looks"])))
        and set(values) <= {"format", "model", "dim", "rows", "entries", "looks"}
    )
    if not sound:
        raise FileError(f"{path} is damaged or of a later version; {AGAIN}.")
    return values


def _open_part(path: Path, dim: int) -> Part:
    """A part whose rows are mapped, not read; small files are compared with their name, others later (`Part.rows`)."""
    from safetensors import SafetensorError, safe_open

    check_responds(path)
    try:
        with safe_open(path, framework="numpy") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: (part.get_shape(), part.get_dtype()) for name, part in parts.items()}
            uncertainty = file.get_tensor("uncertainty")
            said = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} is damaged or missing ({error}); {AGAIN}.") from error
    rows = shapes["mean"][0][0] if "mean" in shapes else 0
    if shapes != {"mean": ([rows, dim], "F32"), "uncertainty": ([rows], "F32")} or not rows:
        raise FileError(f"{path} holds {shapes}; expected mean (n, {dim}) and uncertainty (n,). {AGAIN}.")
    part = Part(_mapped(path, rows, dim), uncertainty)
    if path.stat().st_size > VERIFIED_BYTES:
        sums = {name: said[entry] for name, entry in _SUMS.items() if entry in said}
        return replace(part, file=path.name, unchecked=path, sums=sums)
    _check_name(path, part)
    _check_rows(path, part)
    return replace(part, file=path.name)


def _check_name(path: Path, part: Part) -> None:
    if replace(part, file="").name != path.name:
        raise FileError(f"{path} is damaged: its content does not fit its name; {AGAIN}.")


def _check_sums(path: Path, part: Part) -> None:
    """Raise `FileError` unless a large part fits its sums; one without them must fit its name."""
    if set(part.sums) != set(_SUMS):
        _check_name(path, part)
    for name, sums in part.sums.items():
        row = changed_row(getattr(part, name), sums)
        if row is not None:
            raise FileError(f"{path} is damaged: {name} is not what was written, from about row {row}; {AGAIN}.")


def _check_rows(path: Path, part: Part) -> None:
    """Raise `FileError` unless the rows are directions and their uncertainties numbers, whatever the file's name."""
    off = ~(np.abs(np.linalg.norm(part.mean, axis=1) - 1.0) <= UNIT_TOLERANCE) | ~np.isfinite(part.uncertainty)
    if off.any():
        row = int(off.argmax())
        raise FileError(f"{path} is damaged: row {row} is no embedding, {int(off.sum())} in all; {AGAIN}.")


def _mapped(path: Path, rows: int, dim: int) -> np.ndarray:
    """The tensor `mean` as a map of the file."""
    import json

    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = json.loads(file.read(length))["mean"]["data_offsets"][0]
    return np.memmap(path, dtype=np.float32, mode="r", offset=8 + length + start, shape=(rows, dim))


def _write_entries(folder: Path, paths: list[str], class_names: list[str]) -> str:
    """Write the names; returns the file's name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = _entries_file(paths, class_names)
    columns = {"path": pa.array(paths, pa.string()), "class_name": pa.array(class_names, pa.string())}
    with atomic_path(folder / name) as temporary:
        pq.write_table(pa.table(columns), temporary, write_page_checksum=True)
    return name


def _read_entries(path: Path) -> tuple[list[str], list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_responds(path)
    try:
        # read_table would import pandas, which takes a second
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(["path", "class_name"])
        paths, class_names = (table.column(name).to_pylist() for name in ("path", "class_name"))
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise FileError(f"{path} is damaged or missing ({' '.join(str(error).split())}); {AGAIN}.") from error
    if set(table.schema.types) != {pa.string()} or any(column.null_count for column in table.columns):
        raise FileError(f"{path} holds {table.schema.types}; expected names. {AGAIN}.")
    if path.stat().st_size <= VERIFIED_BYTES and _entries_file(paths, class_names) != path.name:
        raise FileError(f"{path} is damaged: its content does not fit its name; {AGAIN}.")
    return paths, class_names


def _entries_file(paths: list[str], class_names: list[str]) -> str:
    return f"entries-{digest_of([paths, class_names])[:16]}.parquet"


def _write_looks(folder: Path, looks: np.ndarray) -> str:
    """Write the looks; returns the file's name, "" of none."""
    if not len(looks):
        return ""
    name = _looks_file(looks)
    write_tensors(folder / name, {"looks": np.ascontiguousarray(looks)})
    return name


def _looks_file(looks: np.ndarray) -> str:
    return f"looks-{hashlib.sha256(np.ascontiguousarray(looks).data).hexdigest()[:16]}.safetensors"


def _read_looks(folder: Path, name: str | None) -> np.ndarray:
    """What is known of the images' looks: the file `name`, or that of a gallery of an earlier version, which has none.

    Raises:
        FileError: it is missing or damaged: strangers would be answered.
    """
    path = folder / (EARLIER_LOOKS if name is None else name)
    if name == "" or (name is None and not present(path)):
        return np.empty((0, 0), dtype=np.float32)
    found = read_tensors(path, framework="numpy")[0].get("looks")
    if found is None or found.ndim != 2 or len(found) > KEPT or not np.isfinite(found).all():
        raise FileError(f"{path} is damaged; {AGAIN}.")
    if name is not None and _looks_file(found) != name:
        raise FileError(f"{path} is damaged: its content does not fit its name; {AGAIN}.")
    return np.asarray(found, dtype=np.float32)


def _remove_others(folder: Path, current: set[str]) -> None:
    """Remove files of earlier states; another process may still have them mapped, which does no harm."""
    for path in folder.iterdir():
        if path.name == EARLIER_LOOKS or (_named_by_content(path.name) and path.name not in current):
            with contextlib.suppress(OSError):
                path.unlink()


def _named_by_content(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_ROWS, _ENTRIES, _LOOKS))
