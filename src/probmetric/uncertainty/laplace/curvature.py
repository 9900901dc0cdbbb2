"""From batches to summed last-layer curvature: which pairs, which approximation, which basis, and the sums.

Pairs of a batch and their targets y (paper 003, section 3 and appendix B):

`mined_pairs`: triplets (anchor a, positive p, negative n) with Δ = d_an − d_ap, d the Euclidean distance of the
normalised embeddings; which are kept: `probmetric.losses.contrastive`. Each triplet gives the
pairs (a, p) with y = +1 and (a, n) with y = −1, with repetition; repetitions are returned as one pair with the
count as its target, which gives the same sum. This is the rule of the authors' code.

`dataset_pairs`: every pair of the batch, y = 1/|B_pos| for positives and −1/|B_neg| for negatives inside the
margin (equations 23 and 30 with the factor |D²|/|B| of equation 31 applied): each batch estimates the curvature
of the loss averaged over the whole dataset.

`negative_weight` is w_n of equation 10, scaled by two so that w_n = 0.5 (unbiased sampling) changes nothing.

The curvature in a Kronecker-factored eigenbasis is better than diagonal at nearly the same cost.

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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.losses.contrastive import Mining as Triplets
from probmetric.losses.contrastive import triplets_of_pairs
from probmetric.uncertainty._base import Posterior
from probmetric.uncertainty.laplace.ggn import Approximation, Fidelity, Geometry, diag_ggn

FeatureBatches = Iterable[tuple[Tensor, Tensor]]
PairSource = Literal["mined", "dataset"]


@dataclass(frozen=True)
class CurvatureRule:
    """Everything that decides the curvature of a batch; `negative_weight` is w_n, `margin` is m."""

    geometry: Geometry
    approximation: Approximation
    fidelity: Fidelity
    pairs: PairSource
    triplets: Triplets
    margin: float
    negative_weight: float

    def select(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return pairs (P, 2), weighted targets (P,) and the number of terms of embeddings (B, Z), labels (B,)."""
        if self.pairs == "dataset":
            pairs, target, count = dataset_pairs(embeddings, labels, margin=self.margin)
        else:
            pairs, target, count = mined_pairs(embeddings, labels, margin=self.margin, triplets=self.triplets)
        return pairs, weigh_negatives(target, self.negative_weight), count

    def curvature(
        self,
        weight: Tensor,
        bias: Tensor | None,
        features: Tensor,
        labels: Tensor,
        embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, int]:
        """Return curvature (Z, D), (Z,) of a batch of features (B, D) and labels (B,), and the number of terms in it.

        `embeddings` (B, Z) are the layer's outputs, where they are known already.
        """
        outputs = F.linear(features, weight, bias) if embeddings is None else embeddings
        pairs, target, count = self.select(outputs, labels)
        weight_diag, bias_diag = diag_ggn(
            features,
            weight,
            bias,
            pairs,
            target,
            geometry=self.geometry,
            approximation=self.approximation,
            fidelity=self.fidelity,
            outputs=outputs,
        )
        return weight_diag, bias_diag, count

    def diagonal(self, weight: Tensor, bias: Tensor | None, batches: FeatureBatches, scale: float) -> Posterior:
        """Return the summed curvature of a layer (Z, D), (Z,); dataset weights average over batches instead."""
        weight_total = torch.zeros_like(weight, dtype=torch.float64)
        bias_total = None if bias is None else torch.zeros_like(bias, dtype=torch.float64)
        used = terms = 0
        for features, labels in batches:
            weight_diag, bias_diag, count = self.curvature(weight, bias, features, labels)
            if count == 0:
                continue
            used, terms = used + 1, terms + count
            weight_total += weight_diag
            if bias_total is not None and bias_diag is not None:
                bias_total += bias_diag
        if used == 0:
            raise ValueError(
                f"no batch had a contributing pair (pairs={self.pairs!r}, triplets={self.triplets!r}, "
                f"margin={self.margin}); fit needs batches with at least two images of a class and two classes."
            )
        factor = scale / used if self.pairs == "dataset" else scale
        posterior = {"weight_curvature": (weight_total * factor).float().cpu(), "pairs": torch.tensor(terms)}
        if bias_total is not None:
            posterior["bias_curvature"] = (bias_total * factor).float().cpu()
        return posterior

    def kronecker(self, head: nn.Linear, batches: FeatureBatches, scale: float) -> Posterior:
        """Return curvature in the Kronecker eigenbasis, and the basis. Reads the features twice, so it holds them."""
        cached = list(batches)
        factors = KroneckerFactors(head)
        for features, labels in cached:
            embeddings = head(features)
            pairs, target, _ = self.select(embeddings, labels)
            if self.approximation == "positive":
                pairs, target = pairs[target > 0], target[target > 0]
            factors.add(features, embeddings, pairs, target, coupled=self.approximation != "fixed")
        outputs, inputs = (basis.to(head.weight) for basis in factors.basis())
        rotated = ((augment(features, factors.has_bias) @ inputs, labels) for features, labels in cached)
        posterior = self.diagonal(outputs.T @ augmented_weight(head) @ inputs, None, rotated, scale)
        return posterior | {"output_basis": outputs.cpu().contiguous(), "input_basis": inputs.cpu().contiguous()}


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
        """Return eigenvectors Q (Z, Z) of the outputs and V (D', D') of the inputs, in float32."""
        return torch.linalg.eigh(self.outputs)[1].float(), torch.linalg.eigh(self.inputs)[1].float()


def augment(features: Tensor, has_bias: bool) -> Tensor:
    """Return features (N, D), with a column of ones if the layer has a bias: (N, D')."""
    return F.pad(features, (0, 1), value=1.0) if has_bias else features


def augmented_weight(head: nn.Linear) -> Tensor:
    """Return weight of the layer with its bias as the last column, (Z, D')."""
    return head.weight if head.bias is None else torch.cat([head.weight, head.bias[:, None]], dim=1)


def mined_pairs(
    embeddings: Tensor, labels: Tensor, *, margin: float, triplets: Triplets = "all"
) -> tuple[Tensor, Tensor, int]:
    """Return pairs (P, 2), targets (P,) and the number of triplets mined from embeddings (B, M) and labels (B,)."""
    distance = _distances(embeddings)
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    attracted, repelled = triplets_of_pairs(distance, positive, ~same, margin=margin, mining=triplets)
    counts = attracted - repelled
    pairs = counts.nonzero()
    target = counts[pairs[:, 0], pairs[:, 1]]
    return pairs, target.to(distance.dtype), int(target.clamp_min(0).sum())


def dataset_pairs(embeddings: Tensor, labels: Tensor, *, margin: float) -> tuple[Tensor, Tensor, int]:
    """Return pairs (P, 2), targets (P,) and the number of contributing pairs of embeddings (B, M), labels (B,)."""
    first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
    positive = labels[first] == labels[second]
    inside = _distances(embeddings)[first, second] < margin
    attracting, repelling = (kind.sum().clamp_min(1).to(embeddings.dtype) for kind in (positive, ~positive))
    target = torch.where(positive, 1 / attracting, -1 / repelling)
    keep = positive | inside
    return torch.stack([first, second], dim=1)[keep], target[keep], int(keep.sum())


def weigh_negatives(target: Tensor, negative_weight: float) -> Tensor:
    """Return targets (P,) with positives scaled by 2(1 − w_n) and negatives by 2w_n."""
    return torch.where(target > 0, 2 * (1 - negative_weight) * target, 2 * negative_weight * target)


def _distances(embeddings: Tensor) -> Tensor:
    """Return the Euclidean distances (B, B) between the normalised embeddings (B, M)."""
    units = F.normalize(embeddings, dim=1)
    return torch.cdist(units, units, compute_mode="donot_use_mm_for_euclid_dist")
