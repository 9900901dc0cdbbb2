"""Compute what single units contribute to a metric, and how much another sample of units would change the metric.

A model for new classes is judged on a sample of classes, and a hard class is hard in all of its images. So the unit is
the class. Where test classes are training classes, the unit is the image. The mean of the contributions (U,) is the
metric. The spread of this mean is the spread of the metric over samples of units (linearised where units have different
numbers of images).

of_mean      contributions to a mean over images
of_auroc     contributions to an AUROC (DeLong et al. 1988; of clusters: Obuchowski 1997)
expanded     contributions of all units to a metric that was measured on some of them
mean_of      contributions to the mean of several metrics
error_of     standard error of the mean of contributions
resampled    standard error of any other metric, by drawing the units again
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles, Ints
from probmetric.metrics.correlation import average_ranks

Labels = Ints
Curves = dict[str, dict[str, list[float]]]
PREFIX, ERRORS, VALUE = "units/", "unit_errors", "value"
DIGITS = 6


@dataclass(frozen=True)
class Contributions:
    """Hold the contributions of units to a metric: ascending `labels` (U,), and `values` (U,) whose mean it is."""

    labels: Labels
    values: Doubles


class ByUnit:
    """Collect contributions and standard errors of the metrics of one set of images for the curves of a run.

    Args:
        unit: name of the units, `class` or `image`.
    """

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.contributions: dict[str, Contributions] = {}
        self.errors: dict[str, tuple[float, int]] = {}

    def add(self, metric: str, contributions: Contributions) -> None:
        """Keep the units' contributions to `metric` and the error of their mean, if there are two units or more."""
        if len(contributions.labels) > 1:
            self.contributions[metric] = contributions
            self.add_error(metric, error_of(contributions.values), len(contributions.labels))

    def add_auroc(self, metric: str, negative: Images, positive: Images) -> None:
        """Keep the units' contributions to the AUROC of two groups of images, if both have two images or more.

        A perfect ranking of a few images does not prove that the error is 0. So the standard error is at least
        1 / (2 * smaller group). Where the formula gives less, contributions are not kept, because they would say less.
        """
        smaller = min(len(negative.values), len(positive.values))
        if smaller < 2:
            return
        contributions = of_auroc(negative, positive)
        error, least = error_of(contributions.values), 0.5 / smaller
        if error >= least:
            self.add(metric, contributions)
        else:
            self.add_error(metric, least, len(contributions.labels))

    def add_error(self, metric: str, error: float, units: int) -> None:
        """Keep the standard error of `metric` over this number of units, if it is finite."""
        if math.isfinite(error):
            self.errors[metric] = (error, units)

    def merge(self, other: ByUnit) -> None:
        """Add all entries of `other`."""
        self.contributions |= other.contributions
        self.errors |= other.errors

    def curves(self) -> Curves:
        """Return curves `units/<metric>` (value, and the labels of the units) and `unit_errors` (error, units)."""
        curves: Curves = {
            f"{PREFIX}{metric}": {VALUE: each.values.round(DIGITS).tolist(), self.unit: each.labels.tolist()}
            for metric, each in self.contributions.items()
        }
        errors = {metric: [error, float(units)] for metric, (error, units) in self.errors.items()}
        return curves | ({ERRORS: errors} if errors else {})


@dataclass(frozen=True)
class Images:
    """Hold the values (N,) of images and the unit (N,) of each."""

    values: Doubles
    units: Labels

    @classmethod
    def of(cls, values: Any, units: Any, kept: Any = slice(None)) -> Images:
        """Return the images that are `kept`."""
        array = arrays.vector(values, "values")
        return cls(array[kept], arrays.vector(units, "units", count=len(array)).astype(np.int64)[kept])


def of_mean(images: Images) -> Contributions:
    """Return what each unit contributes to the mean of the images' values: U / N * sum(value - mean) + mean.

    Examples:
        >>> of_mean(Images.of([1.0, 1.0, 0.0, 1.0], [7, 7, 9, 9])).values.tolist()
        [1.0, 0.5]
    """
    labels, place = np.unique(images.units, return_inverse=True)
    mean = float(images.values.mean())
    sums = np.bincount(place, weights=images.values - mean, minlength=len(labels))
    return Contributions(labels, np.asarray(len(labels) / len(images.values) * sums + mean, dtype=np.float64))


def of_auroc(negative: Images, positive: Images) -> Contributions:
    """Return what each unit contributes to P(a positive scores higher than a negative); a unit may have images of both.

    An image's placement is the share of the other group that it ranks rightly against. A unit's contribution sums the
    placements of its images minus the mean placement, as in Obuchowski's estimate of the variance.

    Examples:
        >>> of_auroc(Images.of([0.1, 0.6], [0, 1]), Images.of([0.5, 0.9], [0, 1])).values.tolist()
        [0.75, 0.75]
    """
    joint = average_ranks(np.concatenate([positive.values, negative.values]))
    count = len(positive.values)
    of_positive = (joint[:count] - average_ranks(positive.values)) / len(negative.values)
    of_negative = 1.0 - (joint[count:] - average_ranks(negative.values)) / count
    labels, place = np.unique(np.concatenate([positive.units, negative.units]), return_inverse=True)
    area = float(of_positive.mean())
    moves = np.r_[(of_positive - area) / count, (of_negative - area) / len(negative.values)]
    values = area + len(labels) * np.bincount(place, weights=moves, minlength=len(labels))
    return Contributions(labels, np.asarray(values, dtype=np.float64))


def expanded(values: Doubles, labels: Sequence[int], every: Sequence[int]) -> Doubles:
    """Return the contributions of `every` unit to a metric that was measured on some of them, with the same mean.

    Args:
        values: contributions (U,) of the units that were measured.
        labels: labels (U,) of these units, ascending.
        every: labels of all units, ascending.

    Examples:
        >>> expanded(np.array([0.5, 1.0]), [3, 8], [3, 5, 8]).tolist()
        [0.375, 0.75, 1.125]
    """
    mean = float(values.mean())
    contributions = np.full(len(every), mean)
    contributions[np.searchsorted(every, labels)] += len(every) / len(labels) * (values - mean)
    return contributions


def mean_of(parts: Sequence[Contributions]) -> Contributions:
    """Return the contribution of each unit to the mean of metrics; a unit moves only the metrics it has a part in.

    Examples:
        >>> first, second = of_mean(Images.of([1, 0], [3, 4])), of_mean(Images.of([2, 0], [4, 5]))
        >>> mean_of([first, second]).values.tolist()
        [1.125, 1.125, 0.0]
    """
    labels = np.unique(np.concatenate([part.labels for part in parts]))
    moves = np.zeros(len(labels))
    for part in parts:
        centred = (part.values - part.values.mean()) / len(part.values)
        moves[np.searchsorted(labels, part.labels)] += centred / len(parts)
    mean = float(np.mean([part.values.mean() for part in parts]))
    return Contributions(labels, mean + len(labels) * moves)


def error_of(contributions: Any) -> float:
    """Return the standard error of the mean of `contributions` (U,); NaN for a single one.

    Examples:
        >>> error_of([0.0, 1.0, 1.0, 0.0])
        0.28867513459481287
    """
    array = arrays.vector(contributions, "contributions")
    return float(array.std(ddof=1)) / len(array) ** 0.5 if len(array) > 1 else float("nan")


def retrieval_units(per_query: Mapping[str, Doubles], asked: Bools, doubt: Images, unit: str) -> ByUnit:
    """Return the contributions of units to recall@1, MAP@R and the AUROC of the queries' doubt for wrong answers.

    Args:
        per_query: result of `retrieval_per_query`, name -> (Q,).
        asked: (Q,) queries with a positive.
        doubt: uncertainty and unit of each query.
        unit: name of the units.
    """
    by_unit = ByUnit(unit)
    for name in ("recall_at_1", "map_at_r"):
        by_unit.add(f"retrieval/{name}", of_mean(Images(per_query[name][asked], doubt.units[asked])))
    wrong = per_query["recall_at_1"] == 0
    by_unit.add_auroc("sparsification/error_auroc", *two_groups(doubt, asked & ~wrong, asked & wrong))
    return by_unit


def two_groups(images: Images, first: Bools, second: Bools) -> tuple[Images, Images]:
    """Return the images of two groups, each a mask (N,)."""
    return Images(images.values[first], images.units[first]), Images(images.values[second], images.units[second])


def resampled(measure: Callable[[Labels], float], units: Labels, *, resamples: int = 200, seed: int = 0) -> float:
    """Estimate the standard deviation of `measure(rows)` over bootstrap samples of units; `rows` are their images.

    Args:
        measure: function of rows of images, which returns a number; a unit's rows come as often as it was drawn.
        units: the unit (N,) of each image.
        resamples: number of samples.
        seed: seed of the draws.

    Examples:
        >>> values = np.arange(100.0)
        >>> round(error_of(values), 1), round(resampled(lambda rows: values[rows].mean(), np.arange(100)), 1)
        (2.9, 2.8)
    """
    generator = np.random.default_rng(seed)
    order = np.argsort(units, kind="stable")
    _, starts, sizes = np.unique(units[order], return_index=True, return_counts=True)
    values = []
    for _ in range(resamples):
        drawn = generator.integers(0, len(starts), size=len(starts))
        ends = sizes[drawn].cumsum()
        places = np.repeat(starts[drawn] + sizes[drawn] - ends, sizes[drawn]) + np.arange(ends[-1])
        values.append(measure(order[places]))
    count = len(starts)  # the bootstrap's variance of a mean of U is (U - 1) / U of the usual one
    return float(np.std(values, ddof=1)) * (count / (count - 1)) ** 0.5 if count > 1 else math.nan
