"""A dataset whose test images and test labels are others: what is chosen must not notice."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from probmetric.data.manifest import write_digest


def with_other_test_images(folder: Path, copy: Path) -> Path:
    """The prepared folder with noise for test images and their labels shuffled; training and validation untouched."""
    shutil.copytree(folder, copy)
    (copy / "manifest.parquet").chmod(0o644)
    (copy / "images.bin").chmod(0o644)
    (copy / "digest").chmod(0o644)
    generator = np.random.default_rng(0)
    table = parquet.read_table(copy / "manifest.parquet")
    test = np.asarray(table["split"]) == "test"
    labels = np.asarray(table["label"]).copy()
    labels[test] = generator.permutation(labels[test])
    place = table.column_names.index("label")
    parquet.write_table(
        table.set_column(place, table.schema.field("label"), pa.array(labels)), copy / "manifest.parquet"
    )
    pixels = np.fromfile(copy / "images.bin", dtype=np.uint8).reshape(len(test), -1)
    pixels[test] = generator.integers(0, 256, pixels[test].shape)
    pixels.tofile(copy / "images.bin")
    (copy / "digest").unlink()
    write_digest(copy)
    return copy
