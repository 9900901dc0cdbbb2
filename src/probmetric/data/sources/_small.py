"""Data sets of small images that torchvision reads: MNIST, FashionMNIST, CIFAR-10, CIFAR-100, SVHN.

torchvision's readers run on the user's files; nothing is downloaded. Their MD5 checks are replaced by ours
(`RawFiles.check`), which also accept a subset when asked to, and CIFAR's pickles are read by a restricted
unpickler first: only NumPy arrays and plain containers may be in them.

Splits: the published test set tests; 15 % of the training images, stratified, validate. With `protocol: vmf` they are
the ones scikit-learn's stratified split draws with random_state 1234, as in the released code of the vMF paper.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from probmetric.data.archives import DAMAGE, copy_limited, unpacked_limit
from probmetric.data.manifest import DataError
from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources._base import Table, check_counts
from probmetric.data.sources._listing import check_labels
from probmetric.data.splits import hold_out_images

FixedProtocol = Literal["standard", "vmf"]
Part = tuple[np.ndarray, np.ndarray]
VAL_FRACTION = 0.15
_SAFE = {
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


def fixed_table(
    files: RawFiles,
    parts: tuple[Part, Part],
    names: Sequence[str],
    *,
    protocol: FixedProtocol,
    seed: int,
    counts: dict[str, int],
    description: str,
) -> Table:
    """Table of a data set with a published training and test part.

    Args:
        files: the raw files, for notes.
        parts: training and test (images (N, H, W, C) uint8, labels (N,)).
        names: class names.
        protocol: how validation images are drawn.
        seed: seed of the validation split.
        counts: published counts (`train+val`, `test`, `classes`).
        description: for summary.json.
    """
    for part, (pixels, numbers) in zip(("training", "test"), parts, strict=True):
        check_labels(f"{files.name}, {part} images", pixels, numbers, names)
    (train, train_labels), (test, test_labels) = parts
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{files.name}: training images are {train.shape[1:]}, test images {test.shape[1:]}.")
    images = np.concatenate([train, test])
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    split = np.concatenate([np.full(len(train), "train"), np.full(len(test), "test")]).astype("<U5")
    split[np.flatnonzero(_held_out(train_labels, protocol, seed))] = "val"
    found = {"train+val": len(train), "test": len(test), "classes": len(np.unique(labels))}
    check_counts(files, counts, found)
    paths = [f"train/{i:05d}" for i in range(len(train))] + [f"test/{i:05d}" for i in range(len(test))]
    columns = {
        "path": np.array(paths),
        "label": labels,
        "class_name": np.array([names[label] for label in labels]),
        "split": split,
    }
    return Table(columns, images.__getitem__, "closed_set", description)


def _held_out(labels: np.ndarray, protocol: FixedProtocol, seed: int) -> np.ndarray:
    if protocol == "standard":
        return hold_out_images(labels, VAL_FRACTION, np.random.default_rng(seed))
    from sklearn.model_selection import train_test_split

    _, held = train_test_split(np.arange(len(labels)), test_size=VAL_FRACTION, stratify=labels, random_state=1234)
    return np.isin(np.arange(len(labels)), held)


def read_offline(files: RawFiles, what: str, reader: Callable[[], Any]) -> Any:
    """Call a torchvision reader; its complaints become errors that name the data set's files."""
    try:
        return reader()
    except Exception as error:  # a reader of other people's bytes may stumble anywhere
        raise DataError(
            f"{files.name}: {what} cannot be read ({error}); it is damaged or truncated, get it again."
        ) from error


def idx_files(files: RawFiles, known: Sequence[RawFile], target: Path) -> Path:
    """Put the four ubyte files, unpacked if they are gzipped, into `target`; returns `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for file in known:
        plain = file.name.removesuffix(".gz")
        found = files.files(file.name) or files.files(plain)
        if not found:
            raise files.missing([plain], known, [])
        files.check(found[0], file if found[0].name == file.name else RawFile(plain))
        try:
            (target / plain).unlink(missing_ok=True)
            with gzip.open(found[0]) if found[0].suffix == ".gz" else found[0].open("rb") as source:
                copy_limited(found[0], plain, source, target / plain, unpacked_limit(found[0], target))
        except DAMAGE as error:
            raise DataError(f"{found[0]} is damaged or truncated ({error}); get it again.") from error
    return target


def check_pickle(path: Path) -> None:
    """Raise `DataError` unless a pickle holds nothing but NumPy arrays and plain containers."""
    try:
        with path.open("rb") as file:
            _ArraysOnly(file, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # an unpickler of other people's bytes may stumble anywhere
        raise DataError(f"{path} is damaged or truncated ({error}); get it again.") from error


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that knows the few names a pickled NumPy array needs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise DataError(
                f"a pickle holds {module}.{name}, which would run code when read; it is not a published file."
            )
        return super().find_class(module, name)
