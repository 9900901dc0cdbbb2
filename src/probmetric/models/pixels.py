"""The pixels themselves as the embedding: no parameters, the floor any trained encoder has to beat."""

from __future__ import annotations

from torch import Tensor

from probmetric.models import register
from probmetric.models._base import Encoder


@register
class Pixels(Encoder):
    """Flattened pixels; M is C*H*W whatever `dim` asks for, and there is no head."""

    has_head = False

    def __init__(self, *, dim: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        self.dim = self.num_features = in_channels * image_size**2

    def features(self, images: Tensor) -> Tensor:
        """Return the pixels (B, C*H*W) of images (B, C, H, W)."""
        return images.flatten(1)
