"""Triplet loss with semi-hard negatives (Schroff et al. 2015, eqs. 3 and 4).

    L = mean_{(a, p)} max(0, d_ap - d_an + margin),     d_ij = |u_i - u_j|^2 between unit vectors

over all positive pairs (a, p). n is the nearest negative of a that is farther than p, or a's farthest negative if no
negative is farther than p. One sort of each anchor's distances finds the negatives, without a list of all triplets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import Loss, pairs_of, squared_distances
from probmetric.registry import Positive


@register
class Triplet(Loss):
    """Semi-hard triplet loss on squared distances."""

    def __init__(self, *, num_classes: int, dim: int, margin: Positive = 0.2) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.margin = margin

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mean hinge over the positive pairs whose anchor has a negative; zero without any."""
        squared = squared_distances(embeddings)
        positive, negative = pairs_of(labels)
        pairs = positive & negative.any(dim=1)[:, None]
        values = squared.detach()
        order = values.masked_fill(~negative, float("inf")).sort(dim=1)
        farther = torch.searchsorted(order.values, values, right=True)
        last = negative.sum(dim=1, keepdim=True) - 1
        opponent = order.indices.gather(1, torch.minimum(farther, last.clamp_min(0)))
        hinge = (squared - squared.gather(1, opponent) + self.margin).clamp_min(0.0)
        return (hinge * pairs).sum() / pairs.sum().clamp_min(1)
