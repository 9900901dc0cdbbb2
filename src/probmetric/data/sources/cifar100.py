"""CIFAR-100: 60,000 colour images, 32x32, 100 classes; 50,000 for training (15 % of them validate), 10,000 for testing.

Read from `cifar-100-python.tar.gz` or its folder `cifar-100-python/`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Table
from probmetric.data.sources._small import CIFAR_VIEW, FixedProtocol, SmallImages, read_cifar


@register
class Cifar100(SmallImages):
    """Tiny photographs of 100 classes."""

    view: ClassVar[dict[str, Any]] = CIFAR_VIEW | {
        "mean": (0.5071, 0.4865, 0.4409),
        "std": (0.2673, 0.2564, 0.2762),
    }
    closed_set = True
    files = (RawFile("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "161 MB"),)
    folders = ("cifar-100-python",)
    where = "www.cs.toronto.edu/~kriz/cifar.html"
    counts: ClassVar[dict[str, int]] = {"train+val": 50_000, "test": 10_000, "classes": 100}

    def __init__(self, *, protocol: FixedProtocol = "standard", subset: bool = False) -> None:
        self.protocol: FixedProtocol = protocol

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Read the batches with torchvision."""
        parts, names = read_cifar(files, self.files[0], hundred=True)
        return self.table(files, parts, names, "CIFAR-100", seed)
