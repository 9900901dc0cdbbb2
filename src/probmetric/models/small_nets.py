"""The small nets of the papers, each with a linear head (-> M).

    lenet_vmf     paper 002 (vMF loss), MNIST: conv 5x5 (C -> 6) - BN - ReLU - max-pool 2
                  - conv 5x5 (6 -> 16) - BN - ReLU - max-pool 2 - linear (784 -> 120 at 28x28) - BN - ReLU
    lam_fashion   paper 003 (LAM), FashionMNIST: conv 3x3 (C -> 32) - ReLU - conv 3x3 (32 -> 64) - ReLU - max-pool 2
                  - flatten (9216 at 28x28)
    lam_cifar     paper 003 (LAM), CIFAR-10: conv 3x3 (C -> 32) - ReLU - max-pool 2 - conv 3x3 (32 -> 64) - ReLU
                  - max-pool 2 - conv 3x3 (64 -> 64) - ReLU - flatten (1024 at 32x32)

Weights of `lenet_vmf` start from Xavier's uniform distribution, biases from zero. The classifier that follows in the
authors' code belongs to the loss here. LAM's layer sizes follow the released code, not the text. Its nets end in an L2
normalisation; here the loss normalises, so that every loss and uncertainty can use them. Their `dropout` is the rate of
channel dropout after each block (MC-dropout baseline: the released configurations use 0.05, the text says 0.2).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from probmetric.models import register
from probmetric.models._base import Encoder
from probmetric.registry import Share


class Layers(Encoder):
    """Encoder whose features are the output of its `layers`."""

    layers: nn.Sequential

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, D) of images (B, C, H, W)."""
        return self.layers(images)


@register("lenet_vmf")
class LeNetVmf(Layers):
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
        self._attach_head(self._width_of(self.layers, in_channels, image_size), dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(cast(Tensor, module.bias))


@register("lam_fashion")
class LamFashion(Layers):
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
        self._attach_head(self._width_of(self.layers, in_channels, image_size), dim)


@register("lam_cifar")
class LamCifar(Layers):
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
        self._attach_head(self._width_of(self.layers, in_channels, image_size), dim)
