"""Images of natural size to network input: random crops, colour jitter and normalisation of the papers.

The work is split where it is cheap: `load` crops, resizes and flips on the CPU from the memory-mapped cache, uint8 to
uint8, with antialiasing; `__call__` jitters and normalises a whole batch, on the device. What is drawn is a function of
(seed, epoch, index) alone (`counter`).

    random crop   as torchvision's RandomResizedCrop: an area uniform in `scale`, an aspect ratio log-uniform in
                  `ratio`, ten attempts, else the largest central crop; taken from the stored image (shorter side 256
                  by default)
    jitter        brightness, contrast, saturation, hue in this order, each factor uniform; torchvision shuffles them
    evaluation    resize the shorter side (or both sides) to `resize`, then the central crop

Normalisation is by the statistics the backbone was trained with, where it says so (timm's), else ImageNet's. A network
that expects BGR values 0..255 minus (104, 117, 128): `normalisation: bn_inception`. (The backbone of that name converts
ImageNet's statistics itself.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch.nn import functional as F

from probmetric.data.counter import uniforms
from probmetric.data.jitter import Jitter, jittered
from probmetric.data.manifest import OptionError
from probmetric.data.store import ImageStore
from probmetric.data.views import register
from probmetric.data.views._base import View
from probmetric.registry import Count, CountOrZero, Range

Normalisation = Literal["backbone", "imagenet", "bn_inception", "unit"]
ATTEMPTS, LONGEST = 10, 50
_CROP_DRAWS = 2 * ATTEMPTS + 2
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_STATISTICS: dict[Normalisation, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "backbone": IMAGENET,
    "imagenet": IMAGENET,
    "bn_inception": ((128 / 255, 117 / 255, 104 / 255), (1 / 255, 1 / 255, 1 / 255)),
    "unit": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@register
@dataclass(frozen=True, kw_only=True)
class Photos(View):
    """Transform of photographs.

    Attributes:
        size: side S of the network's input.
        resize: shorter side before the central crop of evaluation; 0 resizes straight to S x S, None is 8/7 of `size`.
        square: resize both sides to `resize`, changing the aspect ratio, before any crop.
        scale: smallest and largest share of the area a training crop covers.
        ratio: smallest and largest aspect ratio of a training crop.
        crop: whether training crops at random; otherwise it sees the evaluation's view.
        flip: flip half of the training images left to right.
        jitter: strengths of brightness, contrast, saturation and hue.
        normalisation: whose statistics; `backbone`: those it was trained with.
        mean: of every channel, in place of `normalisation`.
        std: standard deviation of every channel.
    """

    size: Count = 224
    resize: CountOrZero | None = None
    square: bool = False
    scale: Annotated[tuple[float, float], Range(above=0, high=1)] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    crop: bool = True
    flip: bool = True
    jitter: Jitter = (0.0, 0.0, 0.0, 0.0)
    normalisation: Normalisation = "backbone"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale[0] > self.scale[1]:
            raise OptionError(f"view photos: scale is {self.scale}; the smallest share comes first.")
        if self.resize and self.resize < self.size:
            raise OptionError(f"view photos: resize is {self.resize}; allowed: 0, or at least size = {self.size}.")
        if len(self.mean) != len(self.std):
            raise OptionError(f"view photos: mean has {len(self.mean)} values, std {len(self.std)}; give both.")

    @property
    def side(self) -> int:
        """Side S of the network's input."""
        return self.size

    @property
    def shorter(self) -> int:
        """Shorter side before the central crop; 0 where there is none."""
        return round(self.size * 8 / 7) if self.resize is None else self.resize

    def evaluation(self) -> Photos:
        """The same view without augmentation."""
        return replace(self, crop=False, flip=False, jitter=(0.0, 0.0, 0.0, 0.0))

    def for_backbone(self, statistics: tuple[Sequence[float], Sequence[float]] | None) -> Photos:
        """Normalised by the backbone's statistics, unless this view says by whose."""
        if statistics is None or self.mean or self.normalisation != "backbone":
            return self
        mean, std = statistics
        return replace(self, mean=tuple(mean), std=tuple(std))

    def load(self, store: ImageStore, rows: np.ndarray, *, seed: int, epoch: int) -> torch.Tensor:
        """Training views (B, C, S, S) uint8 of the manifest rows (B,), on the CPU."""
        draws = uniforms(seed, epoch, rows, _CROP_DRAWS + 1)
        return torch.stack([self._view(store[int(row)], draw) for row, draw in zip(rows, draws, strict=True)])

    def load_plain(self, store: ImageStore, rows: np.ndarray) -> torch.Tensor:
        """Evaluation views (B, C, S, S) uint8 of the manifest rows (B,), on the CPU."""
        return torch.stack([self._central(store[int(row)]) for row in rows])

    def __call__(
        self, images: torch.Tensor, indices: np.ndarray | torch.Tensor, *, seed: int, epoch: int
    ) -> torch.Tensor:
        """Jitter and normalise training views, on their device.

        Args:
            images: (B, C, S, S) uint8 from `load`.
            indices: (B,) their manifest rows.
            seed: seed of the run.
            epoch: epoch.

        Returns:
            (B, C, S, S) float32.
        """
        if any(self.jitter):
            rows = indices.cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
            draws = uniforms(seed, epoch, rows, _CROP_DRAWS + 5)[:, _CROP_DRAWS + 1 :]
            images = 255.0 * jittered(images.to(torch.float32) / 255.0, self.jitter, draws)
        return self.normalise(images)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) with values 0..255 to float32 in the backbone's terms; no randomness."""
        mean, std = (self.mean, self.std) if self.mean else _STATISTICS[self.normalisation]
        scale = torch.tensor([1 / (255 * s) for s in std], device=images.device).view(1, -1, 1, 1)
        offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=images.device).view(1, -1, 1, 1)
        if images.shape[1] == 1:
            scale, offset = scale.mean(dim=1, keepdim=True), offset.mean(dim=1, keepdim=True)
        values = images.to(torch.float32, copy=True).mul_(scale).add_(offset)
        return values.flip(1) if self.normalisation == "bn_inception" else values

    def _view(self, image: np.ndarray, draw: np.ndarray) -> torch.Tensor:
        view = self._cropped(image, draw) if self.crop else self._central(image)
        return view.flip(-1) if self.flip and draw[_CROP_DRAWS] < 0.5 else view

    def _cropped(self, image: np.ndarray, draw: np.ndarray) -> torch.Tensor:
        """Random crop of an image (H, W, C), resized to (C, S, S)."""
        height, width = image.shape[:2]
        if self.square:
            height, width = self.shorter, self.shorter
        top, left, h, w = crop_window(height, width, self.scale, self.ratio, draw[:_CROP_DRAWS])
        if self.square:
            y, x = image.shape[0] / height, image.shape[1] / width
            top, left, h, w = round(top * y), round(left * x), max(1, round(h * y)), max(1, round(w * x))
        return _resized(image[top : top + h, left : left + w], self.size, self.size)

    def _central(self, image: np.ndarray) -> torch.Tensor:
        """Resized and centrally cropped image (C, S, S)."""
        if not self.shorter:
            return _resized(image, self.size, self.size)
        if self.square:
            full = _resized(image, self.shorter, self.shorter)
        else:
            image = _middle(image)
            height, width = image.shape[:2]
            scale = self.shorter / min(height, width)
            full = _resized(image, max(self.shorter, int(height * scale)), max(self.shorter, int(width * scale)))
        top, left = (round((side - self.size) / 2) for side in full.shape[1:])
        return full[:, top : top + self.size, left : left + self.size]


def _middle(image: np.ndarray) -> np.ndarray:
    """The middle of an image (H, W, C) that is more than `LONGEST` times as long as wide: the rest is never seen."""
    height, width = (min(side, LONGEST * min(image.shape[:2])) for side in image.shape[:2])
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def crop_window(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draw: np.ndarray
) -> tuple[int, int, int, int]:
    """Window (top, left, height, width) of a random crop.

    Args:
        height: of the image.
        width: of the image.
        scale: range of the area's share.
        ratio: range of the aspect ratio, width / height.
        draw: 2 * ATTEMPTS + 2 uniform numbers: (area, ratio) of each attempt, then the position.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(ATTEMPTS):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * draw[2 * attempt])
        aspect = math.exp(low + (high - low) * draw[2 * attempt + 1])
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(draw[-2] * (height - h + 1)), int(draw[-1] * (width - w + 1)), h, w
    aspect = min(max(width / height, ratio[0]), ratio[1])
    h, w = min(height, round(width / aspect)), min(width, round(height * aspect))
    return (height - h) // 2, (width - w) // 2, h, w


def _resized(image: np.ndarray, height: int, width: int) -> torch.Tensor:
    """Image (H, W, C) uint8 to (C, height, width) uint8, bilinear with antialiasing."""
    if image.shape[:2] == (height, width):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    return F.interpolate(tensor, (height, width), mode="bilinear", antialias=True)[0]
