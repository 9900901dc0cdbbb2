"""COSINE: normalised softmax with a learned temperature (Scott et al. 2021, section 3; Zhai and Wu 2019).

    L = mean_i -log softmax_c(logit_ic)[y_i],    logit_ic = beta cos(z_i, w_c),    beta = exp(log_scale) > 0

The paper writes beta = exp(tau); its code stores -tau. The classifier starts like `nn.Linear` and has no weight decay.
log beta has its own learning rate and no momentum. `arcface` uses the same classifier.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from probmetric.losses import register
from probmetric.losses._base import WeightedLoss, cosine_similarities
from probmetric.registry import LearningRate, Positive


class CosineSoftmax(WeightedLoss):
    """Classifier over cosines with inverse temperature `scale`, learned unless `learn_scale` is false."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        scale: Positive = 16.0,
        learn_scale: bool = True,
        scale_lr: LearningRate = 0.001,
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.scale_lr = scale_lr
        self.weight = nn.Parameter(torch.empty(num_classes, dim).uniform_(-(dim**-0.5), dim**-0.5))
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learn_scale)

    def cosines(self, embeddings: Tensor) -> Tensor:
        """Return cosines (B, C) between embeddings (B, M) and class weights."""
        return cosine_similarities(embeddings, self.weight)

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return scaled cosines (B, C), without any margin."""
        return self.log_scale.exp() * self.cosines(embeddings)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return class weights at the base learning rate; log beta at `scale_lr` without momentum."""
        weights = {"params": [self.weight], "lr_multiplier": 1.0, "weight_decay": 0.0}
        scale = {"params": [self.log_scale], "lr": self.scale_lr, "weight_decay": 0.0}
        return [weights, scale | {"momentum": 0.0, "nesterov": False}]

    def diagnostics(self) -> dict[str, float]:
        """Return the inverse temperature beta."""
        return {"scale": float(self.log_scale.detach().exp())}


@register
class Cosine(CosineSoftmax):
    """Cross-entropy over scaled cosines; `scale` is the initial inverse temperature."""
