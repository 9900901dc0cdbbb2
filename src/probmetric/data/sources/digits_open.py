"""Handwritten digits, open-set: digits 0-4 train and validate, 5-9 test (see `digits` for the images).

Two of the five training digits validate: 15 % would be one class, among whose images every retrieval is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probmetric.data.sources import RawFiles, Source, Table, options, register
from probmetric.data.sources.digits import DESCRIPTION, columns, load
from probmetric.data.splits import hold_out_classes
from probmetric.registry import Share


@register
@dataclass(frozen=True, kw_only=True)
class DigitsOpen(Source):
    """scikit-learn's digits with class-disjoint splits."""

    view = options(name="small", shift=2, rotation=10.0, scale=0.1)

    val_fraction: Share = 0.15

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Load the images from scikit-learn; no files are needed."""
        images, labels = load()
        train = np.arange(5)
        val = hold_out_classes(train, self.val_fraction, np.random.default_rng(seed))
        split = np.where(np.isin(labels, val), "val", np.where(np.isin(labels, train), "train", "test"))
        return Table(columns(labels, split), images.__getitem__, "open_set", DESCRIPTION)
