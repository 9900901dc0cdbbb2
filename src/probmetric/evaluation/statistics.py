"""Statistics over seeds and over queries.

mean_interval       mean and half width of Student's t-interval, for a handful of seeds
bootstrap_interval  percentile interval of the mean, for many values (queries)
paired_test         do two methods differ, compared seed by seed (or query by query)? t-test on the differences
holm                Holm's step-down correction: adjusted p-values control the chance of any false claim
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probmetric.evaluation import _arrays

Doubles = NDArray[np.float64]


class PairedResult(NamedTuple):
    """Mean `difference` a - b, two-sided `p_value`, `effect_size` (mean / standard deviation) over `n` pairs."""

    difference: float
    p_value: float
    effect_size: float
    n: int


def mean_interval(values: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Mean of `values` (n,) and half width of its t-interval; the half width is NaN for a single value.

    Example:
        >>> mean, half = mean_interval([1.0, 2.0, 3.0])
        >>> mean, round(half, 3)
        (2.0, 2.484)
    """
    array = _arrays.vector(values, "values")
    _check_confidence(confidence)
    count = len(array)
    if count < 2:
        return float(array.mean()), float("nan")
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 0.5 + confidence / 2))
    return float(array.mean()), quantile * float(array.std(ddof=1)) / count**0.5


def bootstrap_interval(
    values: Any, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Lower and upper end of the percentile bootstrap interval of the mean of `values` (n,).

    Resamples are drawn in blocks of about 32 MB, whatever n is.

    Example:
        >>> low, high = bootstrap_interval([0.0, 1.0, 1.0, 1.0])
        >>> 0.0 <= low < 0.75 < high <= 1.0
        True
    """
    array = _arrays.vector(values, "values")
    _check_confidence(confidence)
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; expected at least 1.")
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    block = max(1, (2 << 20) // len(array))
    for start in range(0, resamples, block):
        stop = min(start + block, resamples)
        drawn = generator.integers(0, len(array), size=(stop - start, len(array)))
        means[start:stop] = array[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)


def paired_test(a: Any, b: Any) -> PairedResult:
    """Paired t-test of `a` (n,) against `b` (n,), aligned by seed or query.

    Without any spread of the differences the p-value is 1 if they are all 0, else 0; with one pair it is NaN.

    Example:
        >>> paired_test([3.0, 4.0, 6.0], [1.0, 3.0, 3.0]).difference
        2.0
    """
    first = _arrays.vector(a, "a")
    difference = first - _arrays.vector(b, "b", count=len(first))
    count, mean = len(difference), float(difference.mean())
    if count < 2:
        return PairedResult(mean, float("nan"), float("nan"), count)
    spread = float(difference.std(ddof=1))
    if spread <= 1e-12 * float(np.abs(first).max()):
        same = abs(mean) <= 1e-12 * float(np.abs(first).max())
        return PairedResult(mean, 1.0 if same else 0.0, 0.0 if same else float(np.copysign(np.inf, mean)), count)
    from scipy.special import stdtr

    statistic = mean / (spread / count**0.5)
    return PairedResult(mean, 2 * float(stdtr(count - 1, -abs(statistic))), mean / spread, count)


def holm(p_values: Any) -> Doubles:
    """Holm-adjusted `p_values` (m,), in the order given; NaN entries stay NaN and count as no test.

    Example:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    array = np.asarray(p_values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"p_values has shape {array.shape}; expected a vector.")
    if np.any((array < 0) | (array > 1)):
        raise ValueError(f"p_values lie between {np.nanmin(array)} and {np.nanmax(array)}; expected 0 to 1.")
    adjusted = np.full(len(array), np.nan)
    order = np.argsort(array)[: np.count_nonzero(~np.isnan(array))]
    scaled = array[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; expected a share between 0 and 1, such as 0.95.")
