"""Energy of all pairs of many unit vectors, in bounded memory.

    E = sum_{i != j} psi_att(d_ij) [y_i = y_j] + psi_rep(d_ij) [y_i != y_j],     d_ij^2 = 2 - 2 v_i . v_j

over ordered pairs. Stanford Online Products with two proxies per class has 5e8 of them. Inner products are formed tile
by tile over the upper triangle; a pair of different classes acts only within the repulsion's reach, so that nearly
all pairs end at one comparison, and the few that act are gathered and evaluated by themselves. Because E is a scalar
its gradient is known as soon as a tile is: the forward pass accumulates it next to the energy and drops the tile, and
the backward pass only scales it. Memory is one tile, the vectors and their gradient.

Everything is a function of the squared distance s, whose clamps give exact zero slopes; d itself would have an
infinite slope at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmetric.losses._base import unit
from probmetric.losses._proxies import ProxyLoss

TILE = 1024
DENSE_SHARE = 16
"""A tile with more than one acting pair in this many is evaluated whole instead of pair by pair."""

Potential = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Interaction:
    """Two potentials, each mapping squared distances s (...) to values and slopes d psi / d s, both (...).

    The repulsion must be zero where s >= `reach`.
    """

    attraction: Potential
    repulsion: Potential
    reach: float


class FieldLoss(ProxyLoss):
    """A loss whose value is the energy of the batch's embeddings and all proxies; row c K + k is proxy k of class c."""

    wants_groups = 2
    proxy_labels: Tensor

    def __init__(self, *, num_classes: int, dim: int, proxies_per_class: int, proxy_lr: float) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxy_lr=proxy_lr, per_class=proxies_per_class)
        owners = torch.arange(num_classes).repeat_interleave(proxies_per_class)
        self.register_buffer("proxy_labels", owners, persistent=False)

    def class_proxies(self) -> tuple[Tensor, Tensor]:
        """Unit proxies (C K, M) and the class (C K,) of each."""
        return unit(self.proxies), self.proxy_labels

    def energy(self, embeddings: Tensor, labels: Tensor, interaction: Interaction) -> tuple[Tensor, Tensor]:
        """Energy of embeddings (B, M) and proxies (C K, M), and the labels (B + C K,) of all these points."""
        points = torch.cat([unit(embeddings), unit(self.proxies)])
        owners = torch.cat([labels, self.proxy_labels])
        total: Tensor = _PairEnergy.apply(points, owners, interaction)
        return total, owners


class _PairEnergy(torch.autograd.Function):
    """Scalar energy of unit `vectors` (N, M) with `labels` (N,)."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, vectors: Tensor, labels: Tensor, interaction: Interaction
    ) -> Tensor:
        gradient = torch.zeros_like(vectors) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        energies = []
        for first in range(0, len(vectors), TILE):
            for second in range(first, len(vectors), TILE):
                rows, columns = slice(first, first + TILE), slice(second, second + TILE)
                energies.append(_tile(vectors, labels, interaction, rows, columns, gradient))
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
    interaction: Interaction,
    rows: slice,
    columns: slice,
    gradient: Tensor | None,  # (N, M), added to
) -> Tensor:
    """Energy of the pairs rows x columns; a tile off the diagonal stands for its mirror image as well."""
    diagonal = rows == columns
    inner = vectors[rows] @ vectors[columns].T
    same = labels[rows, None] == labels[None, columns]
    acting = same | (inner > 1.0 - 0.5 * interaction.reach)
    if diagonal:
        acting.fill_diagonal_(False)
    if int(torch.count_nonzero(acting)) * DENSE_SHARE > acting.numel():
        energy, matrix = _evaluate(interaction, inner, same)
        energy, matrix = energy * acting, matrix * acting
    else:
        i, j = acting.nonzero(as_tuple=True)
        if len(i) == 0:
            return inner.new_zeros(())
        energy, force = _evaluate(interaction, inner[i, j], same[i, j])
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
    interaction: Interaction,
    inner: Tensor,  # (...) inner products of pairs
    attracted: Tensor,  # (...) whether a pair is of one class
) -> tuple[Tensor, Tensor]:  # (...), (...)
    """Energy of each pair and the factor f in its force, dE / dv_i = sum_j f_ij v_j.

    Each pair is counted from both of its ends, so f = 2 psi'(s) (-2).
    """
    squared = (2.0 - 2.0 * inner).clamp_min(0.0)
    (pull, pull_slope), (push, push_slope) = interaction.attraction(squared), interaction.repulsion(squared)
    return torch.where(attracted, pull, push), -4.0 * torch.where(attracted, pull_slope, push_slope)


def count_repelling_pairs(owners: Tensor, num_classes: int) -> Tensor:
    """Number of ordered pairs of different classes among the labels `owners` (N,), as float64."""
    counts = torch.bincount(owners, minlength=num_classes).double()
    return counts.sum().square() - counts.square().sum()
