"""MNIST: 70,000 handwritten digits, 28x28 grey; 60,000 for training (15 % of them validate), 10,000 for testing.

Read from the four ubyte files, gzipped or not, in `data/raw/mnist/` (torchvision's `MNIST/raw/` is found too).
"""

from __future__ import annotations

from dataclasses import dataclass

from probmetric.data.sources import options, register
from probmetric.data.sources._small import IdxImages, idx_names


@register
@dataclass(frozen=True, kw_only=True)
class Mnist(IdxImages):
    """Handwritten digits."""

    title = "MNIST"
    view = options(name="small")
    files = idx_names(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )
    homes = ("mnist", "MNIST")
    where = "yann.lecun.com/exdb/mnist or its mirrors (torchvision can download them)"
    counts = options(training=60_000, test=10_000, classes=10)
