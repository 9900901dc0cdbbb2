"""Handwritten digits, closed-set (`digits`) or open-set (`digits_open`).

The images are the 1,797 scanned digits that ship inside scikit-learn (UCI Optical Recognition of Handwritten Digits).

The scans are 8x8 with values 0..16 (each value counts the ink in a 4x4 block of the original 32x32 bitmap). They are
scaled to 0..255 and enlarged to 32x32 by PIL's bicubic filter, whose 8-bit path is integer arithmetic and therefore
the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.sources import RawFiles, Source, Table, options, register
from probmetric.data.splits import hold_out_classes, stratified_splits
from probmetric.registry import Share

SIZE = 32
DESCRIPTION = "scikit-learn's 1,797 scanned digits (8x8), enlarged to 32x32 grey by PIL's bicubic filter"


@register("digits")
@dataclass(frozen=True, kw_only=True)
class Digits(Source):
    """scikit-learn's digits, closed-set: every class is in every split.

    Test is a stratified 30 % of the images, validation a stratified 15 % of the rest.
    """

    view = options(name="small", shift=2, rotation=10.0, scale=0.1)
    closed_set = True

    test_fraction: Share = 0.3
    val_fraction: Share = 0.15

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Load the images from scikit-learn; no files are needed."""
        images, labels = load()
        split = stratified_splits(labels, self.test_fraction, self.val_fraction, np.random.default_rng(seed))
        return Table(columns(labels, split), images.__getitem__, "closed_set", DESCRIPTION)


@register("digits_open")
@dataclass(frozen=True, kw_only=True)
class DigitsOpen(Source):
    """scikit-learn's digits, open-set: digits 0-4 train and validate, 5-9 test.

    Two of the five training digits validate: 15 % would be a single class, in which every retrieval is right.
    """

    view = options(name="small", shift=2, rotation=10.0, scale=0.1)

    val_fraction: Share = 0.15

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Load the images from scikit-learn; no files are needed."""
        images, labels = load()
        train = np.arange(5)
        val = hold_out_classes(train, self.val_fraction, np.random.default_rng(seed))
        split = np.where(np.isin(labels, val), "val", np.where(np.isin(labels, train), "train", "test"))
        return Table(columns(labels, split), images.__getitem__, "open_set", DESCRIPTION)


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 32, 32, 1) uint8 and labels (N,)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("the digits come with scikit-learn; install it: pip install 'probmetric[all]'.") from error
    from PIL import Image

    bunch = load_digits()
    scans = [Image.fromarray(scan) for scan in np.rint(bunch.images * (255 / 16)).astype(np.uint8)]
    enlarged = [np.asarray(scan.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for scan in scans]
    return np.stack(enlarged)[..., None], bunch.target.astype(np.int64)


def columns(labels: np.ndarray, split: np.ndarray) -> dict[str, np.ndarray]:
    """Return the manifest columns of the digits: the path is the row in scikit-learn's table."""
    return {
        "path": np.array([f"digits/{row:04d}" for row in range(len(labels))]),
        "label": labels,
        "class_name": np.array([f"digit {label}" for label in labels]),
        "split": split,
    }
