"""Handwritten digits, closed-set: every class is in every split (see `_digits` for the images).

Test is a stratified 30 % of the images, validation a stratified 15 % of the rest.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from probmetric.data.raw import RawFiles
from probmetric.data.sources import _digits, register
from probmetric.data.sources._base import Source, Table
from probmetric.data.splits import stratified_splits
from probmetric.registry import Share


@register
class Digits(Source):
    """scikit-learn's digits with stratified splits."""

    view: ClassVar[dict[str, Any]] = {"name": "small", "shift": 2, "rotation": 10.0, "scale": 0.1}
    closed_set = True

    def __init__(self, *, test_fraction: Share = 0.3, val_fraction: Share = 0.15) -> None:
        self.test_fraction = test_fraction
        self.val_fraction = val_fraction

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Images from scikit-learn; no files are needed."""
        images, labels = _digits.load()
        split = stratified_splits(labels, self.test_fraction, self.val_fraction, np.random.default_rng(seed))
        return Table(_digits.columns(labels, split), images.__getitem__, "closed_set", _digits.DESCRIPTION)
