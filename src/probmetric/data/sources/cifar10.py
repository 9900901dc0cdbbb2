"""CIFAR-10: 60,000 colour images, 32x32, 10 classes; 50,000 for training (15 % of them validate), 10,000 for testing.

Read from `cifar-10-python.tar.gz` or its folder `cifar-10-batches-py/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from probmetric.data.sources import RawFile, options, register
from probmetric.data.sources._small import CIFAR_VIEW, IMAGENET_VIEW, CifarImages


@register
@dataclass(frozen=True, kw_only=True)
class Cifar10(CifarImages):
    """Tiny photographs of 10 classes."""

    title = "CIFAR-10"
    view = CIFAR_VIEW | options(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    views = options(lam=IMAGENET_VIEW)
    files = (RawFile("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "163 MB"),)
    folders = ("cifar-10-batches-py",)
    batches = ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"])
    labels = ("labels", "batches.meta", "label_names")
    where = "www.cs.toronto.edu/~kriz/cifar.html"
    counts = options(training=50_000, test=10_000, classes=10)
