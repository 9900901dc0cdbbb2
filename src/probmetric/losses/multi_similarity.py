"""MultiSimilarity loss with its miner (Wang et al. 2019).

With cosines s_ij, P_i and N_i the positives and negatives of anchor i,

    L = mean_i [ log(1 + sum_{j in P_i} exp(-alpha (s_ij - base))) / alpha
               + log(1 + sum_{j in N_i} exp( beta  (s_ij - base))) / beta ]

With `mining`, only pairs within epsilon of the hardest pair of the other kind count:
j in N_i is kept if s_ij + epsilon > min P_i,  j in P_i is kept if s_ij - epsilon < max N_i.

    corrected      the mean over all anchors; an empty sum is zero
    as_published   anchors for which either mined set is empty are left out of the sum and of the mean, as in the code
                   released with the non-isotropic papers (which fails where no anchor is left; here the loss is zero)

The default constants are those of the non-isotropic papers; Wang et al. use beta = 50 and base = 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import Loss, log_one_plus_sum_exp, pairs_of, unit
from probmetric.registry import Positive


@register
class MultiSimilarity(Loss):
    """MultiSimilarity loss over all pairs of the batch, or over the mined ones."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        alpha: Positive = 2.0,
        beta: Positive = 40.0,
        base: float = 0.5,
        epsilon: float = 0.1,
        mining: bool = True,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.alpha, self.beta, self.base, self.epsilon = alpha, beta, base, epsilon
        self.mining, self.skip_incomplete = mining, fidelity == "as_published"

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mean over the anchors."""
        directions = unit(embeddings)
        cosine = directions @ directions.T
        positive, negative = pairs_of(labels)
        if self.mining:
            positive, negative = self.mine(cosine.detach(), positive, negative)
        attraction = log_one_plus_sum_exp(-self.alpha * (cosine - self.base), positive, dim=1) / self.alpha
        repulsion = log_one_plus_sum_exp(self.beta * (cosine - self.base), negative, dim=1) / self.beta
        terms = attraction + repulsion
        if not self.skip_incomplete:
            return terms.mean()
        complete = (positive.any(dim=1) & negative.any(dim=1)).to(terms.dtype)
        return (complete * terms).sum() / complete.sum().clamp_min(1.0)

    def mine(self, cosine: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return masks (B, B) of the pairs within `epsilon` of the hardest pair of the other kind."""
        weakest_positive = cosine.masked_fill(~positive, float("inf")).amin(dim=1, keepdim=True)
        strongest_negative = cosine.masked_fill(~negative, float("-inf")).amax(dim=1, keepdim=True)
        return (
            positive & (cosine - self.epsilon < strongest_negative),
            negative & (cosine + self.epsilon > weakest_positive),
        )
