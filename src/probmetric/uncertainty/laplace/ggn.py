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
c_kl·u_k∘u_l needs one row per distinct pair. The diagonal is one product of the stacked factors, with
2K + 1 + (distinct pairs) as inner size (K for `fixed`); no Z×Z matrix, no cap on pairs.

Difference to the authors' code: it builds (pairs, Z, Z) tensors, and for `arccos` with `full` or `positive` it
subtracts the cross term, which already carries its sign; `fidelity="as_published"` repeats that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
import torch.nn.functional as F

from probmetric.registry import nearest

Tensor = torch.Tensor
Geometry = Literal["euclidean", "arccos"]
Approximation = Literal["fixed", "positive", "full"]
Fidelity = Literal["corrected", "as_published"]

_MAX_IMAGES = 2048
_PAIR_ROWS = 1024

Factors = tuple[Tensor, Tensor]


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
    outputs: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Σ_p y_p (pair term) of the last layer's diagonal Gauss-Newton matrix, before any ReLU.

    features (N, D): inputs of the linear layer. weight (Z, D), bias (Z,) or None. pairs (P, 2): row indices into
    `features`; repeated pairs add up. target (P,): y, positive attracts, negative repels. outputs (N, Z): Wh + b, where
    it is known already.
    Returns the diagonal for the weight (Z, D) and the bias (Z,) (None without a bias).
    """
    for name, value, choices in (
        ("geometry", geometry, get_args(Geometry)),
        ("approximation", approximation, get_args(Approximation)),
        ("fidelity", fidelity, get_args(Fidelity)),
    ):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}: {nearest(value, choices)}")
    _check_shapes(features, weight, bias, pairs, target)
    target = target.to(features.dtype)
    if approximation == "positive":
        pairs, target = pairs[target > 0], target[target > 0]
    total: Tensor | None = None
    for block, values in _blocks(pairs, target, len(features)):
        images, local = _compress(block, len(features))
        inputs = _rows(features, images)
        embeddings = F.linear(inputs, weight, bias) if outputs is None else _rows(outputs, images)
        if bias is not None:
            inputs = F.pad(inputs, (0, 1), value=1.0)
        adjacency = _adjacency(local, values, len(images))
        for left, right in _factors(inputs, embeddings, adjacency, geometry, approximation, fidelity):
            total = _add_product(total, left, right)
    if total is None:
        total = features.new_zeros(weight.shape[0], features.shape[1] + (bias is not None))
    if bias is None:
        return total, None
    return total[:, :-1].contiguous(), total[:, -1].contiguous()


def _rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return the given `rows` (K,) of `matrix` (N, ·), ascending; the matrix itself where those are all."""
    return matrix if len(rows) == len(matrix) else matrix[rows]


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """`total` (Z, D) plus leftᵀ right of factors (R, Z), (R, D); the product alone where there is no total yet."""
    if total is None:
        return left.T @ right
    return total.addmm_(left.T, right)


def _blocks(pairs: Tensor, target: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return all pairs at once if they touch few images; otherwise blocks that bound the adjacency's size."""
    if len(pairs) == 0:
        return
    if size <= _MAX_IMAGES or len(_compress(pairs, size)[0]) <= _MAX_IMAGES:
        yield pairs, target
        return
    order = torch.argsort(pairs[:, 0], stable=True)
    for part in order.split(_MAX_IMAGES // 2):
        yield pairs[part], target[part]


def _compress(pairs: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the K images that occur in `pairs` (P, 2) of `size` rows, and the pairs as positions among them."""
    used = torch.zeros(size, dtype=torch.bool, device=pairs.device)
    used[pairs.flatten()] = True
    position = used.cumsum(0) - 1
    return used.nonzero().flatten(), position[pairs]


def _adjacency(pairs: Tensor, target: Tensor, size: int) -> Tensor:
    """Return symmetric matrix (K, K) of summed targets; a pair of an image with itself counts twice on the diagonal."""
    one_way = target.new_zeros(size, size).index_put_((pairs[:, 0], pairs[:, 1]), target, accumulate=True)
    return one_way + one_way.T


def _factors(
    inputs: Tensor,
    outputs: Tensor,
    adjacency: Tensor,
    geometry: Geometry,
    approximation: Approximation,
    fidelity: Fidelity,
) -> Iterator[Factors]:
    """Factors (R, Z), (R, D or D+1) of one block's diagonal. An output of length zero has no direction: nothing."""
    norm = outputs.norm(dim=1, keepdim=True)
    inverse = torch.where(norm > 0, norm.clamp_min(torch.finfo(norm.dtype).tiny).reciprocal(), 0.0)
    units = outputs * inverse
    squares = units.square()
    own_terms = _own_factor(units, squares, adjacency, geometry) * inverse.square()
    if approximation == "fixed":
        yield own_terms, inputs.square()
        return
    sign = -1.0 if geometry == "arccos" and fidelity == "as_published" else 1.0
    scaled = inputs * inverse
    partner = scaled * (adjacency @ scaled) * sign
    left = torch.cat([own_terms, squares, torch.ones_like(own_terms[:1])])
    right = torch.cat([inputs.square(), 2 * partner, -partner.sum(0, keepdim=True)])
    for more_left, more_right in _distinct_pairs(units, scaled, _pair_weights(units, adjacency, -sign)):
        yield torch.cat([left, more_left]), torch.cat([right, more_right])
        left, right = left[:0], right[:0]
    if len(left):
        yield left, right


def _own_factor(units: Tensor, squares: Tensor, adjacency: Tensor, geometry: Geometry) -> Tensor:
    """n_k² Σ_l A_kl e_k (K, Z): the own terms of every image, summed over its partners."""
    if geometry == "euclidean":
        return adjacency.sum(1, keepdim=True) * (1 - squares)
    partners = adjacency @ units
    cosines = (units * partners).sum(1, keepdim=True)
    return cosines * (1 - 3 * squares) + 2 * units * partners


def _pair_weights(units: Tensor, adjacency: Tensor, factor: float) -> Tensor:
    """factor·(A_kl + A_lk)·c_kl of every pair k < l, and factor·A_kk c_kk, in the upper triangle (K, K)."""
    weights = (adjacency * (units @ units.T)).triu_()
    return factor * (2 * weights - torch.diag(weights.diagonal()))


def _distinct_pairs(units: Tensor, scaled: Tensor, weights: Tensor) -> Iterator[Factors]:
    """Factors of Σ_kl weight_kl (u_k∘u_l)(g_k∘g_l)ᵀ, one row per distinct pair, a bounded number of rows at a time."""
    first, second = weights.nonzero(as_tuple=True)
    values = weights[first, second][:, None]
    for k, m, value in zip(*(column.split(_PAIR_ROWS) for column in (first, second, values)), strict=True):
        yield units[k].mul_(units[m]), scaled[k].mul_(scaled[m]).mul_(value)


def _check_shapes(features: Tensor, weight: Tensor, bias: Tensor | None, pairs: Tensor, target: Tensor) -> None:
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
