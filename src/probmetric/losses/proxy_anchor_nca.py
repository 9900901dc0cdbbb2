"""ProxyNCA in the shape of ProxyAnchor (Roth et al. 2022, NIR eq. 6); their tables call it ProxyNCA.

L = mean_i log(1 + exp(-alpha (s_{i,y_i} - delta))) + mean_i log(1 + sum_{c != y_i} exp(alpha (s_ic + delta)))

corrected      eq. 6
as_published   the released code multiplies the first exponential by n_i, the number of samples of class y_i in the
batch (its mask sums over the batch)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import ProxyLoss, cosine_similarities, log_one_plus_exp, without_target
from probmetric.registry import LearningRate, Positive


@register
class ProxyAnchorNCA(ProxyLoss):
    """NCA-shaped ProxyAnchor: proxies are contrasted per sample."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        scale: Positive = 32.0,
        margin: float = 0.1,
        proxy_lr: LearningRate = 0.02,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxy_lr=proxy_lr)
        self.scale, self.margin, self.count_class = scale, margin, fidelity == "as_published"

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the attraction to the own proxy plus repulsion from all others, means over the batch."""
        cosine = cosine_similarities(embeddings, self.proxies)
        exponent = -self.scale * (cosine.gather(1, labels[:, None]).squeeze(1) - self.margin)
        if self.count_class:
            exponent = exponent + (labels[:, None] == labels).sum(dim=1).to(exponent.dtype).log()
        others = without_target(self.scale * (cosine + self.margin), labels)
        return log_one_plus_exp(exponent).mean() + log_one_plus_exp(others.logsumexp(dim=1)).mean()
