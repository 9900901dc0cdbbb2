"""Compute statistics over seeds and over the units that a metric generalises to: classes, or images of known classes.

mean_interval       mean and half width of Student's t-interval, for a few seeds
paired_test         do two methods differ, compared seed by seed (or query by query)? t-test on the differences
holm                Holm's step-down correction: adjusted p-values control the chance of any false claim
sign_flip_test      which of several methods are better than one baseline, compared unit by unit
seeds_needed        how many seeds a difference of a given size needs
unit_variance       how much the choice of the units adds to the variance of a mean over seeds
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles

LEVEL = 0.05
LEAST_SEEDS, MOST_SEEDS = 3, 1_000_000
SMALLEST_SHARE = 0.1
SMALLEST_STEP = 0.001
LARGEST = 1e100
_LOG_SMALLEST = -690.0
_WIDEST = 1e150
FLIPS = 4096


class PairedResult(NamedTuple):
    """Hold the mean `difference` a - b of `n` pairs, two-sided `p_value`, `effect_size` (mean / standard deviation).

    `error` is the standard error of the difference over the pairs; NaN where the p-value is NaN.
    """

    difference: float
    p_value: float
    effect_size: float
    n: int
    error: float = float("nan")


class UnitVariance(NamedTuple):
    """Hold what the choice of the units adds to the variance of a mean, known with `freedom` degrees of freedom."""

    variance: float
    freedom: float = math.inf


NO_UNITS = UnitVariance(0.0)


@dataclass(frozen=True)
class Sample:
    """Hold one metric of one method: its value by seed, and what is known of the units it was measured on.

    Attributes:
        values: seed -> value.
        contributions: seed -> contribution (U,) of each unit, whose mean is the value (`metrics.units`); empty where
            unknown. Two methods that are compared have the same units in the same order.
        errors: seed -> standard error of the value over the units, where it was estimated.
        units: number of units behind `errors`; 0 = unknown.
    """

    values: Mapping[int, float]
    contributions: Mapping[int, Doubles] = field(default_factory=dict)
    errors: Mapping[int, float] = field(default_factory=dict)
    units: int = 0

    def unit_variance(self, seeds: Sequence[int]) -> UnitVariance | None:
        """Return what the choice of the units adds to the variance of the mean over `seeds`; None where unknown."""
        if seeds and all(seed in self.contributions for seed in seeds):
            return unit_variance([self.contributions[seed] for seed in seeds])
        if seeds and all(seed in self.errors for seed in seeds):
            mean_square = sum(self.errors[seed] ** 2 for seed in seeds) / len(seeds)
            return UnitVariance(mean_square, self.units - 1 if self.units > 1 else math.inf)
        return None


def mean_interval(values: Any, confidence: float = 0.95) -> tuple[float, float]:
    """Return the mean of `values` (n,) and the half width of its t-interval, NaN for a single value.

    Examples:
        >>> mean, half = mean_interval([1.0, 2.0, 3.0])
        >>> mean, round(half, 3)
        (2.0, 2.484)
    """
    array = finite_vector(values, "values")
    arrays.check_number(confidence, "confidence")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}; expected a share between 0 and 1, such as 0.95.")
    count = len(array)
    if count < 2:
        return float(array.mean()), float("nan")
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 0.5 + confidence / 2))
    return float(array.mean()), quantile * float(array.std(ddof=1)) / count**0.5


def finite_vector(values: Any, name: str) -> Doubles:
    """Return `values` as a finite float64 vector whose squares fit a float."""
    array = arrays.vector(values, name)
    if np.abs(array).max() > LARGEST:
        raise ValueError(
            f"{name} has values beyond {LARGEST:g}, whose squares no float holds; divide all by one number."
        )
    return array


def paired_test(a: Any, b: Any, *, units: UnitVariance = NO_UNITS) -> PairedResult:
    """Test `a` (n,) against `b` (n,), aligned by seed or query, with a paired t-test.

    The spread of the differences is taken as at least a tenth of the spread of `a` and `b`, and a thousandth of their
    largest value: a few seeds, or a metric that moves in steps, can give equal differences by luck. Where `a` and `b`
    do not spread at all (they do not depend on the seed), the p-value is 1 if they are equal, else NaN. With one pair
    it is NaN.

    The variances over seeds and over units are known with different certainty, so each has its own quantile. The
    p-value is the level at which an interval with half width sqrt(t^2 s^2 / n + u^2 `units.variance`) reaches zero; t
    and u are of Student's distribution with their degrees of freedom. Such intervals cover at least at their level
    (Banerjee, 1961). With Satterthwaite's degrees of freedom and three seeds they would not.

    Args:
        a: values (n,).
        b: values (n,).
        units: variance that the choice of the units adds to the mean difference, see `unit_variance`.

    Examples:
        >>> paired_test([3.0, 4.0, 6.0], [1.0, 3.0, 3.0]).difference
        2.0
        >>> round(paired_test([0.5, 0.6, 0.55], [0.75, 0.85, 0.8]).p_value, 5)
        0.00013
    """
    first = finite_vector(a, "a")
    second = arrays.vector(finite_vector(b, "b"), "b", count=len(first))
    difference = first - second
    count, mean = len(difference), float(difference.mean())
    if count < 2:
        return PairedResult(mean, float("nan"), float("nan"), count)
    if np.array_equal(first, second):
        return PairedResult(mean, 1.0, 0.0, count, 0.0)
    each = float(np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2))
    largest = float(max(np.abs(first).max(), np.abs(second).max()))
    if each <= 1e-12 * largest:
        return PairedResult(mean, float("nan"), float("nan"), count)
    spread = max(float(difference.std(ddof=1)), SMALLEST_SHARE * each, SMALLEST_STEP * largest)
    of_seeds = UnitVariance(spread**2 / count, count - 1)
    return PairedResult(mean, p_value_of(mean, of_seeds, units), mean / spread, count, of_seeds.variance**0.5)


def p_value_of(mean: float, seeds: UnitVariance, units: UnitVariance) -> float:
    """Return the two-sided p-value of a mean difference.

    It is the p at which t(p)^2 `seeds` + u(p)^2 `units` equals `mean` squared, t and u with their degrees of freedom.
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, stdtr

    statistic = abs(mean) / (seeds.variance + units.variance) ** 0.5
    widest = float(stdtr(min(seeds.freedom, units.freedom), -statistic))  # tail if both were known as badly
    narrowest = max(float(log_ndtr(-statistic)), _LOG_SMALLEST)

    def excess(log_tail: float) -> float:
        return min(half_width(seeds, units, math.exp(log_tail)), _WIDEST) - abs(mean)

    if not units.variance:
        return 2 * float(stdtr(seeds.freedom, -statistic))
    if widest <= math.exp(narrowest) or excess(math.log(widest)) >= 0:
        return 2 * widest
    if excess(narrowest) <= 0:
        return 2 * math.exp(narrowest)
    return 2 * math.exp(brentq(excess, narrowest, math.log(widest), xtol=1e-9))


def half_width(seeds: UnitVariance, units: UnitVariance, tail: float = LEVEL / 2) -> float:
    """Return half the width of the interval that leaves out `tail` on each side, see `paired_test`."""
    from scipy.special import stdtrit

    return math.hypot(*(float(stdtrit(each.freedom, tail)) * each.variance**0.5 for each in (seeds, units)))


def shared_unit_variance(a: Sample, b: Sample, seeds: Sequence[int]) -> UnitVariance | None:
    """Return the variance that the choice of the units adds to the mean difference of two methods over `seeds`.

    Where contributions of single units are unknown, it is the sum of both methods' variances. This is too large for
    methods that fail on the same units.

    Returns:
        The variance; None where it is unknown for a seed of a method.

    Raises:
        ValueError: the methods have contributions of different numbers of units.
    """
    if seeds and all(seed in a.contributions and seed in b.contributions for seed in seeds):
        for seed in seeds:
            first, second = len(a.contributions[seed]), len(b.contributions[seed])
            if first != second:
                raise ValueError(
                    f"seed {seed}: the methods were measured on {first} and {second} units; "
                    "compare methods on the same test classes (or images), in the same order."
                )
        return unit_variance([a.contributions[seed] - b.contributions[seed] for seed in seeds])
    each = [sample.unit_variance(seeds) for sample in (a, b)]
    if each[0] is None or each[1] is None:
        return None
    return UnitVariance(each[0].variance + each[1].variance, min(each[0].freedom, each[1].freedom))


def seeds_needed(effect_size: float, *, level: float = 0.05, power: float = 0.8, most: int = 1000) -> int | None:
    """Return the seeds that a two-sided paired t-test at `level` needs to find an effect with probability `power`.

    Args:
        effect_size: mean difference / standard deviation of the differences.
        level: significance level; divide it by the number of comparisons.
        power: chance to find the effect if it is as large as stated.
        most: largest number of seeds; if more are needed, None is returned.

    Examples:
        >>> seeds_needed(1.0), seeds_needed(3.0), seeds_needed(0.01)
        (10, 4, None)
    """
    for name, value in {"effect_size": effect_size, "level": level, "power": power}.items():
        arrays.check_number(value, name)
    arrays.check_count(most, "most", most=MOST_SEEDS)
    if not abs(effect_size) > 0.0:
        return None
    from scipy.special import nctdtr, stdtrit

    counts = np.arange(LEAST_SEEDS, most + 1, dtype=np.float64)
    critical = stdtrit(counts - 1, 1 - level / 2)
    enough = 1.0 - nctdtr(counts - 1, abs(effect_size) * np.sqrt(counts), critical) >= power
    return int(counts[np.argmax(enough)]) if enough.any() else None


def sign_flip_test(differences: Any) -> Doubles:
    """Test which of K methods are better than a baseline; return one-sided p-values (K,), corrected for all K.

    If a method is no better, the difference of a unit has either sign with equal chance. Signs are flipped unit by
    unit, for all methods together. The mean of each method is divided by the root mean square of its differences; p is
    the share of flips in which the largest of these is at least the method's own (Westfall and Young 1993, section
    2.3). So the correction costs little where methods are alike, and copies of a method cost nothing.

    With up to 12 units all flips are counted, so no p-value is below 1 / 2^U. With more, `FLIPS` random flips are.

    Args:
        differences: (K, U) method - baseline for U units, such as classes.

    Examples:
        >>> sign_flip_test([[1.0, 2.0, 1.0, 3.0], [1.0, 2.0, 1.0, 3.0], [1.0, -1.0, 1.0, -1.0]]).tolist()
        [0.125, 0.125, 0.875]
    """
    array = arrays.numbers(differences, "differences", "(K, U)")
    finite_vector(array.ravel(), "differences")
    units = array.shape[1]
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    scaled = np.divide(array, lengths, out=np.zeros_like(array), where=lengths > 0).T
    if 2**units <= FLIPS:
        largest = ((1 - 2 * (np.arange(2**units)[:, None] >> np.arange(units) & 1)) @ scaled).max(axis=1)
    else:
        generator, block = np.random.default_rng(0), (FLIPS // 16, units)
        drawn = [((2 * generator.integers(0, 2, block) - 1) @ scaled).max(axis=1) for _ in range(16)]
        largest = np.concatenate([[scaled.sum(axis=0).max()], *drawn])
    return np.asarray((largest[:, None] >= scaled.sum(axis=0) - 1e-12).mean(axis=0))


def unit_variance(contributions: Any) -> UnitVariance:
    """Return the variance that the choice of the units adds to the mean of `contributions` (seeds, units).

    Seeds and units are both samples. The variance of the mean over both is Var(seed) / n + Var(unit) / U +
    Var(rest) / (n U). The spread between the seeds' means shows the first and the last term; this function returns the
    middle term (analysis of variance, 0 where the estimate is negative), with U - 1 degrees of freedom.

    Examples:
        >>> unit_variance([[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]])
        UnitVariance(variance=0.08333333333333333, freedom=3)
    """
    array = arrays.numbers(contributions, "contributions", "(seeds, units)")
    finite_vector(array.ravel(), "contributions")
    seeds, units = array.shape
    if units < 2:
        return NO_UNITS
    between = float(array.mean(axis=0).var(ddof=1)) / units
    if seeds < 2:
        return UnitVariance(between, units - 1)
    rest = array - array.mean(axis=0) - array.mean(axis=1, keepdims=True) + array.mean()
    remaining = float((rest**2).sum()) / ((seeds - 1) * (units - 1))
    return UnitVariance(max(between - remaining / (seeds * units), 0.0), units - 1)


def holm(p_values: Any) -> Doubles:
    """Return Holm-adjusted `p_values` (m,), in the order given; NaN entries stay NaN and do not count as tests.

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
