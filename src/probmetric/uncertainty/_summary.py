"""Directional summary of S samples per image, streamed one sample at a time.

For unit samples u_s: mean resultant length R̄ = |mean_s u_s|, mean direction mean/R̄, per-dimension unbiased
standard deviations σ_d, and the concentration estimate of Sra (2012), κ̂ = R̄(M − R̄²)/(1 − R̄²) (paper 003,
appendix C). Because |u_s| = 1, 1 − R̄² is the total population variance Σ_d Σ_s (u_sd − ū_d)²/S. The variance is
accumulated by Welford's recurrence on deviations from a reference direction, so κ̂ keeps its relative accuracy
when the samples agree to many digits, where 1 − R̄² computed from R̄ would be rounding error. Memory is O(B·M)
for any S.

Two scores: the released code uses Σ_d σ_d ("std_sum"), the paper's text describes 1/κ̂
("inverse_concentration"). They rank images slightly differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from probmetric.registry import Draws
from probmetric.uncertainty._base import DirectionalBatch, Uncertainty, polar

Classifier = Callable[[Tensor], "Tensor | None"]


class Summarised(Uncertainty):
    """Base of the uncertainties that measure the spread of several embeddings of an image."""

    def __init__(
        self,
        *,
        score: Literal["std_sum", "inverse_concentration"] = "inverse_concentration",
        keep_samples: bool = False,
    ) -> None:
        self.score, self.keep_samples = score, keep_samples

    def summarise(
        self,
        reference: Tensor,  # (B, M) unit rows
        draws: Iterable[tuple[Tensor, Tensor]],
        classify: Classifier | None,
    ) -> DirectionalBatch:
        """Return mean direction, uncertainty, concentration, class probabilities and, if kept, samples.

        A draw holds one sample per image: its deviation (B, M) from the reference, and its raw embedding (B, M), of the
        length that the classifier was trained with. `classify` returns the class probabilities (B, C) of the latter, or
        None.
        """
        mean, squares = torch.zeros_like(reference), torch.zeros_like(reference)
        samples: list[Tensor] = []
        probabilities: Tensor | None = None
        count = 0
        for count, (deviation, raw) in enumerate(draws, start=1):
            change = deviation - mean
            mean.add_(change, alpha=1.0 / count)
            squares.addcmul_(change, deviation - mean)
            if self.keep_samples:
                samples.append(reference + deviation)
            predicted = None if classify is None else classify(raw)
            if predicted is None:
                classify = None
            else:
                probabilities = predicted.clone() if probabilities is None else probabilities.add_(predicted)
        if count < 2:
            raise ValueError(f"samples is {count}; at least 2 are needed to estimate a spread.")
        direction, length = polar(reference + mean)
        dim, length = mean.shape[-1], length.clamp_min(torch.finfo(mean.dtype).eps)
        spread = squares.sum(-1) / count
        room = (length * (dim - length.square())).clamp_min(torch.finfo(mean.dtype).tiny)  # zero in one dimension
        inverse = spread.clamp_min(torch.finfo(mean.dtype).tiny) / room
        std_sum = (squares / (count - 1)).sqrt().sum(-1)
        return DirectionalBatch(
            mean=direction,
            uncertainty=std_sum if self.score == "std_sum" else inverse,
            concentration=inverse.reciprocal().clamp_max(torch.finfo(mean.dtype).max),
            samples=torch.stack(samples, dim=1) if self.keep_samples else None,
            probabilities=None if probabilities is None else probabilities / count,
        )


class Sampled(Summarised):
    """Base of the uncertainties that make `samples` draws."""

    def __init__(self, *, samples: Draws = 100, **shared: Any) -> None:
        super().__init__(**shared)
        self.samples = samples

    def summarise(
        self, reference: Tensor, draws: Iterable[tuple[Tensor, Tensor]], classify: Classifier | None
    ) -> DirectionalBatch:
        """Summarise draws around the embedding; an embedding without a direction gets none from its draws."""
        record = super().summarise(reference, draws, classify)
        record.mean = record.mean * (reference != 0).any(dim=1, keepdim=True)
        return record


def unit_deviation(embedding: Tensor, step: Tensor) -> Tensor:
    """Return (z + δ)/|z + δ| − z/|z| for z = `embedding` and δ = `step` (both (B, M)), without cancellation.

    |z + δ| − |z| is computed as (2z + δ)·δ / (|z + δ| + |z|), so tiny steps keep their relative accuracy.
    """
    tiny = torch.finfo(embedding.dtype).tiny
    direction, before = polar(embedding)
    after = (embedding + step).norm(dim=-1, keepdim=True).clamp_min(tiny)
    growth = ((2 * embedding + step) * step).sum(-1, keepdim=True) / (after + before[:, None])
    return (step - direction * growth) / after
