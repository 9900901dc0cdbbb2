"""FashionMNIST: 70,000 pictures of clothing, 28x28 grey; 60,000 train (15 % of them validate), 10,000 test.

The files are named as MNIST's: put them into `data/raw/fashion_mnist/` (torchvision's `FashionMNIST/raw/` inside it is
found too).
"""

from __future__ import annotations

from typing import Any, ClassVar

from probmetric.data.raw import RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Table
from probmetric.data.sources._small import FixedProtocol, SmallImages, idx_names, read_idx

CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@register
class FashionMnist(SmallImages):
    """Clothing."""

    view: ClassVar[dict[str, Any]] = {"name": "small"}
    closed_set = True
    files = idx_names(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    )
    homes = ("fashion_mnist", "FashionMNIST")
    where = "github.com/zalandoresearch/fashion-mnist (torchvision can download it)"
    counts: ClassVar[dict[str, int]] = {"train+val": 60_000, "test": 10_000, "classes": 10}

    def __init__(self, *, protocol: FixedProtocol = "standard", subset: bool = False) -> None:
        self.protocol: FixedProtocol = protocol

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Read the four files with torchvision."""
        parts = read_idx(files, self.files)
        return self.table(files, parts, CLASSES, "FashionMNIST", seed)
