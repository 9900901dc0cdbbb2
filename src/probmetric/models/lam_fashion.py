"""The FashionMNIST net of paper 003 (LAM): two 3x3 convolutions, one max-pool, a linear head.

    conv 3x3 (C -> 32) - ReLU - conv 3x3 (32 -> 64) - ReLU - max-pool 2 - flatten (9216 at 28x28) - linear (-> M)

The authors' net ends in an L2 normalisation; here the output stays raw and the loss normalises, so that every loss
and uncertainty can use it. `dropout` is the rate of channel dropout after each block (MC-dropout baseline: the
released configurations use 0.05, the text says 0.2).
"""

from __future__ import annotations

from torch import Tensor, nn

from probmetric.models import register
from probmetric.models._base import Encoder
from probmetric.registry import Share


@register
class LamFashion(Encoder):
    """Small convolutional encoder for 28x28 grey images."""

    def __init__(self, *, dim: int, in_channels: int, image_size: int, dropout: Share = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 32, 3),
            nn.ReLU(),
            nn.Dropout2d(dropout),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout2d(dropout),
            nn.Flatten(),
        )
        self._attach_head(64 * ((image_size - 4) // 2) ** 2, dim)

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, D) of images (B, C, H, W)."""
        return self.layers(images)
