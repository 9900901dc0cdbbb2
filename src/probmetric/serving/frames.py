"""Read vectors and the columns that describe them from a frame of pandas, Arrow, Polars or DuckDB."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.sources.table import VECTORS
from probmetric.metrics.arrays import text_of

log = logging.getLogger(__name__)
MODEL = "probmetric.model"
LABELS = ("label", "labels", "class", "class_name")
PATHS = ("path", "paths")
NAMES = (*PATHS, "id", "name")
CONVERSIONS = ("to_pandas", "df")  # methods of Arrow and Polars, and of DuckDB


def is_frame(values: Any) -> bool:
    """Say whether `values` are a frame of pandas, Arrow, Polars or DuckDB."""
    return hasattr(values, "columns") and not isinstance(values, np.ndarray)


def vectors_and_names(frame: Any) -> tuple[np.ndarray, list[str] | None, list[str] | None]:
    """Return vectors (N, M), classes (N,) and names (N,) of a frame of pandas, Arrow, Polars or DuckDB.

    Classes or names are None where the frame has no such column.

    Raises:
        DataError: there is no column of vectors, or the vectors differ in length.
    """
    convert = next((name for name in CONVERSIONS if hasattr(frame, name)), "")
    table = getattr(frame, convert)() if convert else frame
    columns = {str(name): table[name].to_numpy() for name in table.columns}
    vector = column_called(columns, "", VECTORS)
    if not vector:
        raise DataError(f"the frame has the columns {', '.join(columns)}; expected `vector`, lists of one length.")
    try:
        rows = np.stack([np.asarray(row) for row in columns[vector]])
    except ValueError as error:
        raise DataError(f"column {vector!r} of the frame holds no lists of one length ({error}).") from error
    labels = column_of(Path("frame"), columns, column_called(columns, "", LABELS), len(rows))
    return rows, labels, names_of(Path("frame"), columns, len(rows))[1]


def column_of(file: Path, columns: Mapping[str, np.ndarray], name: str, count: int) -> list[str] | None:
    """Return the column `name` as text; None for the name "".

    Raises:
        DataError: the column is missing, or has not `count` entries.
    """
    if not name:
        return None
    if name not in columns:
        raise DataError(f"{file} has no column {name!r}; it has {', '.join(columns)}.")
    values = columns[name]
    if values.shape != (count,):
        raise DataError(f"{file}: {name} has the shape {values.shape} for {count} vectors; give one entry each.")
    return [text_of(value) for value in values.tolist()]


def model_of(file: Path) -> str:
    """Return the digest of the model that made a file's vectors, which `probmetric vectors` wrote; "" if unknown."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return (pq.read_schema(file).metadata or {}).get(MODEL.encode(), b"").decode()
    except (pa.ArrowException, OSError):  # not written as Parquet
        return ""


def check_one_model(file: Path, beside: Path) -> None:
    """Raise `DataError` if two files state that different models made their vectors (`model_of`)."""
    if len({model_of(file), model_of(beside)} - {""}) > 1:
        raise DataError(f"{beside} holds vectors of another model than {file}: write both with one model.")


def column_called(columns: Collection[str], wanted: str, usual: Sequence[str]) -> str:
    """Return the name of a column: the wanted one, or the first usual name in the file; "" if there is none."""
    return wanted or next((name for name in usual if name in columns), "")


def names_of(file: Path, columns: Mapping[str, np.ndarray], count: int) -> tuple[str, list[str] | None]:
    """Return the first of the columns `NAMES` that names every row, and its entries; "" and None without one.

    `id` and `name` may be those of a class or a person; they are used only if no entry occurs twice.

    Raises:
        DataError: a column has not `count` entries.
    """
    for name in NAMES:
        named = column_of(file, columns, name, count) if name in columns else None
        if named and "" not in named and (name in PATHS or len(set(named)) == len(named)):
            return name, named
        if named:
            log.info("%s: rows share values in the column %s, so it does not name the rows", file, name)
    return "", None
