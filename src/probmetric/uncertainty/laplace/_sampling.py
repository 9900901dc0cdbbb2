"""Weight draws of a last-layer Gaussian posterior, shared by a whole pass.

Draw s is a function of (seed, s) only and is generated on the CPU in a fixed order, so that every batch, batch
size and device sees the same S networks. A draw is a *step* away from the mean weights, ΔW = σ∘ε, and embeddings
move by δ = ΔW h + Δb; keeping the step apart from the mean keeps its relative accuracy (see `_summary`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from probmetric.uncertainty._base import DirectionalBatch
from probmetric.uncertainty._summary import Classifier, DirectionalSummary, Predictive, Score, unit_deviation

Tensor = torch.Tensor

_ROWS = 8192


class Sampler(Protocol):
    """Draws of the last layer, seen through the embeddings."""

    def moves(self, features: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
        """Moves (N, Z) of the embeddings of `features` (N, D) under each draw; draw s depends on (seed, s) only."""
        ...

    def variance(self, features: Tensor) -> Tensor:
        """Variance (N, Z) of the moves, in closed form."""
        ...


class DiagonalSampler:
    """Independent Gaussian steps with standard deviations 1/√(relu(h) + δ)."""

    def __init__(self, weight_curvature: Tensor, bias_curvature: Tensor | None, prior_precision: float) -> None:
        self.weight_std = standard_deviation(weight_curvature, prior_precision)
        self.bias_std = None if bias_curvature is None else standard_deviation(bias_curvature, prior_precision)

    def steps(self, samples: int, seed: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """`samples` steps (ΔW (Z, D), Δb (Z,) or None)."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(samples):
            weight = noise_like(self.weight_std, generator).mul_(self.weight_std)
            bias = None if self.bias_std is None else noise_like(self.bias_std, generator).mul_(self.bias_std)
            yield weight, bias

    def moves(self, features: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
        """Moves (N, Z) of the embeddings of `features` (N, D), one per draw."""
        return (F.linear(features, weight, bias) for weight, bias in self.steps(samples, seed))

    def variance(self, features: Tensor) -> Tensor:
        """Variance (N, Z) of the moves: sum over d of h_d^2 var(W_zd), and the bias's."""
        bias = None if self.bias_std is None else self.bias_std.square()
        return F.linear(features.square(), self.weight_std.square(), bias)


def noise_like(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal noise of `like`'s shape, drawn in float32 on the generator's (CPU) device."""
    return torch.randn(like.shape, generator=generator).to(device=like.device, dtype=like.dtype)


def standard_deviation(curvature: Tensor, prior_precision: float) -> Tensor:
    """(relu(h) + δ)^(−1/2)."""
    return (curvature.clamp_min(0) + prior_precision).rsqrt()


def summarise(
    head: nn.Linear,
    features: Tensor,
    sampler: Sampler,
    *,
    samples: int,
    seed: int,
    score: Score,
    keep_samples: bool,
    classify: Classifier | None = None,
) -> DirectionalBatch:
    """Directional summary of `samples` draws of the last layer on features (N, D); `classify` reads raw embeddings.

    Rows are taken in large blocks that repeat the same draws: memory beyond the result is bounded, and drawing costs
    little beside the products of a block.
    """

    def block(rows: Tensor) -> DirectionalBatch:
        embeddings = F.linear(rows, head.weight, head.bias)
        summary = DirectionalSummary(F.normalize(embeddings, dim=1), score=score, keep_samples=keep_samples)
        predictive = Predictive(classify)
        for move in sampler.moves(rows, samples, seed):
            summary.add(unit_deviation(embeddings, move))
            predictive.add(embeddings + move)
        result = summary.result()
        result.probabilities = predictive.result()
        square = embeddings.square().sum(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        result.variance = sampler.variance(rows) / square
        return result

    return DirectionalBatch.concatenate([block(rows) for rows in features.split(_ROWS)])
