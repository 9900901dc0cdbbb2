"""Resizing 8-bit images as two matrix products, equal to the pixel to what PIL and PyTorch compute.

Both resize antialiased in two passes, columns first, with weights in fixed point and rounding to 8 bits after each:

    w_ij ~ max(0, 1 - |j + 1/2 - c_i| / max(s, 1))   normalised over j,   c_i = (i + 1/2) s,   s = old size / new size

PIL has 22 binary digits, PyTorch as many as leave the largest weight below 2^15. As matrices they fit into a graph
whose image sizes are open. Only the rows of the final crop are computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PIL_DIGITS = 22
_INT16 = 2.0**15
_DIGITS = 22


@dataclass(frozen=True)
class Axis:
    """One axis of an image: `size` () as float64, and `places` (K,) of the pixels at hand in it."""

    size: Tensor
    places: Tensor

    @classmethod
    def whole(cls, length: int, like: Tensor) -> Axis:
        """All `length` pixels."""
        places = torch.arange(length, dtype=torch.float64, device=like.device)
        return cls((places + 1).max(), places)


def weights(axis: Axis, size: Tensor, wanted: Tensor) -> Tensor:
    """Weights (S, K) of an axis's pixels in the pixels `wanted` (S,) of the axis resized to `size` ()."""
    scale = axis.size / size
    distance = (axis.places + 0.5 - ((wanted + 0.5) * scale)[:, None]).abs() / scale.clamp_min(1.0)
    inside = (axis.places >= 0) & (axis.places < axis.size)
    found = torch.where(inside, (1.0 - distance).clamp_min(0.0), 0.0)
    total = found.sum(dim=1, keepdim=True)
    return found / torch.where(total > 0, total, 1.0)


def fixed(values: Tensor, digits: Tensor) -> Tensor:
    """Weights in fixed point of so many binary `digits` ()."""
    return (values * 2.0**digits + 0.5).floor()


def applied(images: Tensor, rows: Tensor, columns: Tensor, digits: tuple[Tensor, Tensor]) -> Tensor:
    """Images (B, C, H, W) of whole numbers in float64 under weights (S, H) and (T, W) in fixed point: (B, C, S, T)."""
    for_rows, for_columns = digits
    across = _rounded(images @ columns.T, for_columns)
    return _rounded((across.transpose(-1, -2) @ rows.T).transpose(-1, -2), for_rows)


def _rounded(sums: Tensor, digits: Tensor) -> Tensor:
    return ((sums + 2.0 ** (digits - 1)) / 2.0**digits).floor().clamp(0.0, 255.0)


def pytorch_digits(axis: Axis, size: Tensor, wanted: Tensor) -> Tensor:
    """Binary digits () with which PyTorch resizes the axis: the largest weight lies at an end or among `wanted`."""
    ends = torch.stack([torch.zeros_like(size), size - 1])
    largest = torch.maximum(weights(axis, size, ends).max(), weights(axis, size, wanted).max())
    powers = 2.0 ** torch.arange(1, _DIGITS + 1, dtype=torch.float64, device=size.device)
    return ((largest * powers + 0.5).floor() < _INT16).sum().to(torch.float64)
