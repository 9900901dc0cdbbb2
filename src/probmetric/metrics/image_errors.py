"""How far a number would move with other test images: its standard error over the images that were drawn.

mean_error   of a mean over images
auroc_error  of an AUROC (DeLong et al. 1988)
image_curves of what a retrieval evaluation keeps of its queries
resampled    of anything else, by drawing the images again
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.metrics.correlation import average_ranks

Doubles = NDArray[np.float64]


def image_curves(
    per_query: Mapping[str, Doubles], asked: NDArray[np.bool_], doubt: Doubles
) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
    """What single queries contribute to recall@1 and MAP@R, and standard errors over them.

    Args:
        per_query: of `retrieval_per_query`, name -> (Q,).
        asked: (Q,) queries with a positive.
        doubt: (Q,) uncertainty of each.

    Returns:
        Curves `images/<name>`, and errors of `retrieval/<name>` and `sparsification/error_auroc`; NaN where all answers
        are right, or all wrong.
    """
    curves, errors = {}, {}
    for name in ("recall_at_1", "map_at_r"):
        curves[f"images/{name}"] = {"value": per_query[name][asked].round(4).tolist()}
        errors[f"retrieval/{name}"] = mean_error(per_query[name][asked])
    errors["sparsification/error_auroc"] = error_of_auroc(doubt[asked], per_query["recall_at_1"][asked] == 0)
    return curves, errors


def error_of_auroc(doubt: Doubles, wrong: NDArray[np.bool_]) -> float:
    """Standard error of the AUROC of telling wrong answers (Q,) by `doubt` (Q,); NaN where all or none are wrong."""
    if not 0 < np.count_nonzero(wrong) < len(wrong):
        return float("nan")
    return auroc_error(doubt[~wrong], doubt[wrong])


def known_errors(errors: Mapping[str, float]) -> dict[str, list[float]]:
    """Standard errors that are numbers, as curves hold them."""
    return {name: [value] for name, value in errors.items() if math.isfinite(value)}


def mean_error(values: Any) -> float:
    """Standard error of the mean of `values` (N,); NaN for a single one.

    Examples:
        >>> mean_error([0.0, 1.0, 1.0, 0.0])
        0.28867513459481287
    """
    array = arrays.vector(values, "values")
    return float(array.std(ddof=1)) / len(array) ** 0.5 if len(array) > 1 else float("nan")


def auroc_error(negative_scores: Any, positive_scores: Any) -> float:
    """Standard error of the AUROC of (N,) and (P,) scores over both groups' images; NaN for a group of one.

    A perfect ranking of a few images is no proof of one: where the formula gives less, (1/2 of) one pair in the wrong
    order, 1 / (2 * smaller group), is assumed.

    Examples:
        >>> round(auroc_error([0.1, 0.2, 0.3, 0.4], [0.35, 0.8, 0.9]), 4)
        0.1667
    """
    negative = arrays.vector(negative_scores, "negative scores")
    positive = arrays.vector(positive_scores, "positive scores")
    if min(len(negative), len(positive)) < 2:
        return float("nan")
    joint = average_ranks(np.concatenate([positive, negative]))
    wins_of_positive = (joint[: len(positive)] - average_ranks(positive)) / len(negative)
    wins_of_negative = (joint[len(positive) :] - average_ranks(negative)) / len(positive)
    variance = wins_of_positive.var(ddof=1) / len(positive) + wins_of_negative.var(ddof=1) / len(negative)
    return max(float(np.sqrt(variance)), 0.5 / min(len(negative), len(positive)))


def resampled(
    measure: Callable[[NDArray[np.int64]], float], count: int, *, resamples: int = 200, seed: int = 0
) -> float:
    """Standard deviation of `measure(rows)` over bootstrap samples `rows` (N,) of `count` images.

    Examples:
        >>> values = np.arange(100.0)
        >>> round(mean_error(values), 1), round(resampled(lambda rows: values[rows].mean(), 100), 1)
        (2.9, 2.7)
    """
    generator = np.random.default_rng(seed)
    found = [measure(generator.integers(0, count, size=count)) for _ in range(resamples)]
    return float(np.std(found, ddof=1))
