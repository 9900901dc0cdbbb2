"""Turn small images of one size (28 to 32 pixels) into network input, with augmentation.

A view takes a stored batch, uint8 (B, C, H, W), and the images' indices, and returns float32. Its random
numbers are a function of (seed, epoch, index) alone (`uniforms`). Order of operations: affine or shift, flip, scale to
[0, 1], normalise, erase; the erased square is set to 0 *after* normalisation, as in the CIFAR experiments of the vMF
paper (Scott, Gallagher & Mozer, 2021, released code).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch.nn import functional as F

from probmetric.data.manifest import OptionError
from probmetric.data.views import register
from probmetric.data.views._base import PerChannel, View, uniforms
from probmetric.registry import CountOrZero, Range, Share, When

Padding = Literal["edge", "reflect", "zero"]
_OF_AFFINE_MAPS = ("edge", "zero")
_DRAWS = 8


@register
@dataclass(frozen=True, kw_only=True)
class Small(View):
    """View of equal-sized small images; the defaults change only the number format.

    Attributes:
        shift: largest shift in pixels along each axis (the "random crop with padding" of CIFAR recipes).
        padding: pixels that fill the margin: `edge`, `zero`, or `reflect` (only without rotation and scale).
        rotation: largest rotation in degrees.
        scale: sizes vary in [1 - scale, 1 + scale].
        flip: flip half of the images left to right.
        mean: per-channel mean subtracted after scaling to [0, 1].
        std: per-channel divisor.
        erase: side of a square set to 0 at a random place; 0 erases nothing.
    """

    shift: CountOrZero = 0
    padding: Padding = "edge"
    rotation: Annotated[float, Range(low=0, high=180), When(padding=_OF_AFFINE_MAPS)] = 0.0
    scale: Annotated[Share, When(padding=_OF_AFFINE_MAPS)] = 0.0
    flip: bool = False
    mean: PerChannel = ()
    std: Annotated[PerChannel, Range(above=0)] = ()
    erase: CountOrZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.std):
            raise OptionError(f"mean has {len(self.mean)} values, std {len(self.std)}; give one of each per channel.")

    def __call__(self, images: torch.Tensor, rows: np.ndarray, *, seed: int, epoch: int) -> torch.Tensor:
        """Augment and normalise images (B, C, H, W) uint8, of rows (B,), on any device, to float32."""
        draws = uniforms(seed, epoch, rows, _DRAWS)
        if self.rotation or self.scale:
            values = self._affine(images, draws)
        elif self.shift:
            values = self._shifted(images, draws)
        else:
            values = images
        if self.flip:
            mirrored = torch.from_numpy(draws[:, 4] < 0.5).to(images.device)
            values = torch.where(mirrored[:, None, None, None], values.flip(-1), values)
        return self._erased(self.normalise(values), draws)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Scale (B, C, H, W) from 0..255 to [0, 1], then by mean and std, in float32."""
        values = images.to(torch.float32) / 255.0
        if not self.mean:
            return values
        mean, std = (torch.tensor(v, device=images.device).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return (values - mean) / std

    def evaluation(self) -> Small:
        """Return the view with the same number format, without augmentation."""
        return Small(mean=self.mean, std=self.std)

    def _shifted(self, images: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
        """Shift images (B, C, H, W) uint8 by whole pixels, uniform on {-shift, ..., shift}^2."""
        offset = np.floor(draws[:, :2] * (2 * self.shift + 1)).astype(np.int64) - self.shift
        height, width = images.shape[2:]
        y, inside_y = self._source(offset[:, :1] + np.arange(height), height)
        x, inside_x = self._source(offset[:, 1:] + np.arange(width), width)
        image = np.arange(len(images))[:, None, None] * (height * width)
        flat = torch.from_numpy(image + y[:, :, None] * width + x[:, None, :]).to(images.device)
        pixels = images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])
        moved = pixels[flat.flatten()].view(len(images), height, width, -1)
        if self.padding == "zero":
            inside = torch.from_numpy(inside_y[:, :, None] & inside_x[:, None, :]).to(images.device)
            moved = moved * inside[..., None]
        return moved.permute(0, 3, 1, 2)

    def _source(self, position: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the pixel (B, size) each output row or column is read from, and whether it lies inside the image."""
        inside = (position >= 0) & (position < size)
        if self.padding == "reflect":
            folded = np.abs(position) % max(1, 2 * (size - 1))
            return size - 1 - np.abs(size - 1 - folded), inside
        return np.clip(position, 0, size - 1), inside

    def _affine(self, images: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
        """Rotate, scale and shift images (B, C, H, W), bilinear."""
        centred = 2.0 * draws - 1.0
        angle = centred[:, 2] * math.radians(self.rotation)
        zoom = 1.0 / (1.0 + self.scale * centred[:, 3])
        cos, sin = np.cos(angle) * zoom, np.sin(angle) * zoom
        height, width = images.shape[2:]
        shift = centred[:, :2] * 2.0 * self.shift / np.array([height, width])
        rows = (cos, -sin * height / width, shift[:, 1], sin * width / height, cos, shift[:, 0])
        theta = np.stack(rows, axis=1).reshape(-1, 2, 3)
        matrix = torch.from_numpy(theta).to(device=images.device, dtype=torch.float32)
        grid = _affine_grid(matrix, height, width)
        outside = "border" if self.padding == "edge" else "zeros"
        return F.grid_sample(images.to(torch.float32), grid, padding_mode=outside, align_corners=False)

    def _erased(self, images: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
        if not self.erase:
            return images
        height, width = images.shape[2:]
        top = np.floor(draws[:, 5] * (height - self.erase + 1))[:, None]
        left = np.floor(draws[:, 6] * (width - self.erase + 1))[:, None]
        rows = (np.arange(height) >= top) & (np.arange(height) < top + self.erase)
        columns = (np.arange(width) >= left) & (np.arange(width) < left + self.erase)
        hole = torch.from_numpy(rows[:, None, :, None] & columns[:, None, None, :]).to(images.device)
        return images.masked_fill(hole, 0.0)


def _affine_grid(matrix: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return `F.affine_grid` (B, H, W, 2) of matrices (B, 2, 3), as sums of a row's and a column's part."""
    x, y = (torch.linspace(-1, 1, size, device=matrix.device) * (size - 1) / size for size in (width, height))
    of_columns, of_rows = matrix[:, :, 0, None] * x, matrix[:, :, 1, None] * y
    grid = of_columns[:, :, None, :] + of_rows[:, :, :, None]
    return grid.add_(matrix[:, :, 2, None, None]).permute(0, 2, 3, 1)
