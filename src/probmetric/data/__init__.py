"""Datasets: from archives and generators to prepared folders, and from there to batches.

A dataset is a file in `sources/`. `prepare_dataset` turns it into a folder (manifest.parquet, images.bin,
summary.json, digest) that everything else reads; `add_noise` derives a folder with noisy training labels,
`split_classes` derives one with other training and test classes; `doctor` checks a folder.
Importing this package loads neither PyTorch nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.data.sources import list_datasets
from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.data.checks import doctor
    from probmetric.data.manifest import DataError, load_columns, load_manifest, load_metadata, verify_digest
    from probmetric.data.noise import add_noise, inject_label_noise
    from probmetric.data.prepare import prepare_dataset
    from probmetric.data.status import dataset_status, format_status
    from probmetric.data.store import ImageStore, open_images
    from probmetric.data.variants import split_classes

__all__ = [
    "DataError",
    "ImageStore",
    "add_noise",
    "dataset_status",
    "doctor",
    "format_status",
    "inject_label_noise",
    "list_datasets",
    "load_columns",
    "load_manifest",
    "load_metadata",
    "open_images",
    "prepare_dataset",
    "split_classes",
    "verify_digest",
]

__getattr__ = exported(__name__)
