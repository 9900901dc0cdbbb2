"""PFML, potential field metric learning (Bhatnagar and Ahuja 2025, eqs. 1-6).

Points are the batch's embeddings and K proxies per class, all of unit norm. With d the distance of two points,

    psi_att(d) = -max(d, delta_att)^-alpha      same class: flat within delta_att, decaying beyond
    psi_rep(d) = min(d, delta_rep)^-alpha       other class: constant, hence without force, beyond delta_rep
    U = sum over all ordered pairs of points, each point with itself included (eq. 6)

There is no official code; this follows the text, and where the text is silent:

* `alpha` = 0 makes eqs. 1 and 2 constant, with no gradient at all. The limit of (d^-alpha - 1) / alpha is used:
  psi_att = log max(d, delta_att), psi_rep = -log min(d, delta_rep).
* psi_rep is infinite at d = 0 (duplicated or mislabelled images). It is held constant below `min_distance`, where it
  exerts no force either.
* At delta = 0.2 and alpha = 4 a pair in contact has the energy 625, and at 22,636 proxies the constants of 5e8 pairs
  beyond delta_rep add up to 3e11, in which float32 loses every change. `energy="relative"` (default) drops the
  constants psi_rep(delta_rep) and the points' energies with themselves, and multiplies by delta_att^alpha / B: a pair
  attracted into contact has energy -1 per image of the batch. `energy="eq6"` is U itself. Both have the same minimiser;
  under Adam they differ through its epsilon and through weight decay only, under SGD by the scale of the learning rate.
* Embeddings of one class must meet in a batch; `wants_groups` asks for two images per class.

Proxies start from N(0, 1)/8 and learn at 0.01 (100 times the network's rate of the paper's table 8), undecayed.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import ChordLength
from probmetric.losses._field import FieldLoss, Interaction, count_repelling_pairs
from probmetric.registry import CountOrZero, LearningRate, NotNegative, Range


@register
class PotentialField(FieldLoss):
    """PFML with `proxies_per_class` proxies (0: sample pairs only) and decay `alpha`."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        proxies_per_class: CountOrZero = 15,
        alpha: NotNegative = 4.0,
        delta_attraction: ChordLength = 0.2,
        delta_repulsion: ChordLength = 0.2,
        min_distance: Annotated[float, Range(above=0, below="delta_repulsion")] = 0.05,
        proxy_lr: LearningRate = 0.01,
        energy: Literal["relative", "eq6"] = "relative",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxies_per_class=proxies_per_class, proxy_lr=proxy_lr)
        self.alpha, self.delta_attraction, self.delta_repulsion = alpha, delta_attraction, delta_repulsion
        self.min_distance, self.relative = min_distance, energy == "relative"

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Relative energy per image, or U of eq. 6."""
        interaction = Interaction(self._attraction, self._repulsion, self.delta_repulsion**2)
        total, owners = self.energy(embeddings, labels, interaction)
        if self.relative:
            return total / len(labels)
        pairs = count_repelling_pairs(owners, self.num_classes).to(total.dtype)
        constant = self._level(self.delta_repulsion) * pairs
        return (total - self._level(self.delta_attraction) * len(owners) + constant) / self._unit_of_energy()

    def _unit_of_energy(self) -> float:
        return self.delta_attraction**self.alpha

    def _level(self, distance: float) -> float:
        """Magnitude of the potential at `distance`, in units of the energy of contact."""
        return (self.delta_attraction / distance) ** self.alpha if self.alpha > 0 else -math.log(distance)

    def _magnitude(self, squared: Tensor) -> Tensor:
        """`_level` of squared distances (...)."""
        if self.alpha > 0:
            return (squared / self.delta_attraction**2) ** (-0.5 * self.alpha)
        return -0.5 * squared.log()

    def _slope(self, squared: Tensor, magnitude: Tensor) -> Tensor:
        """Derivative of the magnitude by the squared distance, negated."""
        return 0.5 * self.alpha * magnitude / squared if self.alpha > 0 else 0.5 / squared

    def _attraction(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        held = squared.clamp_min(self.delta_attraction**2)
        magnitude = self._magnitude(held)
        return -magnitude, self._slope(held, magnitude) * (squared > self.delta_attraction**2)

    def _repulsion(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.min_distance**2, self.delta_repulsion**2
        held = squared.clamp(low, high)
        magnitude = self._magnitude(held)
        acting = (squared > low) & (squared < high)
        return magnitude - self._level(self.delta_repulsion), -self._slope(held, magnitude) * acting
