"""Read and write the files of a prepared folder other than its images.

manifest.parquet   one row per image; its bytes depend on pyarrow alone
summary.json       counts, options, notes
digest             `sha256sum` lines of manifest and images, so `sha256sum -c digest` checks it too
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.errors import ProbMetricError
from probmetric.io import FileError, atomic_path, check_readable, read_json, read_text, sha256_file, write_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# The version of the format that preparation writes; every DVC stage that prepares data contains it. Raise it with each
# change that gives other bytes for the same archives and options (labels, splits, pixels, columns, noise): DVC then
# prepares again. tests/data holds fingerprints that fail when bytes change.
FORMAT = 2
MANIFEST, IMAGES, SUMMARY, DIGEST = "manifest.parquet", "images.bin", "summary.json", "digest"
SPLITS = ("train", "val", "test")
TYPES: dict[str, str] = {
    "index": "int64",
    "path": "string",
    "label": "int64",
    "class_name": "string",
    "split": "string",
    "sha256": "string",
    "offset": "int64",
    "height": "int32",
    "width": "int32",
    "channels": "int32",
}
GROUP = 2**17
QUICK_LIMIT = 64 * 2**20
SHOWN = 50  # problems that one error lists
_KEY = b"probmetric"


class DataError(FileError):
    """A dataset, an archive or a prepared folder is wrong; the message names the file and the fix."""


class OptionError(ProbMetricError, ValueError):
    """An option has a value that is not allowed; the message states it and the allowed ones."""


@contextlib.contextmanager
def refusing(what: str, fix: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of `kinds` (by default those that readers of bytes raise) into one that says `what` (why); `fix`."""
    errors = kinds or (Exception,)
    try:
        yield
    except (DataError, MemoryError):
        raise
    except errors as error:
        raise DataError(f"{what} ({getattr(error, 'strerror', None) or error}); {fix}.") from error


def listed_problems(head: str, problems: Sequence[str]) -> DataError:
    """Make one error that lists all `problems`, a line for each."""
    more = [f"  and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return DataError("\n".join([head, *(f"  {problem}" for problem in problems[:SHOWN]), *more]))


def is_utf8(name: str) -> bool:
    """Say whether a name can be stored: all bytes of the file name it comes from are UTF-8."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def stays_inside(path: str) -> bool:
    """Say whether a relative path leads to something below the folder it is relative to."""
    parts = path.replace("\\", "/").split("/")
    return not (path == "" or parts[0] == "" or ".." in parts or PureWindowsPath(path).drive or "\0" in path)


def rebuild_advice(folder: Path) -> str:
    """Return the advice how to repair a prepared folder."""
    name = folder.resolve().name
    return f"restore it with `dvc checkout`, or delete the folder and rebuild it with `probmetric data ensure {name}`"


def write_manifest(path: Path, columns: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write the manifest atomically, `GROUP` rows at a time.

    Args:
        path: the file.
        columns: name -> array (N,); the names in `TYPES` are required, the rest is stored after them. Text is an array
            of `str`, or of UTF-8 bytes (`S`); digests may be raw bytes (`V`), and are written in hexadecimal.
        metadata: JSON-able facts kept in the file's schema (`images`: folder that owns images.bin).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    missing = [name for name in TYPES if name not in columns]
    if missing:
        raise ValueError(f"manifest {path} lacks the columns {missing}; required: {list(TYPES)}.")
    order = [*TYPES, *(name for name in columns if name not in TYPES)]
    encoded = {_KEY: json.dumps(metadata, sort_keys=True).encode()}

    def rows(start: int) -> pa.Table:
        arrays = [_arrow(columns[name][start : start + GROUP], TYPES.get(name)) for name in order]
        return pa.Table.from_arrays(arrays, names=order).replace_schema_metadata(encoded)

    first = rows(0)
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for start in range(GROUP, len(columns["path"]), GROUP):
            writer.write_table(rows(start))


def text(value: Any) -> str:
    """Return an element of a column of text, `str` or UTF-8 bytes, as `str`."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _arrow(values: np.ndarray, kind: str | None) -> pa.Array:
    """Make a column for pyarrow without `pa.array(ndarray)`, which imports pandas."""
    import pyarrow as pa

    if values.dtype.kind in "iuf":
        data = np.ascontiguousarray(values, dtype=kind or values.dtype.newbyteorder("="))
        return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), [None, pa.py_buffer(data)])
    plain: list[Any] = values.tolist()
    if values.dtype.kind in "VS":
        plain = [value.hex() if values.dtype.kind == "V" else value.decode() for value in plain]
    return pa.array(plain, type=kind)


def counted(label: np.ndarray, split: np.ndarray) -> dict[str, Any]:
    """Return the numbers of images and classes, in all and of every split, of labels (N,) and splits (N,)."""
    counts = {
        name: {"images": int((split == name).sum()), "classes": len(np.unique(label[split == name]))} for name in SPLITS
    }
    return {"images": len(label), "classes": len(np.unique(label)), "splits": counts}


def read_summary(folder: str | Path) -> dict[str, Any]:
    """Read the summary of a prepared dataset: protocol, numbers of images and classes, options of its source.

    Raises:
        FileError: the summary is missing or damaged.
    """
    path, fix = Path(folder) / SUMMARY, rebuild_advice(Path(folder))
    summary = read_json(path, fix)
    if not isinstance(summary, dict) or not isinstance(summary.get("splits"), dict):
        raise FileError(f"{path} is damaged (it has no splits); {fix}.")
    return summary


def read_table(
    folder: str | Path, columns: Sequence[str] | None = None, *, optional: Sequence[str] = ()
) -> tuple[pa.Table, dict[str, Any]]:
    """Read the manifest of a prepared folder: (table, metadata).

    Args:
        folder: the prepared folder.
        columns: columns to read; by default all.
        optional: further columns, read if the manifest has them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(folder) / MANIFEST
    check_readable(path)
    try:
        with pq.ParquetFile(path) as file:
            there = file.schema_arrow.names
            wanted = there if columns is None else [name for name in (*columns, *optional) if name in there]
            table = file.read(wanted)
        metadata = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    except FileNotFoundError as error:
        fix = f"{rebuild_advice(Path(folder))}, or check the path"
        raise DataError(f"{path} is missing: {folder} is not a prepared dataset; {fix}.") from error
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}); {rebuild_advice(Path(folder))}.") from error
    absent = [name for name in columns or TYPES if name not in table.column_names]
    if absent:
        raise DataError(f"{path} has no column {absent}; {rebuild_advice(Path(folder))}.")
    for name in sorted(TYPES.keys() & set(table.column_names)):
        column = table.column(name)
        if column.null_count or pa.types.is_integer(column.type) != TYPES[name].startswith("int"):
            what = f"column {name} has empty cells, or values of another type than {TYPES[name]}"
            raise DataError(f"{path}: {what}; {rebuild_advice(Path(folder))}.")
    return table, metadata


def values_of(table: pa.Table, name: str) -> np.ndarray:
    """Return column `name` as an array (N,), without `to_numpy` and similar methods, which import pandas."""
    import pyarrow as pa

    array = table.column(name).combine_chunks()
    kind = array.type
    whole = len(array) > 0 and not array.null_count
    if whole and pa.types.is_string(kind):  # repeated values share their memory
        coded = array.dictionary_encode()
        return np.array(coded.dictionary.to_pylist(), dtype=object)[np.from_dlpack(coded.indices)]
    if whole and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.array(np.from_dlpack(array))
    return np.array(array.to_pylist(), dtype=None if pa.types.is_boolean(kind) else object)


def read_columns(
    folder: str | Path, columns: Sequence[str] | None = None, *, optional: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read columns of a prepared folder's manifest: (name -> array (N,), metadata); arguments as for `read_table`."""
    table, metadata = read_table(folder, columns, optional=optional)
    return {name: values_of(table, name) for name in table.column_names}, metadata


def load_columns(folder: str | Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Read some columns of a prepared folder's manifest as NumPy arrays, without importing pandas."""
    return read_columns(folder, columns)[0]


def load_metadata(folder: str | Path) -> dict[str, Any]:
    """Return the facts in the manifest's header: `dataset`, `protocol`, `images` and, for noisy labels, the noise."""
    return read_table(folder, ["index"])[1]


def load_manifest(folder: str | Path) -> pd.DataFrame:
    """Read the manifest of a prepared folder as a DataFrame; its header lies in `frame.attrs`."""
    table, metadata = read_table(folder)
    frame: pd.DataFrame = table.replace_schema_metadata(None).to_pandas()
    frame.attrs.update(metadata)
    return frame


def write_digest(folder: str | Path, sha256: str = "") -> None:
    """Write the digest of a prepared folder: of its manifest, and of the pixels that the manifest names.

    Args:
        folder: the prepared folder.
        sha256: SHA-256 of the pixels. "": as in the digest that the folder has, which must pass the quick check; if
            there is none, the pixels are read.
    """
    folder = Path(folder)
    images = (Path(load_metadata(folder).get("images", ".")) / IMAGES).as_posix()
    if not sha256 and (folder / DIGEST).is_file():
        verify_digest(folder)
        sha256 = read_digest(folder).get(images, "")
    digests = {MANIFEST: sha256_file(folder / MANIFEST), images: sha256 or sha256_file(folder / images)}
    write_text(folder / DIGEST, "".join(f"{digest}  {name}\n" for name, digest in digests.items()))


def read_digest(folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file, by its name relative to the folder."""
    path = Path(folder) / DIGEST
    try:
        text = read_text(path, rebuild_advice(Path(folder)))
    except FileError as error:
        raise DataError(str(error)) from error
    with refusing(f"{path} is not in `sha256sum` format", rebuild_advice(Path(folder)), ValueError):
        pairs = [line.split("  ", 1) for line in text.splitlines()]
        digests = {name: value for value, name in pairs}
    if MANIFEST not in digests or not any(Path(name).name == IMAGES for name in digests):
        raise DataError(f"{path} does not list {MANIFEST} and {IMAGES}; {rebuild_advice(Path(folder))}.")
    return digests


def verify_digest(folder: str | Path, *, quick: bool = True) -> None:
    """Check that the files of a prepared folder are the ones that were prepared.

    Args:
        folder: the prepared folder.
        quick: hash the manifest and images.bin of at most 64 MiB; check a larger images.bin by size only, which is fast
            enough for a training step. False hashes everything.

    Raises:
        DataError: a file is missing, truncated or changed; names the file and the fix.
    """
    folder = Path(folder)
    for name, expected in read_digest(folder).items():
        path = folder / name
        owner = path.parent
        if not path.is_file():
            raise DataError(f"{path} is missing, but {folder / DIGEST} lists it; {rebuild_advice(owner)}.")
        if path.name == IMAGES:
            _check_size(folder, path)
        if quick and path.stat().st_size > QUICK_LIMIT and path.name != MANIFEST:
            continue
        actual = sha256_file(path)
        if actual != expected:
            raise DataError(
                f"{path} was changed after it was prepared: its SHA-256 is {actual[:12]}..., {folder / DIGEST} says "
                f"{expected[:12]}...; {rebuild_advice(owner)}."
            )


def _check_size(folder: Path, path: Path) -> None:
    """Raise `DataError` unless images.bin has the size that the manifest's header says."""
    expected, actual = load_metadata(folder)["bytes"], path.stat().st_size
    if actual != expected:
        state = "truncated" if actual < expected else "too long"
        raise DataError(
            f"{path} is {state}: {actual:,} bytes, the manifest describes {expected:,}; {rebuild_advice(path.parent)}."
        )
