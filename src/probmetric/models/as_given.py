"""No network: the pixels, or the vectors of a frozen model, are the features."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from probmetric.models import register
from probmetric.models._base import Encoder
from probmetric.registry import Flag


@register("pixels")
class Pixels(Encoder):
    """Flattened pixels, a floor that every trained encoder must beat; M is C*H*W, `dim` is ignored."""

    has_head = False

    def __init__(self, *, dim: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        self.dim = self.num_features = in_channels * image_size**2

    def features(self, images: Tensor) -> Tensor:
        """Return the pixels (B, C*H*W) of images (B, C, H, W)."""
        return images.flatten(1)


@register("vectors")
class Vectors(Encoder):
    """Features are the first D numbers of the input, for datasets of `source: embeddings`.

    Without a head the features are the embedding.
    """

    has_head: ClassVar[Flag] = {"head": "linear"}

    def __init__(
        self, *, dim: int, in_channels: int, image_size: int, head: Literal["linear", "none"] = "linear"
    ) -> None:
        super().__init__()
        self.num_features = in_channels * image_size**2 // 4
        self.dim = self.num_features
        if head == "linear":
            self._attach_head(self.num_features, dim)

    def features(self, images: Tensor) -> Tensor:
        """Return the first D numbers (B, D) of vectors (B, ...)."""
        return images.flatten(1)[:, : self.num_features]
