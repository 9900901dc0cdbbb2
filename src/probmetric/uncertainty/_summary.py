"""Directional summary of S samples per image, streamed one sample at a time.

For unit samples u_s: mean resultant length R̄ = |mean_s u_s|, mean direction mean/R̄, per-dimension unbiased
standard deviations σ_d, and the concentration estimate of Sra (2012), κ̂ = R̄(M − R̄²)/(1 − R̄²) (paper 003,
appendix C). Because |u_s| = 1, 1 − R̄² is the total population variance Σ_d Σ_s (u_sd − ū_d)²/S. The variance is
accumulated by Welford's recurrence on deviations from a reference direction, so κ̂ keeps its relative accuracy
when the samples agree to many digits, where 1 − R̄² computed from R̄ would be rounding error. Memory is O(B·M)
for any S.

The released code uses Σ_d σ_d as the score ("std_sum"); the paper's text describes 1/κ̂
("inverse_concentration"). The two rank images slightly differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from probmetric.uncertainty._base import DirectionalBatch

Tensor = torch.Tensor
Classifier = Callable[[Tensor], "Tensor | None"]
Score = Literal["std_sum", "inverse_concentration"]


class DirectionalSummary:
    """Running mean and variance of unit samples around a reference direction (B, M)."""

    def __init__(self, reference: Tensor, *, score: Score, keep_samples: bool = False) -> None:
        self.reference = reference
        self.score = score
        self.count = 0
        self._mean = torch.zeros_like(reference)
        self._squares = torch.zeros_like(reference)
        self._samples: list[Tensor] | None = [] if keep_samples else None

    def add(self, deviation: Tensor) -> None:
        """Add one sample per image, given as `deviation` (B, M) = sample − reference."""
        self.count += 1
        change = deviation - self._mean
        self._mean.add_(change, alpha=1.0 / self.count)
        self._squares.addcmul_(change, deviation - self._mean)
        if self._samples is not None:
            self._samples.append(self.reference + deviation)

    def result(self) -> DirectionalBatch:
        """Return the mean direction, uncertainty, concentration and, if kept, samples."""
        if self.count < 2:
            raise ValueError(f"samples is {self.count}; at least 2 are needed to estimate a spread.")
        mean = self.reference + self._mean
        dim = mean.shape[-1]
        length = mean.norm(dim=-1).clamp_min(torch.finfo(mean.dtype).eps)
        spread = self._squares.sum(-1) / self.count
        inverse = spread.clamp_min(torch.finfo(mean.dtype).tiny) / (length * (dim - length.square()))
        std_sum = (self._squares / (self.count - 1)).sqrt().sum(-1)
        return DirectionalBatch(
            mean=mean / length[:, None],
            uncertainty=std_sum if self.score == "std_sum" else inverse,
            concentration=inverse.reciprocal().clamp_max(torch.finfo(mean.dtype).max),
            samples=None if self._samples is None else torch.stack(self._samples, dim=1),
        )


class Predictive:
    """Running mean of class probabilities over draws of raw embeddings; None where there is no classifier."""

    def __init__(self, classify: Classifier | None) -> None:
        self.classify, self.count = classify, 0
        self.total: Tensor | None = None

    def add(self, embeddings: Tensor) -> None:
        """Add one draw (B, M) per image, as long as the classifier was trained to see it."""
        probabilities = None if self.classify is None else self.classify(embeddings)
        if probabilities is None:
            self.classify = None
            return
        self.count += 1
        self.total = probabilities.clone() if self.total is None else self.total.add_(probabilities)

    def result(self) -> Tensor | None:
        """Return the mean (B, C) over the draws."""
        return None if self.total is None else self.total / self.count


def unit_deviation(embedding: Tensor, step: Tensor) -> Tensor:
    """(z + δ)/|z + δ| − z/|z| for z = `embedding` and δ = `step` (both (B, M)), without cancellation.

    |z + δ| − |z| is computed as (2z + δ)·δ / (|z + δ| + |z|), so tiny steps keep their relative accuracy.
    """
    tiny = torch.finfo(embedding.dtype).tiny
    before = embedding.norm(dim=-1, keepdim=True).clamp_min(tiny)
    after = (embedding + step).norm(dim=-1, keepdim=True).clamp_min(tiny)
    growth = ((2 * embedding + step) * step).sum(-1, keepdim=True) / (after + before)
    return (step - embedding * (growth / before)) / after
