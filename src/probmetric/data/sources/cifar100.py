"""CIFAR-100: 60,000 colour images, 32x32, 100 classes; 50,000 for training (15 % of them validate), 10,000 for testing.

Read from `cifar-100-python.tar.gz` or its folder `cifar-100-python/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from probmetric.data.sources import RawFile, options, register
from probmetric.data.sources._small import CIFAR_VIEW, CifarImages


@register
@dataclass(frozen=True, kw_only=True)
class Cifar100(CifarImages):
    """Tiny photographs of 100 classes."""

    title = "CIFAR-100"
    view = CIFAR_VIEW | options(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
    files = (RawFile("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "161 MB"),)
    folders = ("cifar-100-python",)
    batches = (["train"], ["test"])
    labels = ("fine_labels", "meta", "fine_label_names")
    where = "www.cs.toronto.edu/~kriz/cifar.html"
    counts = options(training=50_000, test=10_000, classes=100)
