"""Scale logits by a temperature (Guo et al. 2017) that is fitted on the validation split, never on test.

p = softmax(logits / T), where T > 0 minimises the validation NLL. With samples of the logits (N,S,C), which the vMF
loss of paper 002 gives, p is the mean over samples of softmax(logits_s / T). The accuracy of a single softmax does not
change. The paper does not say how it found its temperature; this is the usual way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles, Ints

LOGITS = ("logits", "(N, C)", "(N, S, C) of S samples")
LOG_RANGE = (float(np.log(0.01)), float(np.log(100.0)))


def scaled_probabilities(logits: Any, temperature: float = 1.0) -> Doubles:
    """Return class probabilities (N,C) of `logits` (N,C), or of samples of logits (N,S,C), at the given temperature.

    Examples:
        >>> scaled_probabilities([[2.0, 0.0]], 1e9).round(6).tolist()
        [[0.5, 0.5]]
    """
    from scipy.special import softmax

    arrays.check_number(temperature, "temperature")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; expected a positive number.")
    scaled = arrays.numbers(logits, *LOGITS)
    with np.errstate(over="ignore"):  # an overflow gives the smaller class probability 0
        array: Doubles = softmax((scaled - scaled.max(axis=-1, keepdims=True)) / temperature, axis=-1)
    return array if array.ndim == 2 else array.mean(axis=1)


def fit_temperature(logits: Any, labels: Any) -> float:
    """Return the temperature in [0.01, 100] of least NLL for validation `logits` (N,C) or (N,S,C) and `labels` (N,).

    Brent's bounded search on log T follows a coarse scan, because with samples the NLL may have several minima.

    Examples:
        >>> round(fit_temperature([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [3.0, 0.0]], [0, 0, 0, 1]), 4)
        2.7307
    """
    from scipy.optimize import minimize_scalar

    array = arrays.numbers(logits, *LOGITS)
    classes = arrays.labels_of(labels, len(array), "labels", "logits")
    if classes.max() >= array.shape[-1]:
        raise ValueError(f"labels go up to {classes.max()}, but logits have {array.shape[-1]} columns.")
    scan = np.linspace(*LOG_RANGE, 57)
    best = int(np.argmin([_nll(value, array, classes) for value in scan]))
    bounds = scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)]
    least = minimize_scalar(_nll, bounds=bounds, args=(array, classes), method="bounded", options={"xatol": 1e-10})
    return float(np.exp(least.x))


def _nll(log_temperature: float, logits: Doubles, labels: Ints) -> float:
    right = scaled_probabilities(logits, float(np.exp(log_temperature)))[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, 1e-300)).mean())
