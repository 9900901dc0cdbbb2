"""Columns of vectors and of what they are, from a frame of pandas, Arrow or DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.sources.embeddings import VECTORS

LABELS = ("label", "labels", "class", "class_name")
NAMES = ("path", "paths", "id", "name")
CONVERSIONS = ("to_pandas", "df")  # of Arrow and Polars, of DuckDB


def is_frame(values: Any) -> bool:
    """Say whether `values` are a frame of pandas, Arrow, Polars or DuckDB."""
    return hasattr(values, "columns") and not isinstance(values, np.ndarray)


def vectors_and_names(frame: Any) -> tuple[np.ndarray, list[str] | None, list[str] | None]:
    """Return vectors (N, M), classes (N,) and names (N,) of a frame of pandas, Arrow, Polars or DuckDB.

    None for classes or names that it has not.

    Raises:
        DataError: no column of vectors, or vectors of several lengths.
    """
    convert = next((name for name in CONVERSIONS if hasattr(frame, name)), "")
    table = getattr(frame, convert)() if convert else frame
    columns = {str(name): table[name].to_numpy() for name in table.columns}
    vector = next((name for name in VECTORS if name in columns), "")
    if not vector:
        raise DataError(f"the frame has the columns {', '.join(columns)}; expected `vector`, lists of one length.")
    try:
        rows = np.stack([np.asarray(row) for row in columns[vector]])
    except ValueError as error:
        raise DataError(f"column {vector!r} of the frame holds no lists of one length ({error}).") from error
    labels, names = (column_of(Path("frame"), columns, "", usual, len(rows)) for usual in (LABELS, NAMES))
    return rows, labels, names


def column_of(
    file: Path, columns: Mapping[str, np.ndarray], wanted: str, usual: Sequence[str], count: int
) -> list[str] | None:
    """Return a column as text, the one that is wanted or the first of the usual names; None where there is none.

    Raises:
        DataError: the wanted column is missing, or has not `count` entries.
    """
    name = wanted or next((name for name in usual if name in columns), "")
    if not name:
        return None
    if name not in columns:
        raise DataError(f"{file} has no column {name!r}; it has {', '.join(columns)}.")
    values = columns[name]
    if values.shape != (count,):
        raise DataError(f"{file}: {name} has the shape {values.shape} for {count} vectors; give one entry each.")
    return ["" if value is None or value != value else str(value) for value in values.tolist()]
