"""ProxyNCA (Movshovitz-Attias et al. 2017; NIR eq. 1).

    L = mean_i [ d_{i,y_i} / T + log sum_{c != y_i} exp(-d_ic / T) ],    d_ic = |x_i/|x_i| - p_c/|p_c| |^2

The own proxy is left out of the sum, as in neighbourhood component analysis. The default `temperature` T = 1/9 equals
the factor of 3 on both unit vectors in released code. `proxy_nca_pp` keeps the own proxy and is a proper cross-entropy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import ProxyLoss, cosine_similarities, without_target
from probmetric.registry import LearningRate, Positive


@register
class ProxyNCA(ProxyLoss):
    """ProxyNCA with one proxy per class."""

    is_classifier = True

    def __init__(
        self, *, num_classes: int, dim: int, temperature: Positive = 0.1111111111111111, proxy_lr: LearningRate = 0.01
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxy_lr=proxy_lr)
        self.temperature = temperature

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return negative squared distances over the temperature, (B, C)."""
        return (2.0 - 2.0 * cosine_similarities(embeddings, self.proxies)).clamp_min(0.0) / -self.temperature

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mean over the batch; with a single class there is nothing to repel."""
        logits = self.logits(embeddings)
        own_logit = logits.gather(1, labels[:, None]).squeeze(1)
        if self.num_classes == 1:
            return -own_logit.mean()
        return (without_target(logits, labels).logsumexp(dim=1) - own_logit).mean()
