"""Define a view and its random numbers, which depend on the image and not on the order of draws.

A draw is a function of (seed, epoch, image index, place) and has no state. So the number of workers, the composition of
batches and a resumed run never change the data. The hash is SplitMix64's finaliser (Steele, Lea & Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014), applied to each of the four parts in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from probmetric.data.manifest import DataError

Images = np.ndarray | Iterable[np.ndarray] | Tensor
"""Images in order: pixels (B, H, W, C) uint8 of one size, pixels (H, W, C) uint8 one by one, or inputs (B, ...)."""
PerChannel = tuple[()] | tuple[float] | tuple[float, float, float]
"""A number for all channels, or one for each of three; empty if not set."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, kw_only=True)
class View:
    """Transform from pixels to network input; a frozen dataclass whose fields are its options.

    `load` and `load_plain` run on the CPU, in threads, uint8 to uint8; a call of the view does the rest on the device.
    Random numbers are a function of (seed, epoch, image) alone: `uniforms`.
    """

    def __post_init__(self) -> None:
        """Turn lists, which YAML gives, into tuples."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))

    @property
    def side(self) -> int | None:
        """Side S of the network's input; None if it is the side of the stored images, which are then square."""
        return None

    def evaluation(self) -> View:
        """Return the same view without augmentation."""
        raise NotImplementedError

    def for_backbone(self, statistics: tuple[Sequence[float], Sequence[float]] | None) -> View:
        """Return the view normalised by the (mean, std) a backbone was trained with, unless the view sets its own."""
        return self

    def load(self, images: Images, rows: np.ndarray, *, seed: int, epoch: int) -> Tensor:
        """Return training images (B, C, H, W) uint8 on the CPU; `rows` (B,) are the images' own numbers."""
        return self.load_plain(images)

    def load_plain(self, images: Images) -> Tensor:
        """Return images without augmentation, (B, C, H, W) uint8 on the CPU."""
        return stacked(images)

    def __call__(self, images: Tensor, rows: np.ndarray, *, seed: int, epoch: int) -> Tensor:
        """Augment and normalise loaded training images (B, C, H, W) uint8, of rows (B,), to float32."""
        return self.normalise(images)

    def normalise(self, images: Tensor) -> Tensor:
        """Turn (B, C, H, W) with values 0..255 into normalised float32, without random numbers."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RawTensors(View):
    """Inputs that are tensors of a known `shape`, as they are."""

    shape: tuple[int, ...]

    @property
    def side(self) -> int:
        """Size of the last axis."""
        return self.shape[-1]

    def evaluation(self) -> RawTensors:
        """Return the same view, which has no augmentation."""
        return self

    def normalise(self, images: Tensor) -> Tensor:
        """Return inputs (B, ...) as they are."""
        return images


def stacked(images: Images) -> Tensor:
    """Return images as one tensor (B, C, H, W), channels last in memory; a tensor is returned unchanged.

    Raises:
        DataError: images of different sizes.
    """
    if isinstance(images, Tensor):
        return images
    if not isinstance(images, np.ndarray):
        images = list(images)
        sizes = sorted({image.shape for image in images})
        if len(sizes) > 1:
            raise DataError(
                f"images of {sizes[0]} and {sizes[-1]} cannot form one batch; choose a view that crops them: photos."
            )
        images = np.stack(images)
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)


def _mix(value: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's finaliser to uint64 values, modulo 2^64."""
    value = (value ^ (value >> np.uint64(30))) * _M1
    value = (value ^ (value >> np.uint64(27))) * _M2
    return value ^ (value >> np.uint64(31))


def uniforms(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw independent uniform numbers for each image.

    Args:
        seed: seed of the run.
        epoch: epoch the images are drawn for.
        indices: the images' own numbers (B,), for example manifest rows.
        count: numbers per image.

    Returns:
        (B, count) float64 in [0, 1).
    """
    address = np.zeros((len(indices), 1), dtype=np.uint64)
    for part in (seed, epoch, np.asarray(indices)[:, None]):
        address = _mix(address + _GOLDEN + np.asarray(part).astype(np.uint64))
    draws = _mix(address + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53
