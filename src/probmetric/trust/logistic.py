"""Logistic regression with a Gaussian prior: P(right | x) = 1 / (1 + exp(-w x)), by Newton steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def fit_logistic(design: Doubles, right: Any, mean: Doubles, precision: Doubles) -> tuple[Doubles, Doubles]:
    """Return the weights (J,) of the greatest posterior density, and its precision (J, J) there.

    Args:
        design: (N, J) columns.
        right: (N,) zeros and ones.
        mean: (J,) of the prior.
        precision: (J,) of the prior, 0 for a weight that is free.
    """

    def loss(weights: Doubles) -> float:
        logits = design @ weights
        return float(np.logaddexp(0, logits).sum() - right @ logits + precision @ (weights - mean) ** 2 / 2)

    weights = mean
    for _ in range(100):
        rate = scipy.special.expit(design @ weights)
        gradient = design.T @ (rate - right) + precision * (weights - mean)
        curvature = design.T @ (design * (rate * (1 - rate))[:, None]) + np.diag(precision + 1e-9)
        step = np.linalg.solve(curvature, gradient)
        while np.abs(step).max() > 1e-6 and loss(weights - step) > loss(weights):
            step = step / 2
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return weights, curvature
