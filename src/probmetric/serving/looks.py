"""Measure the looks of images without a network: a few pixel statistics by which a gallery recognises strangers.

An embedding can miss that an image is of quite another kind: for a white image, a gallery of 600 photographs gave an
answer with P(right) 1.00, although none of them has its contrast. Per image, of the network's input:

    brightness     mean
    contrast       log standard deviation
    edges          log mean |difference| of neighbouring pixels
    noise          log median |x * K|, the kernel of `uncertainty.controls`
    colour         log mean standard deviation over the channels
    balance        (mean - median) / standard deviation
    flatness       share of neighbouring pixels that differ by next to nothing

Distances are in units of the gallery's quartiles. An image is unlike a gallery if its distance to the nearest gallery
image is more than `FARTHEST` times the distance within which all but `OUTLIERS` of the gallery's images have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("brightness", "contrast", "edges", "noise", "colour", "balance", "flatness")
KEPT, LEAST = 1000, 20
FARTHEST, OUTLIERS = 1.5, 0.01
SAME = 1e-3
_TINY, _FLAT, _LIMIT = 1e-3, 0.02, 30.0
_KERNEL = ((1.0, -2.0, 1.0), (-2.0, 4.0, -2.0), (1.0, -2.0, 1.0))


def looks(images: Tensor) -> np.ndarray:
    """Measure images (B, C, H, W): statistics (B, 7); (B, 0) of inputs that are no images."""
    import torch
    import torch.nn.functional as F

    if images.ndim != 4 or min(images.shape[2:]) < 3:
        return np.empty((len(images), 0), dtype=np.float32)
    grey = images.mean(dim=1)
    across, down = (grey[..., 1:] - grey[..., :-1]).abs(), (grey[:, 1:] - grey[:, :-1]).abs()
    steps = torch.cat([across.flatten(1), down.flatten(1)], dim=1)
    kernel = torch.tensor(_KERNEL, dtype=grey.dtype, device=grey.device)[None, None]
    noise = F.conv2d(grey[:, None], kernel).abs().flatten(1).median(dim=1).values
    pixels = grey.flatten(1)
    mean = pixels.mean(dim=1)
    # `std` takes three times as long as this on a CPU.
    spread = ((pixels - mean[:, None]).square().sum(dim=1) / (pixels.shape[1] - 1)).sqrt()
    colours = (images - grey[:, None]).square().mean(dim=1).sqrt()
    parts = [
        mean,
        (spread + _TINY).log(),
        (steps.mean(dim=1) + _TINY).log(),
        (noise + _TINY).log(),
        (colours.mean(dim=(1, 2)) + _TINY).log(),
        (mean - pixels.median(dim=1).values) / (spread + _TINY),
        (steps < _FLAT).float().mean(dim=1),
    ]
    return torch.stack(parts, dim=1).cpu().numpy().astype(np.float32)


def same(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Say which of the looks (N, L) equal those of an image among `others` (K, L), up to `SAME`, as devices differ."""
    finite = np.isfinite(rows).all(axis=1)
    others = others[np.isfinite(others).all(axis=1)]
    alike = np.zeros(len(rows), dtype=bool)
    if len(others) and finite.any() and 0 < rows.shape[1] == others.shape[1]:
        distance = scipy.spatial.cKDTree(others).query(rows[finite], distance_upper_bound=SAME)[0]
        alike[finite] = np.isfinite(distance)
    return alike


@dataclass(frozen=True)
class World:
    """The looks of a gallery.

    Attributes:
        rows: looks in units of quartiles (n, L).
        middle: medians (L,).
        unit: spreads (L,).
        farthest: an image is unlike the gallery if its nearest gallery image is farther than this.
    """

    rows: np.ndarray
    middle: np.ndarray
    unit: np.ndarray
    farthest: float

    @classmethod
    def of(cls, rows: np.ndarray) -> World | None:
        """Describe the looks (N, L) of a gallery, by at most `KEPT` images; None where there are too few, or none."""
        rows = rows[np.isfinite(rows).all(axis=1)]
        rows = rows[np.sort(np.random.default_rng(0).permutation(len(rows))[:KEPT])]
        if len(rows) < LEAST or not rows.shape[1]:
            return None
        low, middle, high = np.quantile(rows.astype(np.float64), [0.25, 0.5, 0.75], axis=0)
        unit = np.maximum((high - low) / 1.349, 0.05)
        rows = np.clip((rows - middle) / unit, -_LIMIT, _LIMIT)
        to_nearest = scipy.spatial.cKDTree(rows).query(rows, k=2)[0][:, 1]  # the first is the image itself
        usual = float(np.quantile(to_nearest, 1.0 - OUTLIERS))
        return cls(rows, middle, unit, FARTHEST * max(usual, 1.0))

    def unlike(self, rows: np.ndarray) -> list[str]:
        """Name for each of the looks (Q, L) what makes it unlike every image of the gallery; "" if it is like one."""
        rows = np.nan_to_num(np.clip((rows - self.middle) / self.unit, -_LIMIT, _LIMIT))
        distance, nearest = scipy.spatial.cKDTree(self.rows).query(rows)
        far = distance > self.farthest
        most = np.abs(rows - self.rows[nearest]).argmax(axis=1)
        return [NAMES[name] if strange else "" for name, strange in zip(most, far, strict=True)]
