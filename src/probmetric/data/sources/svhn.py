"""SVHN: house numbers, 32x32 colour, 10 classes; 73,257 for training (15 % of them validate), 26,032 for testing.

Read from `train_32x32.mat` and `test_32x32.mat`. The papers use the test set as OOD images for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probmetric.data.sources import RawFile, RawFiles, register
from probmetric.data.sources._small import IMAGENET_VIEW, Part, SmallImages, read_offline


@register
@dataclass(frozen=True, kw_only=True)
class Svhn(SmallImages):
    """Street View House Numbers, cropped digits."""

    title = "SVHN"
    view: ClassVar[Mapping[str, Any]] = {"name": "small"}
    views: ClassVar[Mapping[str, Mapping[str, Any]]] = {"lam": IMAGENET_VIEW}
    files = (
        RawFile("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "174 MB"),
        RawFile("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "61 MB"),
    )
    where = "ufldl.stanford.edu/housenumbers"
    counts: ClassVar[Mapping[str, int]] = {"train+val": 73_257, "test": 26_032, "classes": 10}

    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return images (N, 32, 32, 3) uint8 and labels (N,) of both files."""
        train, test = (_part(files, *both) for both in zip(("train", "test"), self.files, strict=True))
        return train, test, self.classes


def _part(files: RawFiles, split: str, file: RawFile) -> Part:
    path = files.checked(file)
    part: Part = read_offline(files, file.name, lambda: _arrays(_reader()(path.parent, split)))
    return part


def _arrays(data: Any) -> Part:
    return np.ascontiguousarray(data.data.transpose(0, 2, 3, 1)), np.atleast_1d(data.labels)


def _reader() -> Any:
    """Return torchvision's class without its MD5 check, which `RawFiles.check` has done."""
    from torchvision.datasets import SVHN

    class Offline(SVHN):
        def _check_integrity(self) -> bool:
            return True

    return Offline
