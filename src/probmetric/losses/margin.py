"""Margin loss with distance-weighted sampling (Wu et al. 2017), in the form of Roth et al. 2020.

Every anchor a draws one positive p uniformly and one negative n, both from the batch. With
d_ij = sqrt(|u_i - u_j|^2 + 1e-8) between unit vectors,

    L = sum_a [ max(0, d_ap - beta + margin) + max(0, beta - d_an + margin) ] / #(terms above zero)

beta = beta_{y_a} is learned per class. A negative at distance d is drawn with weight 1 / q(d), where q is the density
of the distance between two uniform points on the sphere,

    log q(d) = (M - 2) log d + (M - 3)/2 log(1 - d^2 / 4),      d no smaller than `cutoff`

Below `cutoff` all negatives have the same weight; this is Wu et al.'s bound lambda on the weights. In tens of
dimensions 1 / q falls so fast above `cutoff` that one nearest negative takes all draws. A network trained from scratch,
whose negatives all start below 1.4, therefore needs a `cutoff` near beta (docs/findings/losses.md). Negatives at
`upper_cutoff` and beyond are not drawn. Wu et al.'s code uses 1.4 = beta + margin; Roth et al. removed this cutoff (2,
the default here).

An anchor with no positive, or no negative, to draw in the batch drops that term.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from probmetric.losses import register
from probmetric.losses._base import ChordLength, Loss, pairs_of, squared_distances
from probmetric.registry import LearningRate, Positive, Range


@register
class Margin(Loss):
    """Margin loss; `beta` is the initial boundary between positives and negatives."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        margin: float = 0.2,
        beta: Positive = 1.2,
        beta_lr: LearningRate = 0.0005,
        cutoff: ChordLength = 0.5,
        upper_cutoff: Annotated[float, Range(above="cutoff", high=2)] = 2.0,
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.margin, self.beta_lr = margin, beta_lr
        self.cutoff, self.upper_cutoff = cutoff, upper_cutoff
        self.beta = nn.Parameter(torch.full((num_classes,), beta))

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return the boundaries, at their own learning rate."""
        return [{"params": [self.beta], "lr": self.beta_lr, "weight_decay": 0.0}]

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the sum of the hinges divided by the number of hinges above zero."""
        distance = (squared_distances(embeddings) + 1e-8).sqrt()
        positive, negative = pairs_of(labels)
        partner = torch.multinomial(_drawable(positive.to(distance.dtype)), 1, generator=generator)
        rival = negative & (distance.detach() < self.upper_cutoff)
        opponent = torch.multinomial(_drawable(self.weights(distance.detach(), rival)), 1, generator=generator)
        beta = self.beta[labels]
        attract = (distance.gather(1, partner).squeeze(1) - beta + self.margin).clamp_min(0.0)
        repel = (beta - distance.gather(1, opponent).squeeze(1) + self.margin).clamp_min(0.0)
        attract, repel = attract * positive.any(dim=1), repel * rival.any(dim=1)
        active = (attract > 0).sum() + (repel > 0).sum()
        return (attract.sum() + repel.sum()) / active.clamp_min(1)

    def weights(self, distance: Tensor, negative: Tensor) -> Tensor:
        """Return the unnormalised probability (B, B) of drawing each negative, from the detached `distance`."""
        d = distance.clamp(self.cutoff, 1.9999)
        log_density = (self.dim - 2) * d.log() + 0.5 * (self.dim - 3) * (1.0 - 0.25 * d.square()).log()
        log_weight = (-log_density).masked_fill(~negative, float("-inf"))
        top = log_weight.amax(dim=1, keepdim=True)
        return torch.where(negative, (log_weight - top).exp(), 0.0)

    def diagnostics(self) -> dict[str, float]:
        """Return the mean boundary."""
        return {"beta": float(self.beta.detach().mean())}


def _drawable(weight: Tensor) -> Tensor:
    """Return `weight` (B, B) with ones in the rows that are all zero; draws of those rows are not used."""
    return torch.where(weight.sum(dim=1, keepdim=True) > 0, weight, 1.0)
