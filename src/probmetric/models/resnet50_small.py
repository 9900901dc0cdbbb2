"""ResNet-50 for 32x32 images, as in the CIFAR experiments of paper 002 (vMF loss): the network of He et al. 2016 with
a stem of one 3x3 convolution of stride 1. The max-pool after the stem stays.

Weights start from Kaiming's normal distribution (fan out). The scale of each block's last normalisation and the head's
bias start from zero.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from probmetric.models import register
from probmetric.models._base import Encoder


@register
class ResNet50Small(Encoder):
    """ResNet-50 that keeps the resolution of small images in its stem."""

    def __init__(self, *, dim: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        import timm

        backbone: Any = timm.create_model("resnet50", pretrained=False, num_classes=0, in_chans=in_channels)
        stem = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        backbone.conv1 = stem
        self.backbone = backbone
        head = self._attach_head(int(backbone.num_features), dim)
        nn.init.zeros_(head.bias)

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, 2048) of images (B, C, H, W)."""
        return self.backbone(images)
