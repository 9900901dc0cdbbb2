"""Data sets of small images: MNIST, FashionMNIST, CIFAR-10, CIFAR-100, SVHN.

Their files are the user's; nothing is downloaded.

Splits: the published test set tests; 15 % of the training images, stratified, validate. With `protocol: vmf`
scikit-learn's stratified split draws these 15 % with random_state 1234, as in the released code of the vMF paper.

No `from __future__ import annotations` here: sources in other modules inherit these options with their ranges.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.raw import RawFiles
from probmetric.data.sources._base import Source, Table, check_counts
from probmetric.data.sources._listing import check_labels
from probmetric.data.splits import hold_out_images
from probmetric.registry import Flag

FixedProtocol = Literal["standard", "vmf"]
Part = tuple[np.ndarray, np.ndarray]
VAL_FRACTION = 0.15
# view of the Laplacian metric learner, which normalises by ImageNet's statistics
IMAGENET_VIEW: dict[str, Any] = {"name": "small", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
ANEW = "it is damaged or truncated, get it again"


@dataclass(frozen=True, kw_only=True)
class SmallImages(Source):
    """A data set with a published training and test part.

    Attributes:
        title: its name in summary.json.
        classes: names of the classes.
        protocol: how validation images are drawn.
        subset: accept fewer images than were published.
    """

    title: ClassVar[str]
    classes: ClassVar[Sequence[str]] = tuple(f"digit {i}" for i in range(10))
    closed_set: ClassVar[Flag] = True

    protocol: FixedProtocol = "standard"
    subset: bool = False

    @abstractmethod
    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return training and test (images (N, H, W, C) uint8, labels (N,)), and the names of the classes."""

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images of both parts.

        Raises:
            DataError: a label is not a class, or the counts differ from the published ones.
        """
        (train, train_labels), (test, test_labels), names = self.parts(files)
        check_labels(f"{files.name}, training images", train, train_labels, names)
        check_labels(f"{files.name}, test images", test, test_labels, names)
        if train.shape[1:] != test.shape[1:]:
            raise DataError(f"{files.name}: training images are {train.shape[1:]}, test images {test.shape[1:]}.")
        images = np.concatenate([train, test])
        labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
        split = np.repeat(["train", "test"], [len(train), len(test)])
        split[np.flatnonzero(_held_out(train_labels, self.protocol, seed))] = "val"
        counts = {"training": len(train), "test": len(test), "classes": len(np.unique(labels))}
        check_counts(files, self.counts, counts)
        paths = [f"{part}/{i:05d}" for part, rows in (("train", train), ("test", test)) for i in range(len(rows))]
        columns = {"path": np.array(paths), "label": labels, "class_name": np.array(names)[labels], "split": split}
        return Table(columns, images.__getitem__, "closed_set", self.title)


def _held_out(labels: np.ndarray, protocol: FixedProtocol, seed: int) -> np.ndarray:
    if protocol == "standard":
        return hold_out_images(labels, VAL_FRACTION, np.random.default_rng(seed))
    from sklearn.model_selection import train_test_split

    _, held = train_test_split(np.arange(len(labels)), test_size=VAL_FRACTION, stratify=labels, random_state=1234)
    return np.isin(np.arange(len(labels)), held)
