"""P(right): from the scores of an answer to the probability that it is right.

A map is fitted to labelled answers and applied to others. It says what it was fitted on and how it did there, by
cross-fitting; on other classes, or another gallery, its numbers are guesses.

    logistic   P = 1 / (1 + exp(-(b + sum_j a_j z_j))), z_j the score, scaled to mean 0 and standard deviation 1 on the
               answers it was fitted to. Maximum likelihood with a weak Gaussian prior on a (precision `PRIOR`), so that
               separable answers do not send a to infinity; b is free, hence the mean of P is the share that is right.
               From `SQUARED_FROM` answers on sum_j c_j z_j^2 is added, z_j kept within what was fitted, so that an
               answer unlike all of them is not judged by the wrong side of a parabola
    isotonic   the monotone step function of one score with the least squared error (pool adjacent violators), joined
               linearly. Each end is pulled to (k + 1/2) / (n + 1), so that no answer is called certain
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.metrics.calibration import EqualMass, Reliability, calibration_error, reliability

Doubles = NDArray[np.float64]
Kind = Literal["logistic", "isotonic"]
PRIOR = 1e-2
SQUARED_FROM = 500
FOLDS = 5
BINS = 15


@dataclass(frozen=True)
class PRight:
    """A fitted map; `probability` applies it.

    Attributes:
        kind: logistic or isotonic.
        scores: names of its scores, in the order of the columns.
        centre: (J,) mean of each score where it was fitted.
        scale: (J,) standard deviation.
        weights: (J,) of the logistic map.
        squares: (J,) of its squares; empty without them.
        low: (J,) smallest scaled score where it was fitted; below it counts as it. Empty without squares.
        high: (J,) the largest.
        bias: of the logistic map.
        knots: ((score, probability), ...) of the isotonic map, scores ascending.
        answers: answers it was fitted to.
    """

    kind: Kind
    scores: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...] = ()
    bias: float = 0.0
    knots: tuple[tuple[float, float], ...] = ()
    answers: int = 0
    squares: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def probability(self, scores: Mapping[str, Any]) -> Doubles:
        """P(right) (Q,) of answers with these `scores`, name -> (Q,); others than its own are not read.

        Raises:
            ValueError: a score of the map is missing, or not finite.
        """
        missing = [name for name in self.scores if name not in scores]
        if missing:
            raise ValueError(f"P(right) was fitted with the score {missing[0]!r}; the answers have {sorted(scores)}.")
        columns = _columns({name: scores[name] for name in self.scores})
        if self.kind == "isotonic":
            places, heights = zip(*self.knots, strict=True)
            return np.interp(columns[:, 0], places, heights)
        z = (columns - self.centre) / self.scale
        if not self.squares:
            return _sigmoid(self.bias + z @ np.array(self.weights))
        z = np.clip(z, self.low, self.high)
        return _sigmoid(self.bias + z @ np.array(self.weights) + z**2 @ np.array(self.squares))

    def plain(self) -> dict[str, Any]:
        """Its fields as JSON has them; `PRight.of` reads them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> PRight:
        """The map that `plain` described."""
        named = ("scores", "centre", "scale", "weights", "squares", "low", "high")
        lists = {name: tuple(values.get(name, ())) for name in named}
        return cls(**{**values, **lists, "knots": tuple((float(x), float(y)) for x, y in values["knots"])})


def fit_p_right(scores: Mapping[str, Any], correct: Any, *, kind: Kind = "logistic") -> PRight:
    """Fit the map from `scores`, name -> (N,), to `correct` (N,) in {0, 1}.

    Raises:
        ValueError: no score, lengths that differ, numbers that are not finite, more than one score for isotonic, or
            answers that are all right or all wrong.

    Examples:
        >>> fitted = fit_p_right({"cosine": [0.9, 0.8, 0.3, 0.2, 0.7, 0.4]}, [1, 1, 0, 0, 0, 1])
        >>> fitted.probability({"cosine": [0.2, 0.9]}).round(1).tolist()
        [0.1, 0.9]
    """
    columns = _columns(scores)
    right = arrays.booleans(correct, "correct", count=len(columns))
    if right.min() == right.max():
        raise ValueError(
            f"all {len(right)} answers are {'right' if right[0] else 'wrong'}; P(right) needs some of either kind."
        )
    centre, scale = columns.mean(axis=0), columns.std(axis=0)
    scale[scale == 0] = 1.0
    named = tuple(scores)
    facts = (named, tuple(centre.tolist()), tuple(scale.tolist()))
    if kind == "isotonic":
        return PRight(kind, *facts, knots=_isotonic(named, columns, right), answers=len(right))
    z = (columns - centre) / scale
    squared = len(right) >= SQUARED_FROM
    weights = _logistic(np.hstack([z, z**2]) if squared else z, right).tolist()
    rest = {
        "squares": tuple(weights[1 + len(named) :]),
        "low": tuple(z.min(axis=0).tolist()),
        "high": tuple(z.max(axis=0).tolist()),
    }
    first = tuple(weights[1 : 1 + len(named)])
    return PRight("logistic", *facts, first, weights[0], answers=len(right), **(rest if squared else {}))


def cross_fitted(
    scores: Mapping[str, Any], correct: Any, groups: Any, *, kind: Kind = "logistic", folds: int = FOLDS, seed: int = 0
) -> Doubles:
    """P(right) (N,) of each answer by a map fitted to answers of other `groups` (N,) (classes), in `folds` parts.

    Raises:
        ValueError: fewer groups than 2, or a part without which the answers are all right or all wrong.
    """
    columns = _columns(scores)
    right = arrays.booleans(correct, "correct", count=len(columns))
    part = class_folds(groups, folds=folds, seed=seed)
    found = np.empty(len(right))
    for fold in np.unique(part):
        out = part == fold
        fitted = fit_p_right(_rows(scores, ~out), right[~out], kind=kind)
        found[out] = fitted.probability(_rows(scores, out))
    return found


def class_folds(groups: Any, *, folds: int = FOLDS, seed: int = 0) -> NDArray[np.int64]:
    """Part (N,) in 0..folds-1 of each entry; entries of one of the `groups` (N,) share theirs."""
    names, codes = np.unique(arrays.to_numpy(groups), return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"groups name {len(names)} class; class-disjoint parts need at least 2.")
    order = np.random.default_rng(seed).permutation(len(names))
    return (order % min(folds, len(names)))[codes]


def p_right_metrics(probability: Any, correct: Any, *, bins: int = BINS) -> dict[str, float]:
    """How good stated probabilities (N,) are, for answers that are right or wrong, `correct` (N,).

    nll mean -log of the probability of what happened; brier mean (p - correct)^2; ece by `bins` of equal mass, L1;
    ece_floor what `ece` would be on average, at this number of answers, if every stated probability were true.

    Examples:
        >>> found = p_right_metrics([0.5, 0.5, 0.5, 0.5], [1, 0, 1, 0])
        >>> found["brier"], found["ece"]
        (0.25, 0.0)
    """
    stated = arrays.vector(probability, "probability")
    right = arrays.booleans(correct, "correct", count=len(stated))
    happened = np.where(right == 1, stated, 1.0 - stated)
    return {
        "nll": float(-np.log(np.maximum(happened, 1e-12)).mean()),
        "brier": float(((stated - right) ** 2).mean()),
        "ece": calibration_error(stated, right, bins=bins),
        "ece_floor": ece_floor(stated, bins=bins),
    }


def ece_floor(probability: Doubles, *, bins: int = BINS, draws: int = 50, seed: int = 0) -> float:
    """Mean calibration error of `probability` (N,) against answers drawn with just these probabilities."""
    generator, binned = np.random.default_rng(seed), EqualMass(arrays.vector(probability, "probability"), bins)
    drawn = (generator.random(len(probability)) < probability for _ in range(draws))
    return float(np.mean([binned.reliability(right).error("l1") for right in drawn]))


def diagram(probability: Any, correct: Any, *, bins: int = BINS) -> Reliability:
    """The reliability diagram behind `p_right_metrics`' `ece`."""
    return reliability(probability, correct, bins=bins)


def added_auroc(
    free: Mapping[str, Any],
    own: Mapping[str, Any],
    correct: Any,
    groups: Any,
    *,
    resamples: int = 200,
    seed: int = 0,
) -> dict[str, float]:
    """What `own` scores add to the `free` ones: difference of two error AUROCs, with a paired interval.

    Both maps are logistic and cross-fitted over the same class-disjoint parts; the AUROC is P(a wrong answer gets the
    lower P(right)), ties half. The interval draws classes again, all answers of a class together: 95 %, percentile.

    Args:
        free: name -> (N,) scores that every search returns.
        own: name -> (N,) scores of the method.
        correct: (N,) whether the answers are right.
        groups: (N,) class of each query.
        resamples: bootstrap samples of the classes.
        seed: of the parts and of the bootstrap.

    Returns:
        `free` and `both`, the two AUROCs, `added`, their difference, `added_low` and `added_high`.
    """
    right = arrays.booleans(correct, "correct")
    maps = [_Ranked(cross_fitted(scores, right, groups, seed=seed), right) for scores in (free, {**free, **own})]
    names, codes = np.unique(arrays.to_numpy(groups), return_inverse=True)
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(0, len(names), len(names)) for _ in range(resamples))
    times = (np.bincount(chosen, minlength=len(names))[codes] for chosen in drawn)
    pairs = np.array([[ranked.auroc(weight) for ranked in maps] for weight in times])
    low, high = np.nanpercentile(pairs[:, 1] - pairs[:, 0], [2.5, 97.5])
    alone, both = (ranked.auroc(np.ones(len(right))) for ranked in maps)
    return {
        "free": alone,
        "both": both,
        "added": both - alone,
        "added_low": float(low),
        "added_high": float(high),
    }


class _Ranked:
    """Answers ranked once by their P(right) (N,), to be counted with many weights."""

    def __init__(self, stated: Doubles, right: Doubles) -> None:
        self.level = np.unique(-stated, return_inverse=True)[1]
        self.wrong, self.right = np.flatnonzero(right == 0), np.flatnonzero(right == 1)

    def auroc(self, weight: NDArray[Any]) -> float:
        """P(a wrong answer gets the lower P(right)), ties half, each answer counted `weight` (N,) times; NaN if none.

        Halves of whole numbers are added, so that the result is exact but for its one division.
        """
        count = int(self.level.max()) + 1
        wrong, right = (
            np.bincount(self.level[rows], weights=weight[rows], minlength=count) for rows in (self.wrong, self.right)
        )
        pairs = wrong.sum() * right.sum()
        return float(wrong @ (np.cumsum(right) - right / 2) / pairs) if pairs else float("nan")


def _rows(scores: Mapping[str, Any], kept: NDArray[np.bool_]) -> dict[str, Any]:
    return {name: arrays.to_numpy(values)[kept] for name, values in scores.items()}


def _columns(scores: Mapping[str, Any]) -> Doubles:
    if not scores:
        raise ValueError("no scores were given; pass at least one, such as cosine.")
    first = next(iter(scores.values()))
    count = len(arrays.to_numpy(first))
    return np.stack([arrays.vector(values, name, count=count) for name, values in scores.items()], axis=1)


def _sigmoid(values: Doubles) -> Doubles:
    return 1.0 / (1.0 + np.exp(-np.clip(values, -500, 500)))


def _logistic(columns: Doubles, right: Doubles, *, steps: int = 100) -> Doubles:
    """Bias and weights (1 + J,) of the greatest penalised likelihood, by Newton steps that are halved if need be."""
    design = np.hstack([np.ones((len(columns), 1)), columns])
    prior = np.diag([0.0] + [PRIOR] * columns.shape[1])
    weights = np.zeros(design.shape[1])
    weights[0] = np.log(right.mean() / (1 - right.mean()))

    def loss(candidate: Doubles) -> float:
        logits = design @ candidate
        return float(np.logaddexp(0, logits).sum() - right @ logits + candidate @ prior @ candidate / 2)

    for _ in range(steps):
        stated = _sigmoid(design @ weights)
        gradient = design.T @ (stated - right) + prior @ weights
        curvature = (design * (stated * (1 - stated))[:, None]).T @ design + prior
        curvature[np.diag_indices_from(curvature)] += 1e-9
        weights, moved = _downhill(loss, weights, np.linalg.solve(curvature, gradient))
        if moved < 1e-9:
            break
    return weights


def _downhill(loss: Callable[[Doubles], float], weights: Doubles, step: Doubles) -> tuple[Doubles, float]:
    """The point a whole Newton step away, or the first half of it that is not uphill, and how far it is."""
    here, size = loss(weights), 1.0
    while size > 1e-6 and loss(weights - size * step) > here:
        size /= 2
    return weights - size * step, float(np.abs(size * step).max())


def _isotonic(names: tuple[str, ...], columns: Doubles, right: Doubles) -> tuple[tuple[float, float], ...]:
    if len(names) != 1:
        raise ValueError(f"isotonic maps take one score, not {len(names)} ({', '.join(names)}); use logistic.")
    score = columns[:, 0]
    rising = np.corrcoef(score, right)[0, 1] >= 0
    places, codes, counts = np.unique(score if rising else -score, return_inverse=True, return_counts=True)
    blocks: list[list[float]] = []
    for place, hits, count in zip(places, np.bincount(codes, weights=right), counts, strict=True):
        blocks.append([place, place, hits, float(count)])
        while len(blocks) > 1 and blocks[-2][2] * blocks[-1][3] >= blocks[-1][2] * blocks[-2][3]:
            first, _, hits_before, count_before = blocks.pop(-2)
            blocks[-1] = [first, blocks[-1][1], blocks[-1][2] + hits_before, blocks[-1][3] + count_before]
    knots = [
        (edge, (hits + 0.5) / (count + 1)) for low, high, hits, count in blocks for edge in dict.fromkeys((low, high))
    ]
    heights = np.maximum.accumulate([height for _, height in knots])
    found = [(edge if rising else -edge, float(height)) for (edge, _), height in zip(knots, heights, strict=True)]
    return tuple(found if rising else found[::-1])
