"""Diagonal last-layer Gauss-Newton curvature of the contrastive loss, in closed form.

Paper 003 (Bayesian metric learning with the Laplace approximation), equations 6-9, 92-112. A linear layer
z = Wh + b is followed by normalisation u = z/n, n = |z|; a pair (1, 2) with target y contributes
½y|u₁ − u₂|². With c = u₁ᵀu₂, per output unit i and input j:

    diagonal for W_ij = y (e₁ᵢ h₁ⱼ² + e₂ᵢ h₂ⱼ² + 2 xᵢ h₁ⱼ h₂ⱼ),   for bᵢ the same with h = 1
    xᵢ = −(1 − u₁ᵢ² − u₂ᵢ² + c u₁ᵢu₂ᵢ)/(n₁n₂)
    euclidean (normalisation inside the model):  e₁ᵢ = (1 − u₁ᵢ²)/n₁²
    arccos    (normalisation inside the loss):   e₁ᵢ = (c + 2u₁ᵢu₂ᵢ − 3c u₁ᵢ²)/n₁²   (can be negative)

`full` sums all pairs, `positive` those with y > 0, `fixed` drops x. Symbols: h = `inputs`, n⁻¹ = `inverse`,
u = `units`, Σ_p y_p(1_k 1_lᵀ + 1_l 1_kᵀ) = `adjacency`.

Sums over pairs are done before any outer product. With the K×K adjacency A, every own term is Eᵀh² for one
(K, Z) factor E, since Σ_l A_kl u_l is a matrix product, and so are the first three parts of x; only
c_kl·u_k∘u_l needs one row per distinct pair. Cost: two or three GEMMs with K images or distinct pairs as inner
size; no Z×Z matrix, no cap on pairs.

Difference to the authors' code: it builds (pairs, Z, Z) tensors, and for `arccos` with `full` or `positive` it
subtracts the cross term, which already carries its sign; `fidelity="as_published"` repeats that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F

from probmetric.registry import nearest

Tensor = torch.Tensor
Geometry = Literal["euclidean", "arccos"]
Approximation = Literal["fixed", "positive", "full"]
Fidelity = Literal["corrected", "as_published"]

_MAX_IMAGES = 2048
_PAIR_ROWS = 1024


def diag_ggn(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Tensor,
    target: Tensor,
    *,
    geometry: Geometry = "euclidean",
    approximation: Approximation = "fixed",
    fidelity: Fidelity = "corrected",
) -> tuple[Tensor, Tensor | None]:
    """Σ_p y_p (pair term) of the last layer's diagonal Gauss-Newton matrix, before any ReLU.

    features (N, D): inputs of the linear layer. weight (Z, D), bias (Z,) or None. pairs (P, 2): row indices into
    `features`; repeated pairs add up. target (P,): y, positive attracts, negative repels.
    Returns the diagonal for the weight (Z, D) and the bias (Z,) (None without a bias).
    """
    _check(features, weight, bias, pairs, target, geometry, approximation, fidelity)
    target = target.to(features.dtype)
    if approximation == "positive":
        pairs, target = pairs[target > 0], target[target > 0]
    columns = features.shape[1] + (bias is not None)
    total = features.new_zeros(weight.shape[0], columns)
    for block, values in _blocks(pairs, target, len(features)):
        images, local = _compress(block, len(features))
        inputs = features[images]
        outputs = F.linear(inputs, weight, bias)
        if bias is not None:
            inputs = F.pad(inputs, (0, 1), value=1.0)
        _add_block(total, inputs, outputs, _adjacency(local, values, len(images)), geometry, approximation, fidelity)
    if bias is None:
        return total, None
    return total[:, :-1].contiguous(), total[:, -1].contiguous()


def _blocks(pairs: Tensor, target: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All pairs at once if they touch few images; otherwise blocks that bound the adjacency's size."""
    if len(pairs) == 0:
        return
    if size <= _MAX_IMAGES or len(_compress(pairs, size)[0]) <= _MAX_IMAGES:
        yield pairs, target
        return
    order = torch.argsort(pairs[:, 0], stable=True)
    for part in order.split(_MAX_IMAGES // 2):
        yield pairs[part], target[part]


def _compress(pairs: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The K images that occur in `pairs` (P, 2) of `size` rows, and the pairs as positions among them."""
    used = torch.zeros(size, dtype=torch.bool, device=pairs.device)
    used[pairs.flatten()] = True
    position = used.cumsum(0) - 1
    return used.nonzero().flatten(), position[pairs]


def _adjacency(pairs: Tensor, target: Tensor, size: int) -> Tensor:
    """Symmetric matrix (K, K) of summed targets; a pair of an image with itself counts twice on the diagonal."""
    one_way = target.new_zeros(size, size).index_put_((pairs[:, 0], pairs[:, 1]), target, accumulate=True)
    return one_way + one_way.T


def _add_block(
    total: Tensor,
    inputs: Tensor,
    outputs: Tensor,
    adjacency: Tensor,
    geometry: Geometry,
    approximation: Approximation,
    fidelity: Fidelity,
) -> None:
    """Add one block's terms to `total` (Z, D or D+1). An output of length zero has no direction and adds nothing."""
    norm = outputs.norm(dim=1, keepdim=True)
    inverse = torch.where(norm > 0, norm.clamp_min(torch.finfo(norm.dtype).tiny).reciprocal(), 0.0)
    units = outputs * inverse
    squares = units.square()
    own = _own_factor(units, squares, adjacency, geometry) * inverse.square()
    total.addmm_(own.T, inputs.square())
    if approximation == "fixed":
        return
    sign = -1.0 if geometry == "arccos" and fidelity == "as_published" else 1.0
    scaled = inputs * inverse
    partner = scaled * (adjacency @ scaled)
    total.addmm_(squares.T, partner, alpha=2.0 * sign)
    total.sub_(partner.sum(0), alpha=sign)
    _add_distinct_pairs(total, units, scaled, adjacency, -sign)


def _own_factor(units: Tensor, squares: Tensor, adjacency: Tensor, geometry: Geometry) -> Tensor:
    """n_k² Σ_l A_kl e_k (K, Z): the own terms of every image, summed over its partners."""
    if geometry == "euclidean":
        return adjacency.sum(1, keepdim=True) * (1 - squares)
    partners = adjacency @ units
    cosines = (units * partners).sum(1, keepdim=True)
    return cosines * (1 - 3 * squares) + 2 * units * partners


def _add_distinct_pairs(total: Tensor, units: Tensor, scaled: Tensor, adjacency: Tensor, alpha: float) -> None:
    """Add alpha·Σ_kl A_kl c_kl (u_k∘u_l)(g_k∘g_l)ᵀ, one row per distinct pair, a bounded number of rows at a time."""
    weights = (adjacency * (units @ units.T)).triu_()
    weights = 2 * weights - torch.diag(weights.diagonal())
    first, second = weights.nonzero(as_tuple=True)
    for k, m in zip(first.split(_PAIR_ROWS), second.split(_PAIR_ROWS), strict=True):
        right = scaled[k] * scaled[m] * weights[k, m][:, None]
        total.addmm_((units[k] * units[m]).T, right, alpha=alpha)


def _check(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Tensor,
    target: Tensor,
    geometry: str,
    approximation: str,
    fidelity: str,
) -> None:
    choices = {
        "geometry": (geometry, ("euclidean", "arccos")),
        "approximation": (approximation, ("fixed", "positive", "full")),
        "fidelity": (fidelity, ("corrected", "as_published")),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}: {nearest(value, allowed)}")
    if features.ndim != 2 or weight.ndim != 2 or features.shape[1] != weight.shape[1]:
        raise ValueError(
            f"features {tuple(features.shape)} and weight {tuple(weight.shape)} must be (N, D) and (Z, D)."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; expected ({weight.shape[0]},), one per row of weight.")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or target.shape != pairs.shape[:1]:
        raise ValueError(f"pairs {tuple(pairs.shape)} and target {tuple(target.shape)} must be (P, 2) and (P,).")
    if len(pairs) and (int(pairs.min()) < 0 or int(pairs.max()) >= len(features)):
        low, high = int(pairs.min()), int(pairs.max())
        raise ValueError(f"pairs name rows {low}..{high}; features has rows 0..{len(features) - 1}.")
