"""Diagonal last-layer Gauss-Newton curvature of the contrastive loss, in closed form.

Paper 003 (Bayesian metric learning with the Laplace approximation), equations 6-9, 92-112. A linear layer
z = Wh + b is followed by normalisation u = z/n, n = |z|; a pair (1, 2) with target y contributes
½y|u₁ − u₂|². A bias is the last column of W, with h = 1. With c = u₁ᵀu₂, per output unit i and input j:

    diagonal for W_ij = y (e₁ᵢ h₁ⱼ² + e₂ᵢ h₂ⱼ² + 2 xᵢ h₁ⱼ h₂ⱼ)
    xᵢ = −(1 − u₁ᵢ² − u₂ᵢ² + c u₁ᵢu₂ᵢ)/(n₁n₂)
    euclidean (normalisation inside the model):  e₁ᵢ = (1 − u₁ᵢ²)/n₁²
    arccos    (normalisation inside the loss):   e₁ᵢ = (c + 2u₁ᵢu₂ᵢ − 3c u₁ᵢ²)/n₁²   (can be negative)

`full` sums over all pairs, `positive` over pairs with y > 0, `fixed` drops x. Symbols: h = `inputs`, n⁻¹ = `inverse`,
u = `units`, y of the pair (k, l) = `targets`[k, l], A = targets + their transpose = `adjacency`.

Sums over pairs are done before any outer product. Because Σ_l A_kl u_l is a matrix product, the terms e of all images
are Eᵀh² for one (N, Z) factor E. The first three parts of x are matrix products too; only c_kl·u_k∘u_l needs one row
per distinct pair. The diagonal is one product of stacked factors with inner size 2N + 1 + (distinct pairs), or N for
`fixed`. There is no Z×Z matrix and no cap on pairs.

The authors' code builds (pairs, Z, Z) tensors. For `arccos` with `full` or `positive` it subtracts the cross term,
although the term already carries its sign; `fidelity="as_published"` repeats this.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from probmetric.errors import nearest

Geometry = Literal["euclidean", "arccos"]
Approximation = Literal["fixed", "positive", "full"]
Fidelity = Literal["corrected", "as_published"]

_PAIR_ROWS = 1024


def diag_ggn(
    inputs: Tensor,  # (N, D) of the linear layer; with a bias, their last column is one
    outputs: Tensor,  # (N, Z) of the layer, before any ReLU
    targets: Tensor,  # (N, N) y of every pair of rows: positive attracts, negative repels, zero is no pair
    *,
    geometry: Geometry = "euclidean",
    approximation: Approximation = "fixed",
    fidelity: Fidelity = "corrected",
) -> Tensor:  # (Z, D)
    """Return Σ_kl y_kl (pair term) of the last layer's diagonal Gauss-Newton matrix.

    Raises:
        ValueError: a geometry, approximation or fidelity that does not exist, or shapes that do not fit.
    """
    for name, value, choices in (
        ("geometry", geometry, get_args(Geometry)),
        ("approximation", approximation, get_args(Approximation)),
        ("fidelity", fidelity, get_args(Fidelity)),
    ):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}: {nearest(value, choices)}")
    if inputs.ndim != 2 or outputs.ndim != 2 or len(inputs) != len(outputs) or targets.shape != (len(inputs),) * 2:
        raise ValueError(
            f"inputs {tuple(inputs.shape)}, outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} must be "
            "(N, D), (N, Z) and (N, N)."
        )
    if approximation == "positive":
        targets = targets.clamp_min(0)
    adjacency = (targets + targets.T).to(inputs.dtype)
    norm = outputs.norm(dim=1, keepdim=True)  # an output of length zero has no direction: nothing
    inverse = torch.where(norm > 0, norm.clamp_min(torch.finfo(norm.dtype).tiny).reciprocal(), 0.0)
    units = outputs * inverse
    squares = units.square()
    terms = _own_factor(units, squares, adjacency, geometry) * inverse.square()
    if approximation == "fixed":
        return terms.T @ inputs.square()
    sign = -1.0 if geometry == "arccos" and fidelity == "as_published" else 1.0
    scaled = inputs * inverse
    partner = scaled * (adjacency @ scaled) * sign
    left = torch.cat([terms, squares, torch.ones_like(terms[:1])])
    total = left.T @ torch.cat([inputs.square(), 2 * partner, -partner.sum(0, keepdim=True)])
    weights = (adjacency * (units @ units.T)).triu_()  # of every pair k < l: (A_kl + A_lk) c_kl
    weights = -sign * (2 * weights - torch.diag(weights.diagonal()))
    for first, second in zip(*(column.split(_PAIR_ROWS) for column in weights.nonzero(as_tuple=True)), strict=True):
        right = scaled[first].mul_(scaled[second]).mul_(weights[first, second][:, None])
        total.addmm_(units[first].mul_(units[second]).T, right)
    return total


def _own_factor(units: Tensor, squares: Tensor, adjacency: Tensor, geometry: Geometry) -> Tensor:
    """Return n_k² Σ_l A_kl e_k (N, Z): the own terms of every image, summed over its partners."""
    if geometry == "euclidean":
        return adjacency.sum(1, keepdim=True) * (1 - squares)
    partners = adjacency @ units
    cosines = (units * partners).sum(1, keepdim=True)
    return cosines * (1 - 3 * squares) + 2 * units * partners
