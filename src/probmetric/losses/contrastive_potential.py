"""CPML: the potential field with a contrastive potential (Bhatnagar and Ahuja 2025, supplement, eq. 8).

The counterpart of `potential_field` with a force that grows with distance instead of decaying:

    psi_att(d) = max(d, delta_att)^2

All else, proxies included, is as in `potential_field`. The paper does not print the repulsive potential; choose one of
two readings:

    repulsion="hinge"      psi_rep(d) = max(0, delta_rep - d)^2, as in the contrastive loss
    repulsion="squared"    psi_rep(d) = delta_rep^2 - min(d, delta_rep)^2, the mirror image of eq. 8

The hinge's slope by d^2 is infinite at d = 0, so the hinge is held constant below `min_distance`. The loss is the sum
over all ordered pairs of points, divided by the batch size.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import ChordLength
from probmetric.losses.potential_field import FieldLoss
from probmetric.registry import Range, When


@register
class ContrastivePotential(FieldLoss):
    """Contrastive potentials between all embeddings and `proxies_per_class` proxies per class."""

    def __init__(
        self,
        *,
        repulsion: Literal["hinge", "squared"] = "hinge",
        delta_repulsion: ChordLength = 0.2,
        min_distance: Annotated[float, Range(above=0, below="delta_repulsion"), When(repulsion="hinge")] = 0.01,
        **shared: Any,
    ) -> None:
        super().__init__(delta_repulsion=delta_repulsion, **shared)
        self.min_distance, self.hinge = min_distance, repulsion == "hinge"

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the energy of all pairs over the batch size."""
        return self.energy(embeddings, labels)[0] / len(labels)

    def attraction(self, squared: Tensor) -> Tensor:
        """Return max(d, delta_att)^2."""
        return squared.clamp_min(self.delta_attraction**2)

    def repulsion(self, squared: Tensor) -> Tensor:
        """Return max(0, delta_rep - d)^2, or delta_rep^2 - min(d, delta_rep)^2."""
        if not self.hinge:
            return (self.delta_repulsion**2 - squared).clamp_min(0.0)
        distance = squared.clamp(self.min_distance**2, self.delta_repulsion**2).sqrt()
        return (self.delta_repulsion - distance).square()
