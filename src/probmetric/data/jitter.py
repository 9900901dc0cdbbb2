"""Colour jitter of a batch, each image with its own factors; the formulas are torchvision's.

    brightness   b x                                   b in [1 - s, 1 + s]
    contrast     c x + (1 - c) mean(grey(x))           c in [1 - s, 1 + s]
    saturation   t x + (1 - t) grey(x)                 t in [1 - s, 1 + s]
    hue          HSV hue shifted by h turns            h in [-s, s]

grey = 0.2989 R + 0.587 G + 0.114 B; values are clipped to [0, 1] after each step.
"""

from __future__ import annotations

import numpy as np
import torch

Jitter = tuple[float, float, float, float]
_GREY = (0.2989, 0.587, 0.114)


def jittered(images: torch.Tensor, strength: Jitter, draws: np.ndarray) -> torch.Tensor:
    """Jitter a batch.

    Args:
        images: (B, 3, H, W) float in [0, 1].
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
    return _hue(images, factor[3]) if strength[3] else images


def _grey(images: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor(_GREY, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True)


def _blend(images: torch.Tensor, other: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return (share * images + (1.0 - share) * other).clamp(0.0, 1.0)


def _hue(images: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Shift the hue of (B, 3, H, W) by `turns` (B, 1, 1, 1): to HSV and back."""
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
