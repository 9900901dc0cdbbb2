"""From batches to summed last-layer curvature: which pairs, which approximation, and the sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.uncertainty._base import Posterior
from probmetric.uncertainty.laplace._ggn import Approximation, Fidelity, Geometry, diag_ggn
from probmetric.uncertainty.laplace._kronecker import KroneckerFactors, augment, augmented_weight
from probmetric.uncertainty.laplace._pairs import PairSource, Triplets, dataset_pairs, mined_pairs, weigh_negatives

FeatureBatches = Iterable[tuple[Tensor, Tensor]]


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
        """Pairs (P, 2), weighted targets (P,) and the number of terms, from embeddings (B, Z) and labels (B,)."""
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
        """Curvature (Z, D), (Z,) of a batch of features (B, D) and labels (B,), and the number of terms in it.

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
        """Summed curvature of a layer (Z, D), (Z,); dataset weights average over batches instead."""
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
        """Curvature in the Kronecker eigenbasis, and the basis. Reads the features twice, so it holds them."""
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
