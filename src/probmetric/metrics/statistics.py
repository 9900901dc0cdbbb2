"""Statistics over seeds and over queries.

mean_interval       mean and half width of Student's t-interval, for a handful of seeds
bootstrap_interval  percentile interval of the mean, for many values (queries)
paired_test         do two methods differ, compared seed by seed (or query by query)? t-test on the differences
holm                Holm's step-down correction: adjusted p-values control the chance of any false claim
pairwise_tests      every pair of several methods, Holm-corrected over all pairs: valid for "worse than the best" too
seeds_needed        how many seeds a difference of this size would need
image_variance      what the choice of the test images adds to the variance of a mean over seeds
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays

Doubles = NDArray[np.float64]
Pairwise = dict[tuple[str, str], tuple[float, float]]

LEAST_SEEDS = 3
SMALLEST_SHARE = 0.1
SMALLEST_STEP = 0.001
LARGEST = 1e100
_LOG_SMALLEST = -690.0


class PairedResult(NamedTuple):
    """Mean `difference` a - b, two-sided `p_value`, `effect_size` (mean / standard deviation) over `n` pairs."""

    difference: float
    p_value: float
    effect_size: float
    n: int


def mean_interval(values: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Mean of `values` (n,) and half width of its t-interval; the half width is NaN for a single value.

    Examples:
        >>> mean, half = mean_interval([1.0, 2.0, 3.0])
        >>> mean, round(half, 3)
        (2.0, 2.484)
    """
    array = _vector(values, "values")
    _check_confidence(confidence)
    count = len(array)
    if count < 2:
        return float(array.mean()), float("nan")
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 0.5 + confidence / 2))
    return float(array.mean()), quantile * float(array.std(ddof=1)) / count**0.5


def _vector(values: Any, name: str) -> Doubles:
    """`values` as a finite float64 vector whose squares a float holds."""
    array = arrays.vector(values, name)
    if np.abs(array).max() > LARGEST:
        raise ValueError(
            f"{name} has values beyond {LARGEST:g}, whose squares no float holds; divide all by one number."
        )
    return array


def bootstrap_interval(
    values: Any, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Lower and upper end of the percentile bootstrap interval of the mean of `values` (n,).

    Resamples are drawn in blocks of about 32 MB, whatever n is.

    Examples:
        >>> low, high = bootstrap_interval([0.0, 1.0, 1.0, 1.0])
        >>> 0.0 <= low < 0.75 < high <= 1.0
        True
    """
    array = _vector(values, "values")
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


def paired_test(a: Any, b: Any, *, image_variance: float = 0.0) -> PairedResult:
    """Paired t-test of `a` (n,) against `b` (n,), aligned by seed or query.

    The differences are taken to spread by at least a tenth of what `a` and `b` spread themselves and by a thousandth of
    their largest value: equal differences are luck of a few seeds, or of a metric that moves in steps, not certainty.
    Where neither spreads at all (nothing depends on the seed) repetitions tell nothing: the p-value is NaN, but 1
    where `a` equals `b`. With one pair it is NaN.

    The two variances of the mean difference are known from few seeds and from many images: each has its own quantile,
    and the p-value is the level at which an interval with half width sqrt(t^2 s^2 / n + z^2 `image_variance`) reaches
    zero. Such intervals cover at least at their level (Banerjee, 1961).

    Args:
        a: values (n,).
        b: values (n,).
        image_variance: what the choice of the test images adds to the variance of the mean difference, see
            `image_variance`; taken as known.

    Examples:
        >>> paired_test([3.0, 4.0, 6.0], [1.0, 3.0, 3.0]).difference
        2.0
        >>> round(paired_test([0.5, 0.6, 0.55], [0.75, 0.85, 0.8]).p_value, 5)
        0.00013
    """
    first = _vector(a, "a")
    second = arrays.vector(_vector(b, "b"), "b", count=len(first))
    difference = first - second
    count, mean = len(difference), float(difference.mean())
    if count < 2:
        return PairedResult(mean, float("nan"), float("nan"), count)
    if np.array_equal(first, second):
        return PairedResult(mean, 1.0, 0.0, count)
    own = float(np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2))
    largest = float(max(np.abs(first).max(), np.abs(second).max()))
    if own <= 1e-12 * largest:
        return PairedResult(mean, float("nan"), float("nan"), count)
    spread = max(float(difference.std(ddof=1)), SMALLEST_SHARE * own, SMALLEST_STEP * largest)
    return PairedResult(mean, _p_value(mean, spread**2 / count, count - 1, image_variance), mean / spread, count)


def _p_value(mean: float, of_seeds: float, freedom: int, of_images: float) -> float:
    """The p at which t(p)^2 `of_seeds` + z(p)^2 `of_images` is `mean` squared, t with `freedom` degrees of freedom."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtri, stdtr, stdtrit

    statistic = abs(mean) / (of_seeds + of_images) ** 0.5
    widest = float(stdtr(freedom, -statistic))  # a tail, as if all of it were known from the seeds
    narrowest = max(float(log_ndtr(-statistic)), _LOG_SMALLEST)

    def excess(log_tail: float) -> float:
        tail = math.exp(log_tail)
        return float(stdtrit(freedom, tail) ** 2 * of_seeds + ndtri(tail) ** 2 * of_images - mean**2)

    if not of_images or widest <= math.exp(narrowest) or excess(math.log(widest)) >= 0:
        return 2 * widest
    if excess(narrowest) <= 0:
        return 2 * math.exp(narrowest)
    return 2 * math.exp(brentq(excess, narrowest, math.log(widest), xtol=1e-9))


def pairwise_tests(
    values: Mapping[str, Mapping[int, float]],
    *,
    images: Mapping[str, Mapping[int, Doubles]] | None = None,
    image_errors: Mapping[str, Mapping[int, float]] | None = None,
    least: int = LEAST_SEEDS,
) -> Pairwise:
    """Tests of all pairs of methods on the seeds they share, Holm-corrected over all pairs that can be tested.

    Who compares methods with the one that came out best has looked at all pairs: corrected for the comparisons with the
    best alone, 5 % becomes 15 % with 23 equal methods. This correction holds whatever the spreads and correlations.

    Args:
        values: method -> seed -> value.
        images: method -> seed -> the values of single test images (N,) whose mean `values` holds; where two methods
            have them, test images count as a sample too.
        image_errors: method -> seed -> standard error of the value over test images, used where single images are
            unknown.
        least: a pair with fewer shared seeds is not tested; its p-value is NaN.

    Returns:
        A dictionary (a, b) -> (adjusted p-value, mean difference a - b; NaN without a shared seed), for both orders of
        every pair.

    Examples:
        >>> found = pairwise_tests({"a": {0: 0.5, 1: 0.6, 2: 0.7}, "b": {0: 0.1, 1: 0.3, 2: 0.3}, "c": {0: 0.1}})
        >>> round(found["a", "b"][1], 3), round(found["b", "a"][1], 3), found["a", "c"]
        (0.367, -0.367, (nan, 0.4))
    """
    pairs = list(itertools.combinations(values, 2))
    given, errors = images or {}, image_errors or {}
    results = []
    for a, b in pairs:
        known = (given.get(a, {}), given.get(b, {})), (errors.get(a, {}), errors.get(b, {}))
        results.append(_on_shared_seeds((values[a], values[b]), *known, least))
    adjusted = holm([p for p, _ in results])
    found: Pairwise = {}
    for (a, b), p, (_, difference) in zip(pairs, adjusted.tolist(), results, strict=True):
        found[a, b], found[b, a] = (p, difference), (p, -difference)
    return found


def _on_shared_seeds(
    values: tuple[Mapping[int, float], Mapping[int, float]],
    images: tuple[Mapping[int, Doubles], Mapping[int, Doubles]],
    errors: tuple[Mapping[int, float], Mapping[int, float]],
    least: int,
) -> tuple[float, float]:
    shared = sorted(set(values[0]) & set(values[1]))
    if not shared:
        return float("nan"), float("nan")
    first, second = ([mine[seed] for seed in shared] for mine in values)
    result = paired_test(first, second, image_variance=shared_image_variance(*images, shared, errors))
    return result.p_value if len(shared) >= least else float("nan"), result.difference


def shared_image_variance(
    a: Mapping[int, Doubles],
    b: Mapping[int, Doubles],
    seeds: Sequence[int],
    errors: tuple[Mapping[int, float], Mapping[int, float]] = ({}, {}),
) -> float:
    """What the choice of the test images adds to the variance of a mean difference of two methods over `seeds`.

    Args:
        a: seed -> the values of single images (N,); empty where unknown.
        b: the same of the other method.
        seeds: the seeds both have.
        errors: seed -> standard error over the images, of both. Used where single images are unknown: the sum of both
            variances, which is more than enough for methods that fail on the same images.

    Returns:
        The variance; 0 where neither is known for every seed.
    """
    if all(seed in a and seed in b and len(a[seed]) == len(b[seed]) for seed in seeds):
        return image_variance([a[seed] - b[seed] for seed in seeds])
    if all(seed in mine for mine in errors for seed in seeds):
        return sum(mine[seed] ** 2 for mine in errors for seed in seeds) / len(seeds)
    return 0.0


def seeds_needed(effect_size: float, *, level: float = 0.05, power: float = 0.8, most: int = 1000) -> int | None:
    """Seeds a two-sided paired t-test at `level` needs to find an effect of this size with probability `power`.

    Args:
        effect_size: mean difference / standard deviation of the differences.
        level: significance level; divide it by the number of comparisons.
        power: chance to find the effect if it is as large as stated.
        most: None is returned where more than so many would be needed.

    Examples:
        >>> seeds_needed(1.0), seeds_needed(3.0), seeds_needed(0.01)
        (10, 4, None)
    """
    if not abs(effect_size) > 0.0:
        return None
    from scipy.special import nctdtr, stdtrit

    counts = np.arange(LEAST_SEEDS, most + 1, dtype=np.float64)
    critical = stdtrit(counts - 1, 1 - level / 2)
    found = 1.0 - nctdtr(counts - 1, abs(effect_size) * np.sqrt(counts), critical) >= power
    return int(counts[np.argmax(found)]) if found.any() else None


def image_variance(differences: Any) -> float:
    """What the choice of the test images adds to the variance of the mean of `differences` (seeds, images).

    Seeds and images are both samples. The variance of the mean over both is Var(seed) / n + Var(image) / N +
    Var(rest) / (n N); the spread between the seeds' means shows the first and the last term, this is the middle one
    (analysis of variance, 0 where the estimate is negative).

    Examples:
        >>> image_variance([[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]])
        0.08333333333333333
    """
    values = arrays.to_numpy(differences)
    if values.ndim != 2 or min(values.shape) < 1 or values.dtype.kind not in "fiub":
        raise ValueError(
            f"differences has shape {values.shape}; expected (seeds, images), numbers (dtype is {values.dtype})."
        )
    array = values.astype(np.float64)
    _vector(array.ravel(), "differences")
    seeds, images = array.shape
    if images < 2:
        return 0.0
    between = float(array.mean(axis=0).var(ddof=1)) / images
    if seeds < 2:
        return between
    rest = array - array.mean(axis=0) - array.mean(axis=1, keepdims=True) + array.mean()
    remaining = float((rest**2).sum()) / ((seeds - 1) * (images - 1))
    return max(between - remaining / (seeds * images), 0.0)


def holm(p_values: Any) -> Doubles:
    """Holm-adjusted `p_values` (m,), in the order given; NaN entries stay NaN and count as no test.

    Examples:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    values = arrays.to_numpy(p_values)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise ValueError(f"p_values has shape {values.shape}; expected a vector of numbers (dtype is {values.dtype}).")
    array = values.astype(np.float64)
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
