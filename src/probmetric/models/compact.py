"""A strided net of a few MFLOPs per 32x32 image: trains in seconds on one CPU core.

    [conv 3x3 stride 2 - BN - ReLU] x 3, channels w, 2w, 4w - flatten (16 * 4w at 32x32) - linear (-> M)

Every layer halves the resolution before the channels grow, so no layer works at full resolution. Flattening keeps the
position of a stroke, which tells characters apart; with global average pooling, recall@1 on unseen glyph classes is
below that of raw pixels.
"""

from __future__ import annotations

import itertools
from typing import Literal

from torch import Tensor, nn

from probmetric.models import register
from probmetric.models._base import Encoder
from probmetric.models._heads import create_pooling
from probmetric.registry import Share, StepCount


@register
class Compact(Encoder):
    """Three strided convolutions and a linear head, for small images."""

    def __init__(
        self,
        *,
        dim: int,
        in_channels: int,
        image_size: int,
        width: StepCount = 16,
        pool: Literal["flatten", "average", "max", "average_max", "gem"] = "flatten",
        dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        widths = [in_channels, width, 2 * width, 4 * width]
        blocks: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            blocks += [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True), nn.Dropout2d(dropout)]
        self.layers = nn.Sequential(*blocks)
        self.pool = create_pooling(pool)
        places = (-(-image_size // 8)) ** 2 if pool == "flatten" else 1
        self._attach_head(widths[-1] * places, dim)

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, D) of images (B, C, H, W)."""
        return self.pool(self.layers(images))
