"""SVHN: house numbers, 32x32 colour, 10 classes; 73,257 for training (15 % of them validate), 26,032 for testing.

Read from `train_32x32.mat` and `test_32x32.mat`. The papers use the test set as OOD images for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probmetric.data.manifest import refusing
from probmetric.data.sources import RawFile, RawFiles, options, register
from probmetric.data.sources._listing import mat_variable
from probmetric.data.sources._small import ANEW, IMAGENET_VIEW, Part, SmallImages


@register
@dataclass(frozen=True, kw_only=True)
class Svhn(SmallImages):
    """Street View House Numbers, cropped digits."""

    title = "SVHN"
    view = options(name="small")
    views = options(lam=IMAGENET_VIEW)
    files = (
        RawFile("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "174 MB"),
        RawFile("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "61 MB"),
    )
    where = "ufldl.stanford.edu/housenumbers"
    counts = options(training=73_257, test=26_032, classes=10)

    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return images (N, 32, 32, 3) uint8 and labels (N,) of both files."""
        train, test = (_part(files.checked(file)) for file in self.files)
        return train, test, self.classes


def _part(path: Path) -> Part:
    with refusing(f"{path} cannot be read", ANEW):
        images, labels = (mat_variable(path, name) for name in ("X", "y"))
        labels = np.atleast_1d(labels).astype(np.int64)
        return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), np.where(labels == 10, 0, labels)
