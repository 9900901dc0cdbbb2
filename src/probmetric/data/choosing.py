"""Open the splits that a step may see which chooses epochs, posteriors, temperatures, priors or settings.

So that no step selects on test images, each gets rows and labels of the splits named here only, and the store refuses
the pixels of others.

    validation  train on `train`, choose on `val`
    pooled      train on `train` and `val`, choose nothing: the last step of `refit`
    leaking     train on `train` and `val`, choose on `test`, like papers that report their best test epoch
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from probmetric.data.images import PreparedImages
from probmetric.data.manifest import load_columns
from probmetric.data.store import open_images

Role = Literal["validation", "pooled", "leaking"]
Use = Literal["train", "val"]
SPLITS: dict[Role, dict[Use, tuple[str, ...]]] = {
    "validation": {"train": ("train",), "val": ("val",)},
    "pooled": {"train": ("train", "val"), "val": ()},
    "leaking": {"train": ("train", "val"), "val": ("test",)},
}
AFTER_TRAINING: dict[str, Role] = {"validation": "validation", "refit": "pooled", "as_published": "pooled"}


def trained_on(selection: str) -> tuple[str, ...]:
    """Return the splits whose images and classes the finished weights have seen, by `training.selection`."""
    return SPLITS[AFTER_TRAINING[selection]]["train"]


def open_for_choosing(folder: str | Path, role: Role) -> dict[Use, PreparedImages]:
    """Open the images to train on and to choose on; reading the pixels of others raises `DataError`.

    Args:
        folder: the prepared folder.
        role: which splits the step may see.
    """
    columns = load_columns(folder, ["label", "split"])
    allowed = {split for splits in SPLITS[role].values() for split in splits}
    store = open_images(folder, splits=allowed)
    rows = {use: np.flatnonzero(np.isin(columns["split"], splits)) for use, splits in SPLITS[role].items()}
    return {use: PreparedImages(store, index, columns["label"][index]) for use, index in rows.items()}
