"""Datasets: from archives and generators to prepared folders, and from there to batches.

A dataset is a file in `sources/`. `prepare_dataset` turns it into a folder (manifest.parquet, images.bin,
summary.json, digest) that everything else reads; `add_noise` derives a folder with noisy training labels;
`doctor` checks one. Importing this package loads neither PyTorch nor pandas: names are imported when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.data.sources import REGISTRY, list_datasets
from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.data.checks import Finding, doctor
    from probmetric.data.manifest import DataError, load_columns, load_manifest, load_metadata, verify_digest
    from probmetric.data.noise import add_noise, inject_label_noise
    from probmetric.data.prepare import prepare_dataset
    from probmetric.data.status import DatasetStatus, dataset_status, format_status
    from probmetric.data.store import ImageStore, open_images

_HOME = {
    "verify_digest": "manifest",
    "Finding": "checks",
    "doctor": "checks",
    "DataError": "manifest",
    "load_columns": "manifest",
    "load_manifest": "manifest",
    "load_metadata": "manifest",
    "add_noise": "noise",
    "inject_label_noise": "noise",
    "prepare_dataset": "prepare",
    "DatasetStatus": "status",
    "dataset_status": "status",
    "format_status": "status",
    "ImageStore": "store",
    "open_images": "store",
}

__all__ = [
    "REGISTRY",
    "DataError",
    "DatasetStatus",
    "Finding",
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
    "verify_digest",
]


__getattr__ = exported(__name__, _HOME)
