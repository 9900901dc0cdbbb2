"""CIFAR-10: 60,000 colour images, 32x32, 10 classes; 50,000 for training (15 % of them validate), 10,000 for testing.

Read from `cifar-10-python.tar.gz` or its folder `cifar-10-batches-py/`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Table
from probmetric.data.sources._small import CIFAR_VIEW, IMAGENET_VIEW, FixedProtocol, SmallImages, read_cifar


@register
class Cifar10(SmallImages):
    """Tiny photographs of 10 classes."""

    view: ClassVar[dict[str, Any]] = CIFAR_VIEW | {
        "mean": (0.4914, 0.4822, 0.4465),
        "std": (0.2470, 0.2435, 0.2616),
    }
    views: ClassVar[dict[str, dict[str, Any]]] = {"lam": IMAGENET_VIEW}
    closed_set = True
    files = (RawFile("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "163 MB"),)
    folders = ("cifar-10-batches-py",)
    where = "www.cs.toronto.edu/~kriz/cifar.html"
    counts: ClassVar[dict[str, int]] = {"train+val": 50_000, "test": 10_000, "classes": 10}

    def __init__(self, *, protocol: FixedProtocol = "standard", subset: bool = False) -> None:
        self.protocol: FixedProtocol = protocol

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Read the batches with torchvision."""
        parts, names = read_cifar(files, self.files[0], hundred=False)
        return self.table(files, parts, names, "CIFAR-10", seed)
