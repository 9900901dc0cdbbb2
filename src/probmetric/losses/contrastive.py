"""Contrastive loss on mined triplets (Hadsell et al. 2006; Warburg et al. 2023, LAM, eqs. 1, 20 and 22).

With u = z/|z|, d_ij = |u_i - u_j| and margin m, over positive pairs (a, p) and negative pairs (a, n):

    corrected      mean  d_ap^2 / 2     +  mean  max(0, m - d_an)^2 / 2     over terms that are not zero
    as_published   mean  d_ap           +  mean  max(0, m - d_an)           over terms that are not zero

LAM's text and its Laplace approximation assume the squared form (the Gauss-Newton matrix is that of d^2 / 2); its
code trains the linear hinges of pytorch-metric-learning's `ContrastiveLoss`. Eq. 21 prints another repulsion,
m - d^2 / 2, which agrees with neither eq. 20 nor the code; it is not used.

Pairs come from triplets (anchor a, positive p, negative n). With D = d_an - d_ap, `mining` keeps these triplets:

    all: D <= m     hard: D <= min(0, m)     semihard: 0 < D <= m     easy: D > m     none: every pair once

A pair counts once for each kept triplet, as in LAM. The triplets are counted by sorting each anchor's distances
(B^2 log B) instead of listing them (B^3). Two embeddings within rounding of each other have distance zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import Loss, pairs_of, safe_sqrt, squared_distances
from probmetric.registry import Positive

Mining = Literal["all", "hard", "semihard", "easy"]


@register
class Contrastive(Loss):
    """Contrastive loss; `margin` bounds repulsion, `mining` selects the triplets whose pairs count."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        margin: Positive = 0.7,
        mining: Literal["all", "hard", "semihard", "easy", "none"] = "all",
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.margin, self.mining, self.linear = margin, mining, fidelity == "as_published"

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mean of the attracting terms plus mean of the repelling terms."""
        distance = safe_sqrt(squared_distances(embeddings))
        counts = pairs_of(labels)
        if self.mining != "none":
            counts = triplets_of_pairs(distance.detach(), *counts, margin=self.margin, mining=self.mining)
        of_positive, of_negative = (count.to(distance.dtype) for count in counts)
        hinge = (self.margin - distance).clamp_min(0.0)
        return self._mean_of_nonzero(distance, of_positive) + self._mean_of_nonzero(hinge, of_negative)

    def _mean_of_nonzero(self, length: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted mean of the terms of `length` (B, B) that are not zero; 0 where there are none."""
        term = length if self.linear else 0.5 * length.square()
        weight = weight * (term.detach() > 0)
        return (weight * term).sum() / weight.sum().clamp_min(1.0)


def triplets_of_pairs(
    distance: Tensor, positive: Tensor, negative: Tensor, *, margin: float, mining: Mining
) -> tuple[Tensor, Tensor]:
    """Return how many kept triplets hold each positive pair (a, p) and each negative pair (a, n), int64 (B, B) each.

    Args:
        distance: d (B, B), anchors in rows.
        positive: whether a pair counts as positive (B, B).
        negative: whether a pair counts as negative (B, B).
        margin: m.
        mining: which triplets are kept.
    """
    low, high = {
        "all": (-math.inf, margin),
        "hard": (-math.inf, min(0.0, margin)),
        "semihard": (0.0, margin),
        "easy": (margin, math.inf),
    }[mining]  # a triplet is kept where low < D <= high
    of_positives = _ranked(distance, negative)
    of_negatives = _ranked(distance, positive)
    negatives_of_pair = of_positives(high, True) - of_positives(low, True)
    positives_of_pair = of_negatives(-low, False) - of_negatives(-high, False)
    return positive * negatives_of_pair, negative * positives_of_pair


def _ranked(distance: Tensor, mask: Tensor) -> Callable[[float, bool], Tensor]:
    """Return a function that counts each anchor's masked distances below distance + bound, (B, B).

    It counts distances equal to distance + bound if `inclusive`.
    """
    ordered = distance.masked_fill(~mask, float("inf")).sort(dim=1).values
    total = mask.sum(dim=1, keepdim=True)

    def count(bound: float, inclusive: bool) -> Tensor:
        if math.isinf(bound):
            return total if bound > 0 else torch.zeros_like(total)
        return torch.minimum(torch.searchsorted(ordered, distance + bound, right=inclusive), total)

    return count
