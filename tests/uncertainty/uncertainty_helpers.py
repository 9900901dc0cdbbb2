"""Small encoders and data shared by the uncertainty tests."""

import torch
from torch import nn


class TinyEncoder(nn.Module):
    """Flatten -> Linear -> Tanh features of size D, Linear head to M dimensions."""

    def __init__(self, inputs: int = 12, features: int = 6, dim: int = 4, bias: bool = True, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(inputs, features), nn.BatchNorm1d(features), nn.Tanh())
            self.head = nn.Linear(features, dim, bias=bias)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return self.trunk(images)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def tiny_batches(
    count: int = 3, size: int = 16, classes: int = 4, seed: int = 1
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of images (B, 3, 2, 2) clustered by class, and labels (B,)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 3, 2, 2, generator=generator)
    batches = []
    for _ in range(count):
        labels = torch.arange(size) % classes
        batches.append((centres[labels] + 0.5 * torch.randn(size, 3, 2, 2, generator=generator), labels))
    return batches
