"""Turn images of natural size into network input: random crops, colour jitter and normalisation of the papers.

`load` crops, resizes and flips on the CPU from the memory-mapped images, uint8 to uint8, with antialiasing; `__call__`
jitters and normalises a whole batch, on the device. Random numbers are a function of (seed, epoch, index) alone
(`uniforms`).

    random crop   as torchvision's RandomResizedCrop: an area uniform in `scale`, an aspect ratio log-uniform in
                  `ratio`, ten attempts, else the largest central crop; taken from the stored image (shorter side 256
                  by default)
    jitter        brightness, contrast, saturation, hue in this order, by torchvision's formulas; torchvision shuffles
                  them. Strength s; b, c and t uniform in [1 - s, 1 + s], h in [-s, s]:
                      brightness  b x                             saturation  t x + (1 - t) grey(x)
                      contrast    c x + (1 - c) mean(grey(x))     hue         HSV hue shifted by h turns
                  grey = 0.2989 R + 0.587 G + 0.114 B; values are clipped to [0, 1] after each step
    evaluation    resize the shorter side (or both sides) to `resize`, then the central crop

Normalisation uses the statistics that the backbone was trained with, where the backbone states them (timm's do), else
ImageNet's. (The backbone `bn_inception` expects ImageNet's and converts them.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch.nn import functional as F

from probmetric.data.manifest import OptionError
from probmetric.data.views import register
from probmetric.data.views._base import Images, PerChannel, View, uniforms
from probmetric.registry import Pixels, Range

Jitter = tuple[float, float, float, float]
Normalisation = Literal["backbone", "imagenet"]
ATTEMPTS, LONGEST = 10, 50
_CROP_DRAWS = 2 * ATTEMPTS + 2
_GREY = (0.2989, 0.587, 0.114)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
        crop: whether training crops at random; otherwise training crops as evaluation does.
        flip: flip half of the training images left to right.
        jitter: strengths of brightness, contrast, saturation and hue.
        normalisation: `backbone` uses the statistics that the backbone was trained with; otherwise ImageNet's.
        mean: of every channel, in place of `normalisation`.
        std: standard deviation of every channel.
    """

    size: Pixels = 224
    resize: Annotated[int, Range(low=0, high=10_000)] | None = None
    square: bool = False
    scale: Annotated[tuple[float, float], Range(above=0, high=1)] = (0.08, 1.0)
    ratio: Annotated[tuple[float, float], Range(above=0)] = (3 / 4, 4 / 3)
    crop: bool = True
    flip: bool = True
    jitter: Annotated[Jitter, Range(low=0)] = (0.0, 0.0, 0.0, 0.0)
    normalisation: Normalisation = "backbone"
    mean: PerChannel = ()
    std: Annotated[PerChannel, Range(above=0)] = ()

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
        """Return the same view without augmentation."""
        return replace(self, crop=False, flip=False, jitter=(0.0, 0.0, 0.0, 0.0))

    def for_backbone(self, statistics: tuple[Sequence[float], Sequence[float]] | None) -> Photos:
        """Return the view normalised by the backbone's statistics, unless this view sets its own."""
        if statistics is None or self.mean or self.normalisation != "backbone":
            return self
        mean, std = statistics
        return replace(self, mean=tuple(mean), std=tuple(std))  # type: ignore[arg-type]

    def load(self, images: Images, rows: np.ndarray, *, seed: int, epoch: int) -> torch.Tensor:
        """Return training views (B, C, S, S) uint8 on the CPU; `rows` (B,) are the images' own numbers."""
        draws = uniforms(seed, epoch, rows, _CROP_DRAWS + 1)
        return torch.stack([self._view(image, draw) for image, draw in zip(images, draws, strict=True)])

    def load_plain(self, images: Images) -> torch.Tensor:
        """Return evaluation views (B, C, S, S) uint8 on the CPU."""
        return torch.stack([self._central(image) for image in images])

    def __call__(self, images: torch.Tensor, rows: np.ndarray, *, seed: int, epoch: int) -> torch.Tensor:
        """Jitter and normalise training views (B, C, S, S) uint8, of rows (B,), on their device, to float32."""
        if any(self.jitter):
            draws = uniforms(seed, epoch, rows, _CROP_DRAWS + 5)[:, _CROP_DRAWS + 1 :]
            images = 255.0 * jittered(images.to(torch.float32) / 255.0, self.jitter, draws)
        return self.normalise(images)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Turn (B, C, H, W) with values 0..255 into float32, normalised for the backbone."""
        mean, std = (self.mean, self.std) if self.mean else IMAGENET
        scale = torch.tensor([1 / (255 * s) for s in std], device=images.device).view(1, -1, 1, 1)
        offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=images.device).view(1, -1, 1, 1)
        if images.shape[1] == 1:
            scale, offset = scale.mean(dim=1, keepdim=True), offset.mean(dim=1, keepdim=True)
        return images.to(torch.float32, copy=True).mul_(scale).add_(offset)

    def _view(self, image: np.ndarray, draw: np.ndarray) -> torch.Tensor:
        view = self._cropped(image, draw) if self.crop else self._central(image)
        return view.flip(-1) if self.flip and draw[_CROP_DRAWS] < 0.5 else view

    def _cropped(self, image: np.ndarray, draw: np.ndarray) -> torch.Tensor:
        """Crop an image (H, W, C) at random and resize it to (C, S, S)."""
        height, width = image.shape[:2]
        if self.square:
            height = width = self.shorter or self.size
        top, left, h, w = crop_window(height, width, self.scale, self.ratio, draw[:_CROP_DRAWS])
        if self.square:
            y, x = image.shape[0] / height, image.shape[1] / width
            top, left = min(round(top * y), image.shape[0] - 1), min(round(left * x), image.shape[1] - 1)
            h, w = max(1, round(h * y)), max(1, round(w * x))
        return _resized(image[top : top + h, left : left + w], self.size, self.size)

    def _central(self, image: np.ndarray) -> torch.Tensor:
        """Resize an image (H, W, C) and crop its middle to (C, S, S)."""
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
    """Cut an image (H, W, C) longer than `LONGEST` times its width to its middle; crops never reach the rest."""
    height, width = (min(side, LONGEST * min(image.shape[:2])) for side in image.shape[:2])
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def crop_window(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draw: np.ndarray
) -> tuple[int, int, int, int]:
    """Return the window (top, left, height, width) of a random crop.

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
    h, w = max(1, min(height, round(width / aspect))), max(1, min(width, round(height * aspect)))
    return (height - h) // 2, (width - w) // 2, h, w


def _resized(image: np.ndarray, height: int, width: int) -> torch.Tensor:
    """Resize an image (H, W, C) uint8 to (C, height, width) uint8, bilinear with antialiasing."""
    if image.shape[:2] == (height, width):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    return F.interpolate(tensor, (height, width), mode="bilinear", antialias=True)[0]


def jittered(images: torch.Tensor, strength: Jitter, draws: np.ndarray) -> torch.Tensor:
    """Jitter the colours of a batch, each image by its own factors.

    Args:
        images: (B, 3, H, W) float in [0, 1], or grey (B, 1, H, W), which has no hue.
        strength: of brightness, contrast, saturation, hue.
        draws: (B, 4) uniform numbers in [0, 1).
    """
    centred = torch.from_numpy(2.0 * draws - 1.0).to(device=images.device, dtype=images.dtype)
    factor = [centred[:, i].view(-1, 1, 1, 1) * s for i, s in enumerate(strength)]
    if strength[0]:
        images = (images * (1.0 + factor[0])).clamp(0.0, 1.0)
    if strength[1]:
        images = _blend(images, _grey(images).mean(dim=(1, 2, 3), keepdim=True), 1.0 + factor[1])
    if strength[2]:
        images = _blend(images, _grey(images), 1.0 + factor[2])
    return _hue(images, factor[3]) if strength[3] and images.shape[1] == 3 else images


def _grey(images: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor(_GREY, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True)


def _blend(images: torch.Tensor, other: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return (share * images + (1.0 - share) * other).clamp(0.0, 1.0)


def _hue(images: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Shift the hue of images (B, 3, H, W) by `turns` (B, 1, 1, 1): to HSV and back."""
    red, green, blue = images.unbind(dim=1)
    value, _ = images.max(dim=1)
    chroma = value - images.min(dim=1).values
    safe = chroma.clamp_min(torch.finfo(images.dtype).tiny)
    sector = torch.where(
        value == red, (green - blue) / safe % 6.0,
        torch.where(value == green, (blue - red) / safe + 2.0, (red - green) / safe + 4.0),
    )  # fmt: skip
    hue = (torch.where(chroma > 0, sector, torch.zeros_like(sector)) + 6.0 * turns[:, 0]) % 6.0
    channels = []
    for shift in (5.0, 3.0, 1.0):  # f(n) = v - c max(0, min(k, 4 - k, 1)), k = (n + h) mod 6
        k = (hue + shift) % 6.0
        channels.append(value - chroma * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0))
    return torch.stack(channels, dim=1)
