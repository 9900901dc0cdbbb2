"""Which transform a dataset gets, by paper.

standard   the protocol of the proxy papers (non-isotropic proxies, NIR, potential field): random crop of 8-100 % of
the area to 224, flip; evaluation 256 -> central 224; ImageNet statistics. Small images: see `transforms`.
vmf        the vMF paper: area 16-100 %, colour jitter on birds and cars, square resizing on cars and products
lam        the Laplacian metric learner: as standard at 227 pixels (the code; the text says 224); street scenes are
resized to 224 x 224 without crop or flip; CIFAR-10 and SVHN with ImageNet statistics and no augmentation
"""

from __future__ import annotations

from typing import Literal

from probmetric.data.large import LargeImages
from probmetric.data.manifest import OptionError
from probmetric.data.transforms import SMALL, SmallImages

Recipe = Literal["standard", "vmf", "lam"]
Transform = SmallImages | LargeImages

_STANDARD = LargeImages()
_LAM = LargeImages(size=227)
_STREET = LargeImages(resize=0, crop=False, flip=False)
_IMAGENET = SmallImages(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_VMF_SCALE = (0.16, 1.0)

RECIPES: dict[Recipe, dict[str, Transform]] = {
    "standard": {**SMALL, "msls": _STREET},
    "vmf": {
        **SMALL,
        "cub": LargeImages(scale=_VMF_SCALE, jitter=(0.25, 0.25, 0.25, 0.0)),
        "cars": LargeImages(scale=_VMF_SCALE, ratio=(1.0, 1.0), square=True, jitter=(0.3, 0.3, 0.3, 0.1)),
        "sop": LargeImages(scale=_VMF_SCALE, square=True),
    },
    "lam": {
        "mnist": SmallImages(),
        "fashion_mnist": SmallImages(),
        "cifar10": _IMAGENET,
        "svhn": _IMAGENET,
        "cub": _LAM,
        "cars": _LAM,
        "lfw": _LAM,
        "msls": _STREET,
    },
}
_PHOTOGRAPHS = ("cub", "cars", "sop", "lfw", "msls")


def transform_for(dataset: str, recipe: Recipe = "standard") -> Transform:
    """Training transform of `dataset`; `.evaluation()` is its view without augmentation.

    A dataset the paper does not use gets the standard one: photographs a random crop, small images plain scaling.
    """
    if recipe not in RECIPES:
        raise OptionError(f"recipe is {recipe!r}; allowed: {', '.join(RECIPES)}.")
    fallback: Transform = _STANDARD if dataset in _PHOTOGRAPHS else SmallImages()
    return RECIPES[recipe].get(dataset, RECIPES["standard"].get(dataset, fallback))
