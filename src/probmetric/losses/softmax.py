"""STANDARD: softmax over inner products (Scott et al. 2021, section 3).

    L = mean_i -log softmax_c(z_i . w_c)[y_i]

The embedding is not normalised. Its norm sharpens the prediction, so the norm can serve as a confidence. The classifier
starts like `nn.Linear` and has neither bias nor weight decay.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probmetric.losses import register
from probmetric.losses._base import WeightedLoss


@register
class Softmax(WeightedLoss):
    """Cross-entropy of a linear classifier without bias."""

    def __init__(self, *, num_classes: int, dim: int) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.weight = nn.Parameter(torch.empty(num_classes, dim).uniform_(-(dim**-0.5), dim**-0.5))

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return inner products (B, C) with the class weights."""
        return embeddings @ self.weight.T
