"""What the steps that choose (epochs, posteriors, temperatures, priors, settings) may open of a prepared dataset.

Nothing is selected on test images: these steps get the rows, labels and pixels of the splits named here and no others.
Rows and labels of other splits are not in what they receive, and the store refuses their pixels.

    validation  train on `train`, choose on `val`
    pooled      train on `train` and `val`, choose nothing: what `refit` ends with
    leaking     train on `train` and `val`, choose on `test`, as papers do that report their best test epoch
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from probmetric.data.manifest import load_columns
from probmetric.data.store import ImageStore, open_images

Role = Literal["validation", "pooled", "leaking"]
Use = Literal["train", "val"]
SPLITS: dict[Role, dict[Use, tuple[str, ...]]] = {
    "validation": {"train": ("train",), "val": ("val",)},
    "pooled": {"train": ("train", "val"), "val": ()},
    "leaking": {"train": ("train", "val"), "val": ("test",)},
}


@dataclass(frozen=True)
class Opened:
    """What a step that chooses sees.

    Attributes:
        rows: manifest rows to train on and to choose on (N,).
        labels: their classes (N,).
        store: the pixels of these rows; others raise `DataError`.
    """

    rows: dict[Use, np.ndarray]
    labels: dict[Use, np.ndarray]
    store: ImageStore


def open_for_choosing(folder: str | Path, role: Role) -> Opened:
    """Open a prepared folder for a step that chooses.

    Args:
        folder: the prepared folder.
        role: which splits it may see.
    """
    columns = load_columns(folder, ["label", "split"])
    rows, labels = {}, {}
    for use, splits in SPLITS[role].items():
        rows[use] = np.flatnonzero(np.isin(columns["split"], splits))
        labels[use] = columns["label"][rows[use]]
    allowed = {split for splits in SPLITS[role].values() for split in splits}
    return Opened(rows, labels, open_images(folder, splits=allowed))
