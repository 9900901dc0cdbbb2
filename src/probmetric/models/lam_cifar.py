"""The CIFAR-10 net of paper 003 (LAM): three 3x3 convolutions, two max-pools, a linear head.

    conv (C -> 32) - ReLU - max-pool 2 - conv (32 -> 64) - ReLU - max-pool 2 - conv (64 -> 64) - ReLU
    - flatten (1024 at 32x32) - linear (-> M)

Layer sizes follow the released code (the paper's text garbles them). The final L2 normalisation is left to the loss.
`dropout` is the rate of channel dropout after each block, for the MC-dropout baseline.
"""

from __future__ import annotations

from torch import Tensor, nn

from probmetric.models import register
from probmetric.models._base import Encoder
from probmetric.registry import Share


@register
class LamCifar(Encoder):
    """Small convolutional encoder for 32x32 colour images."""

    def __init__(self, *, dim: int, in_channels: int, image_size: int, dropout: Share = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout2d(dropout),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout2d(dropout),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Dropout2d(dropout),
            nn.Flatten(),
        )
        side = ((image_size - 2) // 2 - 2) // 2 - 2
        self._attach_head(64 * side**2, dim)

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, D) of images (B, C, H, W)."""
        return self.layers(images)
