"""MNIST: 70,000 handwritten digits, 28x28 grey; 60,000 for training (15 % of them validate), 10,000 for testing.

Read from the four ubyte files, gzipped or not, in `data/raw/mnist/` (torchvision's `MNIST/raw/` is found too).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from probmetric.data.sources import register
from probmetric.data.sources._small import IdxImages, idx_names


@register
@dataclass(frozen=True, kw_only=True)
class Mnist(IdxImages):
    """Handwritten digits."""

    title = "MNIST"
    view: ClassVar[Mapping[str, Any]] = {"name": "small"}
    files = idx_names(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )
    homes = ("mnist", "MNIST")
    where = "yann.lecun.com/exdb/mnist or its mirrors (torchvision can download them)"
    counts: ClassVar[Mapping[str, int]] = {"train+val": 60_000, "test": 10_000, "classes": 10}
