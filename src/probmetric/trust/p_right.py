"""Map the scores of an answer to P(right), the probability that it is right.

A map is fitted to labelled answers and applied to others. On other classes, or in another gallery, its numbers are
guesses.

P = 1 / (1 + exp(-(b + sum_j a_j z_j))), where z_j is score j, scaled to mean 0 and standard deviation 1 on the fitted
answers. The fit is maximum likelihood with a standard Gaussian prior on a (precision `PRIOR`); without it, a map from
few answers is too sure at both ends. b is free, so the mean of P is the share that is right. From `SQUARED_FROM`
answers on, sum_j c_j z_j^2 is added. z_j is then clipped to the fitted range, so that the wrong side of a parabola
never judges an answer outside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import scipy

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Doubles, Ints
from probmetric.metrics.calibration import EqualMass, calibration_error

PRIOR = 1.0
ROUNDING = 1e-9  # of its largest value: a score that spreads by less counts as constant
SQUARED_FROM = 500
REFUTED = 0.05
SMALLEST = 1e-12  # smaller probabilities count as this one
FOLDS = 5
BINS = 15
MOST_RESAMPLES = 1_000_000
LARGEST = float(np.finfo(np.float32).max)  # larger scores are clipped to it, so that their squares are finite


@dataclass(frozen=True)
class PRight:
    """Hold a fitted map; `probability` applies it.

    Attributes:
        scores: names of its scores, in the order of the columns.
        centre: (J,) mean of each score on the fitted answers.
        scale: (J,) standard deviation of each score on the fitted answers.
        weights: (J,) weights a.
        bias: b.
        answers: number of answers it was fitted to.
        squares: (J,) weights c of the squares; empty without them.
        low: (J,) smallest scaled score in the fit; smaller ones are clipped to it. Empty without squares.
        high: (J,) largest scaled score in the fit.
    """

    scores: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    answers: int
    squares: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def probability(self, scores: Mapping[str, Any]) -> Doubles:
        """Return P(right) (Q,) of answers with these `scores`, name -> (Q,); scores that the map lacks are ignored.

        Raises:
            ValueError: a score of the map is missing, or not finite.
        """
        missing = [name for name in self.scores if name not in scores]
        if missing:
            raise ValueError(f"P(right) was fitted with the score {missing[0]!r}; the answers have {sorted(scores)}.")
        z = (_columns({name: scores[name] for name in self.scores}) - self.centre) / self.scale
        if self.squares:
            z = np.clip(z, self.low, self.high)
            z = np.hstack([z, z**2])
        return np.asarray(scipy.special.expit(self.bias + z @ np.array(self.weights + self.squares)))

    def recalibrated(self, scores: Mapping[str, Any], right: Any) -> PRight:
        """Return the map with level a and slope c > 0 fitted to more answers: log-odds a + c l, where l are this map's.

        The order of answers stays the same, so certificates by either map answer the same queries. Where no c > 0 fits
        (all are right, all are wrong, or the order is bad), c stays 1, and the mean of P becomes the share of right
        answers, counting one more answer that is half right.
        """
        levels = scipy.special.logit(np.clip(self.probability(scores), SMALLEST, 1 - SMALLEST))
        truth = arrays.booleans(right, "right", count=len(levels))
        level, slope = _fit_logistic(np.stack([np.ones(len(levels)), levels], axis=1), truth, np.array([0.0, PRIOR]))
        if slope <= 0 or truth.min() == truth.max():
            share, slope = (truth.sum() + 0.5) / (len(truth) + 1), 1.0
            level = scipy.optimize.brentq(lambda a: scipy.special.expit(a + levels).mean() - share, -100, 100)
        weights, squares = (tuple(float(slope) * weight for weight in part) for part in (self.weights, self.squares))
        bias = float(level + slope * self.bias)
        return replace(self, bias=bias, weights=weights, squares=squares, answers=len(levels))

    def corrected(self, scores: Mapping[str, Any], right: Any) -> PRight:
        """Return the map recalibrated by other answers if these refute it, else the map as it is.

        They refute it if a true map reaches their likelihood ratio with a chance below `REFUTED`.

        Args:
            scores: name -> (N,) scores of the other answers.
            right: (N,) whether these answers are right.
        """
        truth = arrays.booleans(right, "right").astype(bool)
        moved = self.recalibrated(scores, truth)
        before, after = (np.where(truth, p, 1 - p) for p in (each.probability(scores) for each in (self, moved)))
        gained = np.log(np.maximum(after, SMALLEST) / np.maximum(before, SMALLEST)).sum()
        return moved if np.exp(-gained) < REFUTED else self  # twice the gain is chi-squared with 2 degrees of freedom

    def plain(self) -> dict[str, Any]:
        """Return the fields in types that JSON has; `PRight.of` reads them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> PRight:
        """Return the map from the fields that `plain` returned."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        p_right = cls(**fields)
        squared = (p_right.squares, p_right.low, p_right.high)
        parts = (p_right.centre, p_right.scale, p_right.weights, *(squared if squared != ((), (), ()) else ()))
        lists = all(isinstance(part, tuple) and len(part) == len(p_right.scores) for part in (p_right.scores, *parts))
        numbers: list[Any] = (
            [p_right.bias, p_right.answers, *(number for part in parts for number in part)] if lists else [None]
        )
        plain = all(type(number) in (int, float) and abs(number) <= sys.float_info.max for number in numbers)
        if not plain or not all(isinstance(name, str) for name in p_right.scores) or min(p_right.scale) <= 0:
            raise ValueError("a map to P(right) has one number for each of its scores")
        return p_right


def fit_p_right(scores: Mapping[str, Any], right: Any) -> PRight:
    """Fit the map from `scores`, name -> (N,), to `right` (N,) in {0, 1}.

    Raises:
        ValueError: no scores, lengths that differ, numbers that are not finite, only right or only wrong answers.

    Examples:
        >>> fitted = fit_p_right({"cosine": [0.9, 0.8, 0.3, 0.2, 0.7, 0.4]}, [1, 1, 0, 0, 0, 1])
        >>> fitted.probability({"cosine": [0.2, 0.9]}).round(1).tolist()
        [0.3, 0.7]
    """
    columns = _columns(scores)
    truth = arrays.booleans(right, "right", count=len(columns))
    if truth.min() == truth.max():
        raise ValueError(
            f"all {len(truth)} answers are {'right' if truth[0] else 'wrong'}; P(right) needs some of either kind."
        )
    centre, scale = columns.mean(axis=0), columns.std(axis=0)
    scale[scale <= ROUNDING * np.abs(columns).max(axis=0)] = 1.0  # a constant score says nothing about new answers
    z = (columns - centre) / scale
    squared = len(truth) >= SQUARED_FROM
    design = np.hstack([np.ones((len(z), 1)), z, z**2] if squared else [np.ones((len(z), 1)), z])
    prior = np.r_[0.0, np.full(design.shape[1] - 1, PRIOR)]
    bias, *weights = _fit_logistic(design, truth, prior).tolist()
    count = len(scores)
    return PRight(
        tuple(scores),
        tuple(centre.tolist()),
        tuple(scale.tolist()),
        tuple(weights[:count]),
        bias,
        len(truth),
        tuple(weights[count:]),
        *((tuple(z.min(axis=0).tolist()), tuple(z.max(axis=0).tolist())) if squared else ()),
    )


def _fit_logistic(design: Doubles, right: Any, precision: Doubles) -> Doubles:
    """Return the weights (J,) of a logistic regression with a Gaussian prior, by Newton steps.

    Args:
        design: (N, J) columns.
        right: (N,) zeros and ones.
        precision: (J,) precision of the prior, whose mean is 0; 0 for a weight without a prior.
    """

    def loss(weights: Doubles) -> float:
        logits = design @ weights
        return float(np.logaddexp(0, logits).sum() - right @ logits + precision @ weights**2 / 2)

    weights = np.zeros(design.shape[1])
    for _ in range(100):
        rate = scipy.special.expit(design @ weights)
        gradient = design.T @ (rate - right) + precision * weights
        curvature = design.T @ (design * (rate * (1 - rate))[:, None]) + np.diag(precision + 1e-9)
        step = np.linalg.solve(curvature, gradient)
        while np.abs(step).max() > 1e-6 and loss(weights - step) > loss(weights):
            step = step / 2
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def cross_fitted(scores: Mapping[str, Any], right: Any, groups: Any, *, seed: int = 0) -> Doubles:
    """Return P(right) (N,) of each answer, by a map fitted to answers of other `groups` (N,), such as classes.

    Raises:
        ValueError: fewer than 2 groups, or all answers outside some part are right, or all are wrong.
    """
    truth = arrays.booleans(right, "right", count=len(_columns(scores)))
    part = class_folds(groups, seed=seed)
    if part.shape != truth.shape:
        raise ValueError(f"groups has shape {part.shape}; expected {truth.shape}, one class for each answer.")
    stated = np.empty(len(truth))
    for fold in np.unique(part):
        out = part == fold
        inside, outside = ({name: arrays.to_numpy(v)[rows] for name, v in scores.items()} for rows in (~out, out))
        stated[out] = fit_p_right(inside, truth[~out]).probability(outside)
    return stated


def class_folds(groups: Any, *, seed: int = 0) -> Ints:
    """Return the part (N,) in 0..FOLDS-1 of each entry; all entries of a group in `groups` (N,) are in one part."""
    names, codes = arrays.names_of(groups, "groups")
    if len(names) < 2:
        raise ValueError(f"groups name {len(names)} class; class-disjoint parts need at least 2.")
    order = arrays.generator(seed).permutation(len(names))
    return (order % min(FOLDS, len(names)))[codes]


def p_right_metrics(probability: Any, right: Any, *, bins: int = BINS) -> dict[str, float]:
    """Measure how good stated probabilities (N,) are, for answers that are right or wrong, `right` (N,).

    nll is the mean -log of the probability stated for what happened; brier is the mean (p - right)^2; ece has `bins` of
    equal mass, L1; ece_floor is the mean ece of this number of answers if every stated probability were true.

    Examples:
        >>> metrics = p_right_metrics([0.5, 0.5, 0.5, 0.5], [1, 0, 1, 0])
        >>> metrics["brier"], metrics["ece"]
        (0.25, 0.0)
    """
    stated = arrays.vector(probability, "probability")
    truth = arrays.booleans(right, "right", count=len(stated))
    error = calibration_error(stated, truth, bins=bins)  # refuses numbers outside [0, 1]
    happened = np.where(truth == 1, stated, 1.0 - stated)
    return {
        "nll": float(-np.log(np.maximum(happened, 1e-12)).mean()),
        "brier": float(((stated - truth) ** 2).mean()),
        "ece": error,
        "ece_floor": ece_floor(stated, bins=bins),
    }


def ece_floor(probability: Doubles, *, bins: int = BINS, draws: int = 50, seed: int = 0) -> float:
    """Return the mean calibration error of `probability` (N,) for outcomes drawn with these probabilities."""
    generator, binned = arrays.generator(seed), EqualMass(arrays.vector(probability, "probability"), bins)
    drawn = (generator.random(len(probability)) < probability for _ in range(draws))
    return float(np.mean([binned.reliability(right).error("l1") for right in drawn]))


def added_auroc(
    free: Mapping[str, Any], own: Mapping[str, Any], right: Any, groups: Any, *, resamples: int = 200, seed: int = 0
) -> dict[str, float]:
    """Return how much `own` scores add to the `free` ones: difference of two error AUROCs, with a paired interval.

    Both maps are logistic and cross-fitted over the same class-disjoint parts; the AUROC is P(a wrong answer gets the
    lower P(right)), ties count half. The 95 % percentile interval is over bootstrap samples of classes, with these
    maps. Other classes would give other maps, so it leaves out the true gain more often than in 5 % of cases
    (`benchmarks/assumptions.py`).

    Args:
        free: name -> (N,) scores that every search returns.
        own: name -> (N,) scores of the method.
        right: (N,) whether the answers are right.
        groups: (N,) class of each query.
        resamples: number of bootstrap samples of the classes.
        seed: seed of the parts and of the bootstrap.

    Returns:
        `free` and `both`, the two AUROCs, `added`, their difference, `added_low` and `added_high`.
    """
    truth = arrays.booleans(right, "right")
    arrays.check_count(resamples, "resamples", most=MOST_RESAMPLES)
    for name, scores in {"free": free, "own": own}.items():
        arrays.check_mapping(scores, name)
    maps = [_Ranked(cross_fitted(scores, truth, groups, seed=seed), truth) for scores in (free, {**free, **own})]
    names, codes = arrays.names_of(groups, "groups")
    generator = arrays.generator(seed)
    drawn = (generator.integers(0, len(names), len(names)) for _ in range(resamples))
    times = (np.bincount(chosen, minlength=len(names))[codes] for chosen in drawn)
    pairs = np.array([[ranked.auroc(weight) for ranked in maps] for weight in times])
    low, high = np.nanpercentile(pairs[:, 1] - pairs[:, 0], [2.5, 97.5])
    alone, both = (ranked.auroc(np.ones(len(truth))) for ranked in maps)
    return {"free": alone, "both": both, "added": both - alone, "added_low": float(low), "added_high": float(high)}


class _Ranked:
    """Rank answers once by their P(right) (N,), to compute AUROCs with many weights."""

    def __init__(self, stated: Doubles, right: Doubles) -> None:
        self.level = np.unique(-stated, return_inverse=True)[1]
        self.wrong, self.right = np.flatnonzero(right == 0), np.flatnonzero(right == 1)

    def auroc(self, weight: Array) -> float:
        """Return P(a wrong answer gets the lower P(right)), ties half, by `weight` (N,); NaN if one kind is missing.

        Sums are of halves of whole numbers, so only the one division rounds.
        """
        count = int(self.level.max()) + 1
        wrong, right = (
            np.bincount(self.level[rows], weights=weight[rows], minlength=count) for rows in (self.wrong, self.right)
        )
        pairs = wrong.sum() * right.sum()
        return float(wrong @ (np.cumsum(right) - right / 2) / pairs) if pairs else float("nan")


def _columns(scores: Mapping[str, Any]) -> Doubles:
    if not isinstance(scores, Mapping) or not scores:
        raise ValueError("no scores were given; pass at least one by its name, such as {'cosine': values}.")
    first = next(iter(scores))
    count = len(arrays.vector(scores[first], first))
    columns = np.stack([arrays.vector(values, name, count=count) for name, values in scores.items()], axis=1)
    return np.clip(columns, -LARGEST, LARGEST)
