"""Turn stored vectors of a frozen model (`source: embeddings`) into network input: the bytes are float32 numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from probmetric.data.views import register
from probmetric.data.views._base import View


@register
@dataclass(frozen=True, kw_only=True)
class Vectors(View):
    """Stored vectors as they are."""

    exempt: ClassVar[Mapping[str, str]] = {
        "what_is_drawn_depends_on_seed_epoch_and_image_only": "any bytes are not finite numbers",
        "evaluation_augments_nothing": "any bytes are not finite numbers",
        "the_input_has_the_declared_side": "its input are vectors",
    }

    def evaluation(self) -> Vectors:
        """Return the same view, which has no augmentation."""
        return self

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Turn stored bytes (B, 3, S, S) uint8 into vectors (B, 1, 1, floor(3 S^2 / 4)) float32."""
        rows = images.permute(0, 2, 3, 1).reshape(len(images), -1)
        whole = rows[:, : rows.shape[1] // 4 * 4].contiguous()
        return whole.view(torch.float32)[:, None, None]
