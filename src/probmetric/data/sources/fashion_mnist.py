"""FashionMNIST: 70,000 pictures of clothing, 28x28 grey; 60,000 train (15 % of them validate), 10,000 test.

The files are named as MNIST's: put them into `data/raw/fashion_mnist/` (torchvision's `FashionMNIST/raw/` inside it is
found too).
"""

from __future__ import annotations

from dataclasses import dataclass

from probmetric.data.sources import options, register
from probmetric.data.sources._small import IdxImages, idx_names


@register
@dataclass(frozen=True, kw_only=True)
class FashionMnist(IdxImages):
    """Clothing."""

    title = "FashionMNIST"
    classes = (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )
    view = options(name="small")
    files = idx_names(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    )
    homes = ("fashion_mnist", "FashionMNIST")
    where = "github.com/zalandoresearch/fashion-mnist (torchvision can download it)"
    counts = options(training=60_000, test=10_000, classes=10)
