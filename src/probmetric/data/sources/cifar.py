"""CIFAR-10 and CIFAR-100: 60,000 colour images, 32x32; 50,000 train (15 % of them validate), 10,000 test.

Read from `cifar-10-python.tar.gz` or its folder `cifar-10-batches-py/`, and from `cifar-100-python.tar.gz` or
`cifar-100-python/`. A restricted unpickler reads their pickles and accepts only NumPy arrays and plain containers.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from probmetric.data.manifest import refusing
from probmetric.data.sources import RawFile, RawFiles, options, register
from probmetric.data.sources._small import ANEW, IMAGENET_VIEW, Part, SmallImages

VIEW = options(name="small", shift=4, padding="reflect", flip=True, erase=8)  # small shifts and flips, as in the papers
_SAFE = {
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


def safe_pickle(path: Path) -> Any:
    """Return the content of a pickle that holds only NumPy arrays and plain containers.

    Raises:
        DataError: the pickle holds anything else, or is damaged.
    """
    with refusing(f"{path} cannot be read", ANEW), path.open("rb") as file:
        return _ArraysOnly(file, encoding="latin1").load()


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that knows the few names a pickled NumPy array needs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise ValueError(f"it holds {module}.{name}, which would run code when read: it is no published file")
        return super().find_class(module, name)


class CifarImages(SmallImages):
    """Images in CIFAR's format: pickled batches in one archive.

    Attributes:
        batches: names of the files of training and of test images.
        labels: keys of the labels in a batch, and file and key of the names of classes.
    """

    batches: ClassVar[tuple[Sequence[str], Sequence[str]]]
    labels: ClassVar[tuple[str, str, str]]

    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return images (N, 32, 32, 3) uint8 and labels (N,) of the batches."""
        root = files.find(self.folders, self.files) / self.folders[0]
        key, listing, names = self.labels
        with refusing(f"{root} cannot be read", ANEW):
            train, test = (_joined([safe_pickle(root / name) for name in part], key) for part in self.batches)
            return train, test, [str(name) for name in safe_pickle(root / listing)[names]]


def _joined(batches: list[dict[str, Any]], key: str) -> Part:
    pixels = np.concatenate([np.asarray(batch["data"]) for batch in batches]).reshape(-1, 3, 32, 32)
    return pixels.transpose(0, 2, 3, 1), np.concatenate([np.asarray(batch[key]) for batch in batches])


@register("cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(CifarImages):
    """Tiny photographs of 10 classes."""

    title = "CIFAR-10"
    view = VIEW | options(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    views = options(lam=IMAGENET_VIEW)
    files = (RawFile("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "163 MB"),)
    folders = ("cifar-10-batches-py",)
    batches = ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"])
    labels = ("labels", "batches.meta", "label_names")
    where = "www.cs.toronto.edu/~kriz/cifar.html"
    counts = options(training=50_000, test=10_000, classes=10)


@register("cifar100")
@dataclass(frozen=True, kw_only=True)
class Cifar100(CifarImages):
    """Tiny photographs of 100 classes."""

    title = "CIFAR-100"
    view = VIEW | options(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
    files = (RawFile("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "161 MB"),)
    folders = ("cifar-100-python",)
    batches = (["train"], ["test"])
    labels = ("fine_labels", "meta", "fine_label_names")
    where = "www.cs.toronto.edu/~kriz/cifar.html"
    counts = options(training=50_000, test=10_000, classes=100)
