"""Test all pairs of many methods, each measured with a few seeds.

pairwise_tests    tests of every pair, Holm-corrected over all pairs
pooled_variances  variances of many methods over few seeds, each moved towards those of the others (Smyth 2004)

A method that loses any pair is not the best: it is significantly worse than one that is at most as good as the best.
So every pair counts. Pairs with the method that came out best are not enough: it may be the one that varies most.

Error levels, simulated with 20 equal methods: some method is called worse in at most 3.1 % of tables of 3 seeds and
1.9 % of 5 seeds. This holds for normal values, variances that differ 30 times and more, heavy tails, steps and runs of
which 5 % collapse. Where many methods gain and lose together (in groups, or each by its share of the cost of a draw of
classes), it is up to 10 % with 3 seeds and 6 % with 5.

Power, where ten of the 20 are .05 of recall@1 worse and seeds spread by .006: 100 % are found with 5 seeds; 90 % where
spreads differ as exp(.8 z), 93 % with tails of Student's t of 2.5, 76 % where runs collapse, 75 % where a third spreads
by .03. An effect that all methods share in a seed changes none of these (`tests/metrics/test_pairwise.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles
from probmetric.metrics.statistics import (
    LARGEST,
    LEAST_SEEDS,
    LEVEL,
    NO_UNITS,
    Sample,
    UnitVariance,
    finite_vector,
    half_width,
    holm,
    p_value_of,
    paired_test,
    shared_unit_variance,
)

LEAST_POOLED = 8
LEAST_SHARE_OF_MEAN = 0.1
POWER = 0.8


class PairTest(NamedTuple):
    """Hold one of many comparisons: adjusted `p_value`, mean `difference` a - b and the `detectable` difference.

    A test at the strictest level of Holm's correction finds `detectable` with a power of 80 %. It is computed by the
    noncentral t distribution, with the fewer degrees of freedom where there are two variances. All values are NaN
    without a shared seed; p-value and `detectable` are NaN with too few shared seeds.
    """

    p_value: float
    difference: float
    detectable: float = float("nan")


Pairwise = dict[tuple[str, str], PairTest]


class _Pair(NamedTuple):
    """Hold the mean difference of two methods, its two variances, and the p-value before any correction."""

    difference: float
    seeds: UnitVariance = NO_UNITS
    units: UnitVariance = NO_UNITS
    p_value: float = math.nan


def pairwise_tests(samples: Mapping[str, Sample], *, least: int = LEAST_SEEDS) -> Pairwise:
    """Test all pairs of methods on the seeds they share, Holm-corrected over all pairs that can be tested.

    To find the best method is to look at all pairs: if you correct only for comparisons with the best, 5 % becomes 15 %
    with 23 equal methods. Holm's correction holds for all spreads and correlations.

    A few seeds tell so little of one method's spread that among 20 methods no difference is ever significant. So from
    `LEAST_POOLED` methods on the spreads are `pooled_variances`, after removing the effect that all methods share in a
    seed (or draw of the classes).

    Args:
        samples: method -> what was measured of it.
        least: a pair with fewer shared seeds is not tested.

    Returns:
        A dictionary (a, b) -> test of a against b, for both orders of every pair.

    Raises:
        ValueError: two methods have contributions of different numbers of units.

    Examples:
        >>> values = {"a": {0: 0.5, 1: 0.6, 2: 0.7}, "b": {0: 0.1, 1: 0.3, 2: 0.3}, "c": {0: 0.1}}
        >>> tests = pairwise_tests({name: Sample(seeds) for name, seeds in values.items()})
        >>> round(tests["a", "b"].difference, 3), round(tests["b", "a"].difference, 3), tests["a", "c"]
        (0.367, -0.367, PairTest(p_value=nan, difference=0.4, detectable=nan))
    """
    arrays.check_mapping(samples, "samples")
    arrays.check_count(least, "least", least=2)
    for name, sample in samples.items():
        if not isinstance(sample, Sample):
            raise TypeError(f"samples[{name!r}] is a {type(sample).__name__}; expected a Sample of the method.")
        for part in ("values", "contributions", "errors"):
            arrays.check_mapping(getattr(sample, part), f"samples[{name!r}].{part}")
        arrays.check_count(sample.units, f"samples[{name!r}].units", least=0)
        finite_vector(list(sample.values.values()), f"samples[{name!r}].values")
    pooled = _pooled({name: sample for name, sample in samples.items() if len(sample.values) >= least})
    pairs = {
        (a, b): _pair(samples[a], samples[b], (pooled[a], pooled[b]) if a in pooled and b in pooled else None, least)
        for a, b in itertools.combinations(samples, 2)
    }
    adjusted = holm([pair.p_value for pair in pairs.values()])
    strictest = LEVEL / 2 / max(1, int(np.count_nonzero(~np.isnan(adjusted))))
    tests: Pairwise = {}
    for ((a, b), pair), p_value in zip(pairs.items(), adjusted.tolist(), strict=True):
        detectable = _detectable(pair.seeds, pair.units, strictest) if math.isfinite(p_value) else math.nan
        tests[a, b] = PairTest(p_value, pair.difference, detectable)
        tests[b, a] = PairTest(p_value, -pair.difference, detectable)
    return tests


def _detectable(seeds: UnitVariance, units: UnitVariance, tail: float) -> float:
    """Return the true difference whose estimate exceeds its half-width at this `tail` with probability `POWER`."""
    from scipy.special import nctdtrinc

    error = (seeds.variance + units.variance) ** 0.5
    if not error:
        return 0.0
    freedom = min(seeds.freedom, units.freedom if units.variance else math.inf, 1e6)
    return error * float(nctdtrinc(freedom, 1 - POWER, half_width(seeds, units, tail) / error))


def _pair(a: Sample, b: Sample, pooled: tuple[UnitVariance, UnitVariance] | None, least: int) -> _Pair:
    """Compare two methods by their `pooled` variances, or without these by their own."""
    shared = sorted(a.values.keys() & b.values.keys())
    if not shared:
        return _Pair(math.nan)
    first, second = ([each.values[seed] for seed in shared] for each in (a, b))
    if len(shared) < least:
        return _Pair(fmean(first) - fmean(second))
    units = shared_unit_variance(a, b, shared) or NO_UNITS
    if pooled is None or first == second:
        test = paired_test(first, second, units=units)
        return _Pair(test.difference, UnitVariance(test.error**2, max(1, len(shared) - 1)), units, test.p_value)
    difference = fmean(first) - fmean(second)
    seeds = _of_difference(*pooled, least=float(np.subtract(first, second).var(ddof=1)), seeds=len(shared))
    return _Pair(difference, seeds, units, p_value_of(difference, seeds, units))


def _of_difference(a: UnitVariance, b: UnitVariance, *, least: float, seeds: int) -> UnitVariance:
    """Return the variance of a difference of two means over `seeds`, from the variances of single values.

    The variance of one difference is at least `least`. The degrees of freedom are half way from the smaller of both to
    Welch's: with Welch's, 6 to 7 % of tables of 3 seeds and very different spreads have a false difference.
    """
    total = a.variance + b.variance
    welch = total**2 / (a.variance**2 / a.freedom + b.variance**2 / b.freedom)
    return UnitVariance(max(total, least) / seeds, (welch + min(a.freedom, b.freedom)) / 2)


def _pooled(samples: Mapping[str, Sample]) -> dict[str, UnitVariance]:
    """Pool the variance of one value of each method, after removing the effect that all methods share in a seed.

    Where classes were drawn several times a seed stands for a draw, and one draw is harder for every method. The
    remainder of a method holds a share of the others' variances, which Grubbs's estimator removes (Grubbs 1948, Journal
    of the American Statistical Association 43, 243-264).

    Returns:
        An empty dictionary for few methods, fewer than two common seeds, or values that do not depend on the seed.
    """
    count = len(samples)
    seeds = sorted(set.intersection(*(set(sample.values) for sample in samples.values()))) if samples else []
    if count < LEAST_POOLED or len(seeds) < 2:
        return {}
    values = np.array([[sample.values[seed] for seed in seeds] for sample in samples.values()], dtype=np.float64)
    largest = float(np.abs(values).max())
    if largest > LARGEST:
        return {}
    rest = values - values.mean(axis=1, keepdims=True)
    rest -= rest.mean(axis=0)
    variances = np.square(rest).sum(axis=1) / (len(seeds) - 1)
    of_others = variances.mean() / (count - 1)
    if of_others <= (1e-12 * largest) ** 2:
        return {}
    variances = np.maximum((variances - of_others) / (1 - 2 / count), 0.0)
    pooled, freedom = pooled_variances(variances, [len(seeds) - 1] * count)
    return {name: UnitVariance(float(v), float(f)) for name, v, f in zip(samples, pooled, freedom, strict=True)}


def pooled_variances(variances: Any, freedom: Any) -> tuple[Doubles, Doubles]:
    """Return variances (K,) moved towards each other, and their degrees of freedom (K,).

    The more the variances of K methods scatter beyond chance, the less weight their common value gets (Smyth 2004,
    Statistical Applications in Genetics 3(1), section 6.2). Three departures keep the error level where variances
    differ grossly, tails are heavy or values move in steps: no variance is taken for smaller than it was found, or than
    a tenth of the mean; the scatter is taken one standard error larger than estimated; and the weight of the other
    methods is at most their number of degrees of freedom.

    Args:
        variances: (K,) variance of each method over its seeds; at least two, not all 0.
        freedom: (K,) degrees of freedom of each variance, seeds - 1.

    Examples:
        >>> pooled, freedom = pooled_variances([1.0, 2.0, 1.0, 2.0], [2, 2, 2, 2])
        >>> pooled.round(2).tolist(), freedom.round(2).tolist()
        ([1.83, 2.08, 1.83, 2.08], [8.0, 8.0, 8.0, 8.0])
    """
    from scipy.special import digamma, polygamma

    count = arrays.vector(freedom, "freedom")
    raw = arrays.vector(variances, "variances", count=len(count))
    if len(raw) < 2 or raw.min() < 0 or not 0 < raw.max() <= LARGEST or not 1 <= count.min() <= count.max() <= 1e9:
        raise ValueError(
            f"variances are {raw.min():g} to {raw.max():g} of {len(raw)} methods, freedom {count.min():g} to "
            f"{count.max():g}; expected at least two variances from 0, not all 0, and degrees of freedom from 1 to 1e9."
        )
    raw = np.maximum(raw, LEAST_SHARE_OF_MEAN * raw.mean())
    logs = np.log(raw) - digamma(count / 2) + np.log(count / 2)
    by_chance = float(polygamma(1, count / 2).mean())
    scatter = float(logs.var(ddof=1)) - by_chance
    scatter += math.sqrt(2 / (len(raw) - 1)) * (max(scatter, 0.0) + by_chance)
    most = float(count.sum() - count.max())
    weight = min(2 * _inverse_trigamma(scatter), most) if scatter > 1e-6 else most
    shared = math.exp(float(logs.mean()) + float(digamma(weight / 2)) - math.log(weight / 2))
    return np.maximum((weight * shared + count * raw) / (weight + count), raw), weight + count


def _inverse_trigamma(value: float) -> float:
    """Return the x whose trigamma function is `value`, by Newton's method (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x
