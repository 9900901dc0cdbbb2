"""The last layer's curvature, summed over batches: choice of pairs, approximation and basis.

Pairs of a batch and their targets y (paper 003, section 3 and appendix B):

`mined_pairs`: triplets (anchor a, positive p, negative n), with d the Euclidean distance of the normalised embeddings;
`probmetric.losses.contrastive` says which triplets are kept. Each kept triplet gives the pairs (a, p) with y = +1 and
(a, n) with y = −1. A pair in several triplets has the sum as its target. This is the rule of the authors' code.

`dataset_pairs`: every pair of the batch, y = 1/|B_pos| for positives and −1/|B_neg| for negatives inside the
margin (equations 23 and 30 with the factor |D²|/|B| of equation 31 applied): each batch estimates the curvature
of the loss averaged over the whole dataset.

`negative_weight` is w_n of equation 10, scaled by two so that w_n = 0.5 (unbiased sampling) leaves targets as they are.

The curvature in a Kronecker-factored eigenbasis is more exact than the diagonal one, at nearly the same cost. Martens
and Grosse (2015) approximate a layer's curvature by A ⊗ B; George et al. (2018) keep only the eigenvectors of A and B
and compute the *exact* diagonal of the Gauss-Newton matrix in that basis. Here, with augmented inputs h' = (h, 1) and
W' = (W, b):

    input basis  V: eigenvectors of Σ_k w_k g_k g_kᵀ (`fixed`) or Σ_p |y_p| (g_1 − g_2)(g_1 − g_2)ᵀ (with cross terms)
    output basis Q: eigenvectors of Σ_k w_k u_k u_kᵀ / n_k²

with g = h'/n and w_k the sum of |y| over the pairs of image k. (The Gauss-Newton output factor is Σ w(I − uuᵀ)/n²; the
identity does not change the eigenvectors, and for near pairs J_1 − J_2 ≈ (I − uuᵀ) ⊗ (g_1 − g_2).) The basis only
decides how good the approximation is. Rotations do not change norms and cosines of the outputs. The diagonal in the
basis is therefore `diag_ggn` of the rotated layer QᵀW'V on inputs Vᵀh', for every geometry and approximation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.losses._base import pairs_of
from probmetric.losses.contrastive import Mining, triplets_of_pairs
from probmetric.uncertainty._base import Posterior
from probmetric.uncertainty.laplace.ggn import Approximation, Fidelity, Geometry, diag_ggn

Batch = tuple[Tensor, Tensor, Tensor]
"""Inputs (B, D') and outputs (B, Z) of the last layer, and labels (B,)."""


@dataclass(frozen=True)
class CurvatureRule:
    """The options that decide the curvature of a batch; `negative_weight` is w_n, `margin` is m."""

    geometry: Geometry
    approximation: Approximation
    fidelity: Fidelity
    pairs: Literal["mined", "dataset"]
    triplets: Mining
    margin: float
    negative_weight: float

    def targets(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        """Return weighted targets (B, B) of the pairs of outputs (B, Z) with labels (B,), and the number of terms."""
        if self.pairs == "dataset":
            targets, count = dataset_pairs(outputs, labels, margin=self.margin)
        else:
            targets, count = mined_pairs(outputs, labels, margin=self.margin, triplets=self.triplets)
        return weigh_negatives(targets, self.negative_weight), count

    def curvature(self, inputs: Tensor, outputs: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        """Return the curvature (Z, D') of a batch, and the number of terms in it."""
        targets, count = self.targets(outputs, labels)
        rule = {"geometry": self.geometry, "approximation": self.approximation, "fidelity": self.fidelity}
        return diag_ggn(inputs, outputs, targets, **rule), count  # type: ignore[arg-type]

    def diagonal(self, batches: Iterable[Batch], scale: float) -> Posterior:
        """Return the curvature (Z, D') of a layer, summed over batches; for `pairs="dataset"`, their mean."""
        total: Tensor | None = None
        used = 0
        for batch in batches:
            part, count = self.curvature(*batch)
            if count:
                total = part.double() if total is None else total.add_(part)
                used += 1
        if total is None:
            raise ValueError(
                f"no batch had a contributing pair (pairs={self.pairs!r}, triplets={self.triplets!r}, "
                f"margin={self.margin}); fit needs batches with at least two images of a class and two classes."
            )
        factor = scale / used if self.pairs == "dataset" else scale
        return {"weight_curvature": (total * factor).float().cpu()}

    def kronecker(self, batches: Iterable[Batch], scale: float) -> Posterior:
        """Return the curvature in the Kronecker eigenbasis, and the basis. It keeps all batches in memory."""
        cached = list(batches)
        outputs, inputs = self._basis(cached)
        rotated = ((features @ inputs, embeddings @ outputs, labels) for features, embeddings, labels in cached)
        posterior = self.diagonal(rotated, scale)
        return posterior | {"output_basis": outputs.cpu().contiguous(), "input_basis": inputs.cpu().contiguous()}

    def _basis(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Return eigenvectors Q (Z, Z) and V (D', D') of the second moments of outputs and inputs."""
        moments = [torch.zeros((), dtype=torch.float64)] * 2
        for features, embeddings, labels in batches:
            targets, _ = self.targets(embeddings, labels)
            adjacency = (targets.clamp_min(0) if self.approximation == "positive" else targets.abs()).to(features)
            adjacency = adjacency + adjacency.T
            share = adjacency.sum(1)
            inverse = embeddings.norm(dim=1, keepdim=True).clamp_min(torch.finfo(features.dtype).eps).reciprocal()
            inputs, directions = features * inverse, embeddings * inverse.square()
            links = torch.diag(share) - (adjacency if self.approximation != "fixed" else 0)
            of_batch = directions.T @ (share[:, None] * directions), inputs.T @ links @ inputs
            moments = [total + part for total, part in zip(moments, of_batch, strict=True)]
        outputs, inputs = (torch.linalg.eigh(moment)[1].to(batches[0][0].dtype) for moment in moments)
        return outputs, inputs


def augment(features: Tensor, head: nn.Linear) -> Tensor:
    """Return features (N, D), with a column of ones if the layer has a bias: (N, D')."""
    return features if head.bias is None else F.pad(features, (0, 1), value=1.0)


def augmented_weight(head: nn.Linear) -> Tensor:
    """Return weight of the layer with its bias as the last column, (Z, D')."""
    return head.weight if head.bias is None else torch.cat([head.weight, head.bias[:, None]], dim=1)


def mined_pairs(embeddings: Tensor, labels: Tensor, *, margin: float, triplets: Mining = "all") -> tuple[Tensor, int]:
    """Return targets (B, B) and the number of triplets mined from embeddings (B, M) and labels (B,)."""
    distance = _distances(embeddings)
    attracted, repelled = triplets_of_pairs(distance, *pairs_of(labels), margin=margin, mining=triplets)
    return (attracted - repelled).to(distance.dtype), int(attracted.sum())


def dataset_pairs(embeddings: Tensor, labels: Tensor, *, margin: float) -> tuple[Tensor, int]:
    """Return targets (B, B) and the number of contributing pairs of embeddings (B, M) and labels (B,)."""
    pairs = torch.ones(len(labels), len(labels), dtype=torch.bool, device=labels.device).triu(diagonal=1)
    same = labels[:, None] == labels[None, :]
    positive, negative = pairs & same, pairs & ~same
    attracting, repelling = (kind.sum().clamp_min(1).to(embeddings.dtype) for kind in (positive, negative))
    inside = negative & (_distances(embeddings) < margin)
    return positive / attracting - inside / repelling, int((positive | inside).sum())


def weigh_negatives(target: Tensor, negative_weight: float) -> Tensor:
    """Return targets (P,) with positives scaled by 2(1 − w_n) and negatives by 2w_n."""
    return torch.where(target > 0, 2 * (1 - negative_weight) * target, 2 * negative_weight * target)


def _distances(embeddings: Tensor) -> Tensor:
    """Return the Euclidean distances (B, B) between the normalised embeddings (B, M)."""
    units = F.normalize(embeddings, dim=1)
    return torch.cdist(units, units, compute_mode="donot_use_mm_for_euclid_dist")
