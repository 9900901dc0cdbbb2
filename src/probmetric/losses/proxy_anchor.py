"""ProxyAnchor (Kim et al. 2020; NIR eq. 5).

With cosines s_ic between embedding i and proxy c, scale alpha and margin delta,

    L = mean_{c in P+} log(1 + sum_{i: y_i = c} exp(-alpha (s_ic - delta)))
      + mean_{c = 1..C} log(1 + sum_{i: y_i != c} exp(alpha (s_ic + delta)))

P+ are the classes present in the batch.

    corrected      the first mean runs over the distinct classes of P+, as both papers print
    as_published   the first mean runs over the batch's samples, as in the code released with the non-isotropic papers:
                   a class with k samples counts k times. Both agree if all classes have equally many samples.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import ProxyLoss, cosine_similarities, log_one_plus_exp, without_target
from probmetric.registry import LearningRate, Positive


@register
class ProxyAnchor(ProxyLoss):
    """ProxyAnchor with one proxy per class."""

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
        self.scale, self.margin, self.per_sample = scale, margin, fidelity == "as_published"

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the attraction of the batch's classes plus repulsion of all classes."""
        cosine = cosine_similarities(embeddings, self.proxies)
        pull = -self.scale * (cosine.gather(1, labels[:, None]).squeeze(1) - self.margin)
        attraction = _log_one_plus_sum_by_class(pull, labels, self.num_classes)
        if self.per_sample:
            attracted = attraction[labels].mean()
        else:
            counts = torch.zeros_like(attraction).index_add_(0, labels, torch.ones_like(pull))
            attracted = attraction.sum() / (counts > 0).sum()
        others = without_target(self.scale * (cosine + self.margin), labels)
        return attracted + log_one_plus_exp(others.logsumexp(dim=0)).mean()


def _log_one_plus_sum_by_class(exponent: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return log(1 + sum of e^x over the x in `exponent` (B,) of each class), (C,); zero for absent classes."""
    top = exponent.new_zeros(num_classes).scatter_reduce(0, labels, exponent.detach(), "amax")
    return top + (-top).exp().index_add(0, labels, (exponent - top[labels]).exp()).log()
