"""CPML: the potential field with a contrastive potential (Bhatnagar and Ahuja 2025, supplement, eq. 8).

The counterpart of `potential_field` whose force grows with distance instead of decaying,

    psi_att(d) = max(d, delta_att)^2

and everything else, proxies included, unchanged. The repulsive potential is not printed; two readings are offered:

    repulsion="hinge"      psi_rep(d) = max(0, delta_rep - d)^2, the contrastive loss's
    repulsion="squared"    psi_rep(d) = delta_rep^2 - min(d, delta_rep)^2, the mirror image of eq. 8

The hinge's slope by d^2 is infinite at d = 0, so it is held constant below `min_distance`. The value is the sum over
all ordered pairs of points divided by the batch size.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import ChordLength
from probmetric.losses.potential_field import FieldLoss, Interaction
from probmetric.registry import CountOrZero, LearningRate, Range


@register
class ContrastivePotential(FieldLoss):
    """Contrastive potentials between all embeddings and `proxies_per_class` proxies per class."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        proxies_per_class: CountOrZero = 15,
        delta_attraction: ChordLength = 0.2,
        delta_repulsion: ChordLength = 0.2,
        repulsion: Literal["hinge", "squared"] = "hinge",
        min_distance: Annotated[float, Range(above=0, below="delta_repulsion")] = 0.01,
        proxy_lr: LearningRate = 0.01,
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxies_per_class=proxies_per_class, proxy_lr=proxy_lr)
        self.delta_attraction, self.delta_repulsion = delta_attraction, delta_repulsion
        self.min_distance, self.hinge = min_distance, repulsion == "hinge"

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the energy of all pairs over the batch size."""
        repulsion = self._hinge if self.hinge else self._squared
        interaction = Interaction(self._attraction, repulsion, self.delta_repulsion**2)
        return self.energy(embeddings, labels, interaction)[0] / len(labels)

    def _attraction(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        held = squared.clamp_min(self.delta_attraction**2)
        return held, (squared > self.delta_attraction**2).to(squared.dtype)

    def _hinge(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        distance = squared.clamp(self.min_distance**2, self.delta_repulsion**2).sqrt()
        gap = self.delta_repulsion - distance
        return gap.square(), -gap / distance * (squared > self.min_distance**2)

    def _squared(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        gap = (self.delta_repulsion**2 - squared).clamp_min(0.0)
        return gap, -(gap > 0).to(squared.dtype)
