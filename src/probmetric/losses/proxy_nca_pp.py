"""ProxyNCA++ (Teh et al. 2020; NIR eq. 4): cross-entropy over proxy distances.

L = mean_i -log [ exp(-d_{i,y_i} / T) / sum_c exp(-d_ic / T) ]

corrected      d_ic = |x_i/|x_i| - p_c/|p_c| |^2, T = 1/9: Teh et al.'s definition
as_published   d_ic = |x_i/|x_i| - p_c/|p_c| | / sqrt(T): the unsquared distance between vectors of norm 3 that the
code released with the non-isotropic papers calls ProxyNCA++
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from probmetric.losses import register
from probmetric.losses._base import ProxyLoss, safe_sqrt, squared_distances
from probmetric.registry import LearningRate, Positive


@register
class ProxyNCAPlusPlus(ProxyLoss):
    """ProxyNCA++ with one proxy per class."""

    is_classifier = True

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        temperature: Positive = 0.1111111111111111,
        proxy_lr: LearningRate = 0.01,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxy_lr=proxy_lr)
        self.temperature, self.unsquared = temperature, fidelity == "as_published"

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return negative scaled distances, (B, C)."""
        scaled = squared_distances(embeddings, self.proxies) / self.temperature
        return -safe_sqrt(scaled) if self.unsquared else -scaled

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mean cross-entropy over the batch."""
        return F.cross_entropy(self.logits(embeddings), labels)
