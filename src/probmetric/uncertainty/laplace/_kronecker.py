"""Curvature in a Kronecker-factored eigenbasis: better than diagonal at nearly the same cost.

Martens and Grosse (2015) approximate a layer's curvature by A ⊗ B; George et al. (2018) keep only the eigenvectors
of A and B and compute the *exact* diagonal of the Gauss-Newton matrix in that basis. Here, with augmented inputs
h' = (h, 1) and W' = (W, b):

    input basis  V: eigenvectors of Σ_k w_k g_k g_kᵀ (`fixed`) or Σ_p |y_p| (g_1 − g_2)(g_1 − g_2)ᵀ (with cross terms)
    output basis Q: eigenvectors of Σ_k w_k u_k u_kᵀ / n_k²

with g = h'/n and w_k the sum of |y| over the pairs of image k. (The Gauss-Newton output factor is Σ w(I − uuᵀ)/n²; the
identity does not change the eigenvectors, and for near pairs J_1 − J_2 ≈ (I − uuᵀ) ⊗ (g_1 − g_2).) The basis only
decides how good the approximation is. Rotations leave norms and cosines of the outputs alone, so the diagonal in the
basis is `diag_ggn` of the rotated layer QᵀW'V on the rotated inputs Vᵀh', for every geometry and approximation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.uncertainty.laplace._sampling import noise_like, standard_deviation


def augment(features: Tensor, has_bias: bool) -> Tensor:
    """Features (N, D), with a column of ones if the layer has a bias: (N, D')."""
    return F.pad(features, (0, 1), value=1.0) if has_bias else features


def augmented_weight(head: nn.Linear) -> Tensor:
    """Weight of the layer with its bias as the last column, (Z, D')."""
    return head.weight if head.bias is None else torch.cat([head.weight, head.bias[:, None]], dim=1)


class KroneckerFactors:
    """Input (D', D') and output (Z, Z) second moments, summed over batches in float64."""

    def __init__(self, head: nn.Linear) -> None:
        weight = augmented_weight(head)
        self.has_bias = head.bias is not None
        self.outputs = weight.new_zeros(weight.shape[0], weight.shape[0], dtype=torch.float64)
        self.inputs = weight.new_zeros(weight.shape[1], weight.shape[1], dtype=torch.float64)

    def add(self, features: Tensor, embeddings: Tensor, pairs: Tensor, target: Tensor, coupled: bool) -> None:
        """Add one batch: features (B, D), embeddings (B, Z), pairs (P, 2), targets (P,); `coupled` = cross terms."""
        adjacency = features.new_zeros(len(features), len(features))
        adjacency.index_put_((pairs[:, 0], pairs[:, 1]), target.abs().to(features), accumulate=True)
        adjacency = adjacency + adjacency.T
        share = adjacency.sum(1)
        inverse = embeddings.norm(dim=1, keepdim=True).clamp_min(torch.finfo(features.dtype).eps).reciprocal()
        inputs = augment(features, self.has_bias) * inverse
        links = torch.diag(share) - adjacency if coupled else torch.diag(share)
        self.inputs += inputs.T @ links @ inputs
        directions = embeddings * inverse.square()
        self.outputs += directions.T @ (share[:, None] * directions)

    def basis(self) -> tuple[Tensor, Tensor]:
        """Eigenvectors Q (Z, Z) of the outputs and V (D', D') of the inputs, in float32."""
        return torch.linalg.eigh(self.outputs)[1].float(), torch.linalg.eigh(self.inputs)[1].float()


class KroneckerSampler:
    """Steps Q(σ∘ε)Vᵀ, with σ = 1/√(relu(h) + δ) and h (Z, D') the curvature in the basis."""

    def __init__(
        self, curvature: Tensor, output_basis: Tensor, input_basis: Tensor, prior_precision: float, has_bias: bool
    ) -> None:
        self.std = standard_deviation(curvature, prior_precision)
        self.output_basis, self.input_basis, self.has_bias = output_basis, input_basis, has_bias

    def moves(self, features: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
        """Moves (N, Z) of the embeddings of `features` (N, D), one per draw."""
        generator = torch.Generator().manual_seed(seed)
        rotated = augment(features, self.has_bias) @ self.input_basis
        for _ in range(samples):
            step = noise_like(self.std, generator).mul_(self.std)
            yield (rotated @ step.T) @ self.output_basis.T

    def variance(self, features: Tensor) -> Tensor:
        """Variance (N, Z) of the moves: sum over k of Q_zk^2 sum over j of (Vh)_j^2 sigma_kj^2."""
        rotated = augment(features, self.has_bias) @ self.input_basis
        return (rotated.square() @ self.std.square().T) @ self.output_basis.square().T
