"""Embeddings as a table that vector databases take as it is: path, label, split, vector, uncertainty, concentration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.io import FileError, atomic_path, check_new_file

if TYPE_CHECKING:
    import pyarrow as pa

    from probmetric.data.loose import LooseImages
    from probmetric.serving._model import Model, OnError

ROWS = 4096


def write_vectors(
    model: Model, items: LooseImages, path: Path, *, on_error: OnError = "raise"
) -> tuple[int, list[Any]]:
    """Embed images and write a Parquet file, block by block; returns how many, and (name, reason) of those left out.

    Raises:
        DataError: images that cannot be read; all of a block are named.
        FileError: the file cannot be written, or is not called so.
    """
    check_vectors_file(path)
    import pyarrow.parquet as pq

    count, problems = 0, list[Any]()
    with atomic_path(path) as temporary:
        writer = None
        try:
            for start in range(0, len(items.images), ROWS):
                table, left = _block(model, items, range(start, min(start + ROWS, len(items.images))), on_error)
                problems += left
                writer = writer or pq.ParquetWriter(temporary, table.schema)
                writer.write_table(table)
                count += len(table)
        finally:
            if writer is not None:
                writer.close()
    return count, problems


def check_vectors_file(path: Path) -> None:
    """Raise an error where `path` is not called as a Parquet file, or is a file that `write_vectors` did not write."""
    if path.suffix != ".parquet":
        raise FileError(f"{path} is to be a Parquet file; call it {path.with_suffix('.parquet').name}.")
    check_new_file(path, _written_here)


def _written_here(path: Path) -> bool:
    """Say whether a file is a Parquet file of vectors that `write_vectors` wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return b"probmetric.model" in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def _block(model: Model, items: LooseImages, rows: range, on_error: OnError) -> tuple[pa.Table, list[Any]]:
    import numpy as np
    import pyarrow as pa

    found = model.embedded(items.images[rows.start : rows.stop], on_error=on_error)
    kept = [rows[number] for number in found.kept.tolist()]
    mean = found.batch.mean.numpy()
    concentration = found.batch.concentration
    columns = {
        "path": pa.array([str(items.paths[row]) for row in kept], pa.string()),
        "label": pa.array([items.class_names[row] for row in kept], pa.string()),
        "split": pa.array([items.splits[row] if items.splits else "" for row in kept], pa.string()),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(mean.ravel().astype(np.float32)), mean.shape[1]),
        "uncertainty": pa.array(found.batch.uncertainty.numpy(), pa.float32()),
        "concentration": pa.array([None] * len(kept) if concentration is None else concentration.numpy(), pa.float32()),
    }
    about = {"probmetric.model": model.digest, "probmetric.name": model.record.name}
    return pa.table(columns).replace_schema_metadata(about), found.problems
