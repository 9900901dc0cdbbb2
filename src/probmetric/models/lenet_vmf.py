"""The MNIST net of paper 002 (vMF loss): LeNet with batch normalisation.

    conv 5x5 (C -> 6) - BN - ReLU - max-pool 2 - conv 5x5 (6 -> 16) - BN - ReLU - max-pool 2
    - linear (784 -> 120 at 28x28) - BN - ReLU - linear (120 -> M)

Weights start from Xavier's uniform distribution, biases from zero. The classifier that follows in the authors' code
belongs to the loss here.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from probmetric.models import register
from probmetric.models._base import Encoder


@register
class LeNetVmf(Encoder):
    """LeNet with batch normalisation, for 28x28 grey images."""

    def __init__(self, *, dim: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5, padding=2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * (image_size // 4) ** 2, 120),
            nn.BatchNorm1d(120),
            nn.ReLU(),
        )
        self._attach_head(120, dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(cast(Tensor, module.bias))

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, 120) of images (B, C, H, W)."""
        return self.layers(images)
