"""PFML, potential field metric learning (Bhatnagar and Ahuja 2025, eqs. 1-6).

Points are the batch's embeddings and K proxies per class, all of unit norm. With d the distance of two points,

    psi_att(d) = -max(d, delta_att)^-alpha      same class: flat within delta_att, decaying beyond
    psi_rep(d) = min(d, delta_rep)^-alpha       other class: constant, hence without force, beyond delta_rep
    U = sum over all ordered pairs of points, each point with itself included (eq. 6)

There is no official code. This loss follows the text, with these choices where the text is silent:

* `alpha` = 0 makes eqs. 1 and 2 constant, without any gradient. The limit of (d^-alpha - 1) / alpha is used instead:
  psi_att = log max(d, delta_att), psi_rep = -log min(d, delta_rep).
* psi_rep is infinite at d = 0 (duplicated or mislabelled images). It is held constant, without force, below
  `min_distance`.
* At delta = 0.2 and alpha = 4 a pair in contact has the energy 625. With 22,636 proxies, the constants of 5e8 pairs
  beyond delta_rep add up to 3e11; beside this sum float32 shows no change. `energy="relative"` (default) drops the
  constants psi_rep(delta_rep) and the points' energies with themselves, and multiplies by delta_att^alpha / B: a pair
  attracted into contact has energy -1 per image of the batch. `energy="eq6"` is U itself. Both have the same minimiser.
  Under Adam they differ only through its epsilon and weight decay, under SGD by the scale of the learning rate.
* Embeddings of one class must meet in a batch, so take a sampler that draws two or more images of a class.

Proxies start from N(0, 1)/8. They learn at 0.01 (100 times the network's rate in the paper's table 8), without decay.

The energy of all ordered pairs is computed in bounded memory:

    E = sum_{i != j} psi_att(d_ij) [y_i = y_j] + psi_rep(d_ij) [y_i != y_j],     d_ij^2 = 2 - 2 v_i . v_j

Inner products are formed tile by tile over the upper triangle. Pairs of different classes act only within delta_rep, so
nearly all pairs end at one comparison; the few that act are gathered and evaluated. E is a scalar, so the forward pass
can add each tile's gradient to a running sum and drop the tile; the backward pass only scales this sum. Memory holds
one tile, the vectors and their gradient. Potentials are functions of the squared distance s, whose clamps have a slope
of exactly zero; d itself would have an infinite slope at zero.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmetric.losses import register
from probmetric.losses._base import ChordLength, ProxyLoss, unit
from probmetric.registry import LearningRate, NotNegative, OptionValueError, Range

TILE = 1024
DENSE_SHARE, _LARGEST_LOG = 16, 60.0
"""A tile with more than one acting pair in this many is evaluated whole instead of pair by pair."""


class FieldLoss(ProxyLoss):
    """A loss whose value is the energy of the batch's embeddings and all proxies; row c K + k is proxy k of class c.

    A subclass defines both potentials, `attraction` and `repulsion`, as functions of squared distances s (...).
    """

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        proxies_per_class: Annotated[int, Range(low=0, high=1024)] = 15,
        delta_attraction: ChordLength = 0.2,
        delta_repulsion: ChordLength = 0.2,
        proxy_lr: LearningRate = 0.01,
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxy_lr=proxy_lr, per_class=proxies_per_class)
        self.delta_attraction, self.delta_repulsion = delta_attraction, delta_repulsion

    def class_vectors(self) -> tuple[Tensor, Tensor]:
        """Return proxies (C K, M) and the class (C K,) of each."""
        classes = torch.arange(self.num_classes, device=self.proxies.device)
        return self.proxies, classes.repeat_interleave(len(self.proxies) // self.num_classes)

    def attraction(self, squared: Tensor) -> Tensor:
        """Return the potential of a pair of one class."""
        raise NotImplementedError

    def repulsion(self, squared: Tensor) -> Tensor:
        """Return the potential of a pair of two classes: zero from `delta_repulsion`^2 on."""
        raise NotImplementedError

    def energy(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return energy of embeddings (B, M) and proxies (C K, M), and the labels (B + C K,) of all these points."""
        directions, classes = self.class_proxies()
        points, owners = torch.cat([unit(embeddings), directions]), torch.cat([labels, classes])
        total: Tensor = _PairEnergy.apply(points, owners, self)
        return total, owners


@register
class PotentialField(FieldLoss):
    """PFML with `proxies_per_class` proxies (0: sample pairs only) and decay `alpha`."""

    def __init__(
        self,
        *,
        alpha: NotNegative = 4.0,
        delta_repulsion: ChordLength = 0.2,
        min_distance: Annotated[float, Range(above=0, below="delta_repulsion")] = 0.05,
        energy: Literal["relative", "eq6"] = "relative",
        **shared: Any,
    ) -> None:
        super().__init__(delta_repulsion=delta_repulsion, **shared)
        self.alpha, self.min_distance, self.relative = alpha, min_distance, energy == "relative"
        if alpha * abs(math.log(min_distance / self.delta_attraction)) > _LARGEST_LOG:
            raise OptionValueError(
                f"(delta_attraction {self.delta_attraction:g} / min_distance {min_distance:g}) ** alpha {alpha:g} "
                "leaves the range of single precision; lower alpha, or bring both distances closer to each other."
            )

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the relative energy per image, or U of eq. 6."""
        total, owners = self.energy(embeddings, labels)
        if self.relative:
            return total / len(labels)
        counts = torch.bincount(owners, minlength=self.num_classes).double()
        repelling = (counts.sum().square() - counts.square().sum()).to(total.dtype)
        constant = self._level(self.delta_repulsion) * repelling
        total = total - self._level(self.delta_attraction) * len(owners) + constant
        return total / self.delta_attraction**self.alpha

    def _level(self, distance: float) -> float:
        """Return the magnitude of the potential at `distance`, in units of the energy of contact."""
        return (self.delta_attraction / distance) ** self.alpha if self.alpha > 0 else -math.log(distance)

    def _magnitude(self, squared: Tensor) -> Tensor:
        """Return `_level` of squared distances (...)."""
        if self.alpha > 0:
            return (squared / self.delta_attraction**2) ** (-0.5 * self.alpha)
        return -0.5 * squared.log()

    def attraction(self, squared: Tensor) -> Tensor:
        """Return -max(d, delta_att)^-alpha, in units of the energy of contact."""
        return -self._magnitude(squared.clamp_min(self.delta_attraction**2))

    def repulsion(self, squared: Tensor) -> Tensor:
        """Return min(d, delta_rep)^-alpha above its value at delta_rep, in units of the energy of contact."""
        held = squared.clamp(self.min_distance**2, self.delta_repulsion**2)
        return self._magnitude(held) - self._level(self.delta_repulsion)


class _PairEnergy(torch.autograd.Function):
    """Scalar energy of unit `vectors` (N, M) with `labels` (N,)."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, vectors: Tensor, labels: Tensor, field: FieldLoss) -> Tensor:
        gradient = torch.zeros_like(vectors) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        energies = []
        for first in range(0, len(vectors), TILE):
            for second in range(first, len(vectors), TILE):
                rows, columns = slice(first, first + TILE), slice(second, second + TILE)
                energies.append(_tile(vectors, labels, field, rows, columns, gradient))
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return torch.stack(energies).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * gradients[0], None, None  # type: ignore[attr-defined]


def _tile(
    vectors: Tensor,  # (N, M)
    labels: Tensor,  # (N,)
    field: FieldLoss,
    rows: slice,
    columns: slice,
    gradient: Tensor | None,  # (N, M), added to
) -> Tensor:
    """Return the energy of the pairs rows x columns; a tile off the diagonal counts twice, for its mirror image."""
    diagonal = rows == columns
    inner = vectors[rows] @ vectors[columns].T
    same = labels[rows, None] == labels[None, columns]
    acting = same | (inner > 1.0 - 0.5 * field.delta_repulsion**2)
    if diagonal:
        acting.fill_diagonal_(False)
    if int(torch.count_nonzero(acting)) * DENSE_SHARE > acting.numel():
        energy, matrix = _evaluate(field, inner, same)
        energy, matrix = energy * acting, matrix * acting
    else:
        i, j = acting.nonzero(as_tuple=True)
        if len(i) == 0:
            return inner.new_zeros(())
        energy, force = _evaluate(field, inner[i, j], same[i, j])
        moving = force != 0
        matrix = torch.sparse_coo_tensor(
            torch.stack([i[moving], j[moving]]), force[moving], inner.shape, is_coalesced=True, check_invariants=False
        )
    if gradient is not None:
        gradient[rows] += matrix @ vectors[columns]
        if not diagonal:
            gradient[columns] += matrix.t() @ vectors[rows]
    return energy.sum() * (1.0 if diagonal else 2.0)


def _evaluate(
    field: FieldLoss,
    inner: Tensor,  # (...) inner products of pairs
    attracted: Tensor,  # (...) whether a pair is of one class
) -> tuple[Tensor, Tensor]:  # (...), (...)
    """Return the energy of each pair and the factor f in its force, dE / dv_i = sum_j f_ij v_j.

    Each pair is counted from both of its ends, so f = 2 psi'(s) (-2).
    """
    squared = (2.0 - 2.0 * inner).clamp_min(0.0).requires_grad_()
    with torch.enable_grad():
        energy = torch.where(attracted, field.attraction(squared), field.repulsion(squared))
        (slope,) = torch.autograd.grad(energy.sum(), squared)
    return energy.detach(), -4.0 * slope
