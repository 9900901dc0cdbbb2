"""COSINE: normalised softmax with a learned temperature (Scott et al. 2021, section 3; Zhai and Wu 2019).

L = mean_i -log softmax_c(beta cos(z_i, w_c))[y_i]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from probmetric.losses import register
from probmetric.losses._softmax import CosineSoftmax
from probmetric.registry import LearningRate, Positive


@register
class Cosine(CosineSoftmax):
    """Cross-entropy over scaled cosines; `scale` is the initial inverse temperature."""

    vectorises = True

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        scale: Positive = 16.0,
        learn_scale: bool = True,
        scale_lr: LearningRate = 0.001,
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, scale=scale, learn_scale=learn_scale, scale_lr=scale_lr)

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Mean cross-entropy over the batch."""
        return F.cross_entropy(self.logits(embeddings), labels)
