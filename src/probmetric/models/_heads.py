"""Pooling of a feature map (B, D, H, W) to features (B, D).

Generalised mean (GeM), Radenovic et al. 2018: f_d = (mean_{h,w} max(x_dhw, eps)^p)^(1/p). p = 1 is the average,
p -> infinity the maximum; p is learnt and starts at 3. "average_max" is the double pooling of papers 001 and 004:
global average plus global maximum.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Pooling = Literal["flatten", "average", "max", "average_max", "gem"]


class GeM(nn.Module):
    """Generalised-mean pooling with a learnt exponent p."""

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(float(p)))
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, D, H, W) to (B, D)."""
        powers = maps.to(torch.promote_types(maps.dtype, torch.float32)).clamp(min=self.eps).pow(self.p)
        return powers.mean(dim=(2, 3)).pow(1.0 / self.p)


class Average(nn.Module):
    """Global average pooling."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, D, H, W) to (B, D)."""
        return maps.mean(dim=(2, 3))


class Maximum(nn.Module):
    """Global maximum pooling."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, D, H, W) to (B, D)."""
        return maps.amax(dim=(2, 3))


class AverageMax(nn.Module):
    """Sum of the global average and the global maximum."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, D, H, W) to (B, D)."""
        return maps.mean(dim=(2, 3)) + maps.amax(dim=(2, 3))


def create_pooling(name: Pooling) -> nn.Module:
    """Create a pooling layer by its name."""
    layers = {"flatten": nn.Flatten, "average": Average, "max": Maximum, "average_max": AverageMax, "gem": GeM}
    return layers[name]()
