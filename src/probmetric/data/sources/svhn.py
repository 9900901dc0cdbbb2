"""SVHN: house numbers, 32x32 colour, 10 classes; 73,257 for training (15 % of them validate), 26,032 for testing.

Read from `train_32x32.mat` and `test_32x32.mat`. The papers use the test set as OOD images for CIFAR-10.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Table
from probmetric.data.sources._small import IMAGENET_VIEW, FixedProtocol, Part, SmallImages, read_offline


@register
class Svhn(SmallImages):
    """Street View House Numbers, cropped digits."""

    view: ClassVar[dict[str, Any]] = {"name": "small"}
    views: ClassVar[dict[str, dict[str, Any]]] = {"lam": IMAGENET_VIEW}
    closed_set = True
    files = (
        RawFile("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "174 MB"),
        RawFile("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "61 MB"),
    )
    where = "ufldl.stanford.edu/housenumbers"
    counts: ClassVar[dict[str, int]] = {"train+val": 73_257, "test": 26_032, "classes": 10}

    def __init__(self, *, protocol: FixedProtocol = "standard", subset: bool = False) -> None:
        self.protocol: FixedProtocol = protocol

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Read both files with torchvision."""
        parts = (_part(files, "train", self.files[0]), _part(files, "test", self.files[1]))
        names = [f"digit {i}" for i in range(10)]
        return self.table(files, parts, names, "SVHN", seed)


def _part(files: RawFiles, split: str, known: RawFile) -> Part:
    found = files.files(known.name)
    if not found:
        raise files.missing([known.name], Svhn.files, [])
    files.check(found[0], known)
    part: Part = read_offline(files, known.name, lambda: _arrays(_reader()(found[0].parent, split)))
    return part


def _arrays(data: Any) -> Part:
    return np.ascontiguousarray(data.data.transpose(0, 2, 3, 1)), np.atleast_1d(data.labels)


def _reader() -> Any:
    """Torchvision's class without its MD5 check, which `RawFiles.check` has done."""
    from torchvision.datasets import SVHN

    class Offline(SVHN):
        def _check_integrity(self) -> bool:
            return True

    return Offline
