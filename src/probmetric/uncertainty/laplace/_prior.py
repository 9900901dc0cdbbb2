"""Precision δ of the isotropic Gaussian prior on the last layer (paper 003, equations 3 and 72).

`marginal_likelihood` maximises the Laplace evidence −½δ|θ|² + ½P log δ − ½Σ log(h + δ) over δ. Its stationarity
condition, γ(δ) = Σ h/(h + δ) = δ|θ|², has a decreasing left and an increasing right side, hence one root, found by
bisection in log δ. The released code takes one Adam step instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from probmetric.metrics.selective import accuracy_by_coverage

Tensor = torch.Tensor

LOWEST, HIGHEST = 1e-8, 1e12


def evidence_precision(curvature: Sequence[Tensor], parameters: Sequence[Tensor]) -> float:
    """δ that maximises the evidence, for diagonal curvature h ≥ 0 and the mean parameters θ (same shapes)."""
    squared_norm = sum(float(part.double().square().sum()) for part in parameters)

    def surplus(log_precision: float) -> float:
        precision = math.exp(log_precision)
        effective = sum(float((part.double() / (part.double() + precision)).sum()) for part in curvature)
        return effective - precision * squared_norm

    low, high = math.log(LOWEST), math.log(HIGHEST)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if surplus(middle) > 0 else (low, middle)
    return math.exp(0.5 * (low + high))


def best_precision(candidates: Sequence[float], score: Callable[[float], float]) -> float:
    """The candidate with the highest score; the first one on ties."""
    return max(candidates, key=score)


def sparsification_area(mean: Tensor, labels: Tensor, uncertainty: Tensor) -> float:
    """Mean accuracy of the nearest neighbour over all fractions kept, most certain first.

    mean (N, M) unit rows, labels (N,), uncertainty (N,).
    """
    similarity = mean @ mean.T
    similarity.fill_diagonal_(-math.inf)
    correct = (labels[similarity.argmax(1)] == labels).double()
    return float(accuracy_by_coverage(uncertainty.double().cpu().numpy(), correct.cpu().numpy()).mean())
