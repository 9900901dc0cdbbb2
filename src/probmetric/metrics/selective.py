"""Measure selective prediction: does the model know which of its answers are wrong?

Sparsification removes the most uncertain images first; the accuracy of the others should rise. Paper 003 removes i %,
i = 0..98, and integrates the 99 accuracies by the trapezoid rule with dx = 1/99, which cannot exceed 98/99
(`scaling="as_published"`). The default divides by the width of the interval, so a model without errors gets 1. Where
images have equal uncertainty, areas and accuracies are means over all their orders. But `coverage_at_risk_5` needs a
threshold, which answers all images of equal uncertainty or none of them.

    ausc                    area under the sparsification curve
    ausc_as_published       ausc in paper 003's scaling
    ausc_gap_to_oracle      ausc of the order that removes all wrong answers first, minus ausc
    aurc                    mean over n = 1, ..., N of the error rate of the n surest answers (Geifman and El-Yaniv
                            2017)
    e_aurc                  aurc minus the aurc of the order that has all wrong answers last
    augrc                   area under the share of all images that are answered wrongly, against coverage (Traub et al.
                            2024)
    risk_at_coverage_80     error rate of the surest 80 %
    coverage_at_risk_5      largest coverage of a threshold on the uncertainty with at most 5 % of the answers given
                            wrong
    error_auroc             P(a wrong answer is less certain than a right one), 0.5 = chance. With uncertainty = -norm
                            it is paper 002's AUROC of the norm (right = positive, score = norm)
    accuracy_at_coverage_c  accuracy of the surest c % of the images

In retrieval, an answer is correct when the nearest neighbour is a positive (recall@1 of the query).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles
from probmetric.metrics.correlation import group_means
from probmetric.metrics.ood import auroc
from probmetric.metrics.record import table

STEPS = 99
COVERAGES = (50, 80, 90)

METRICS = table(
    "sparsification val/sparsification",
    __name__,
    """
    ausc | AUSC ↑ | area under accuracy against share of queries removed (0..98 %, most uncertain first), divided by the
        width of this range; 1 without errors
    ausc_as_published | AUSC (as published) ↑ | area under accuracy against share of queries removed, with steps of 1/99
        and so at most 98/99; the evaluate step takes the mean of the query's and its nearest image's uncertainty |
        paper 003
    ausc_as_published_empty_as_zero | AUSC (as published empty as zero) ↑ | `ausc_as_published`, where a query without
        positives counts as a wrong answer; the other rows leave such queries out | paper 003 as released
    ausc_query_and_neighbour | AUSC (query and neighbour) ↑ | `ausc` by the mean of the query's and its nearest image's
        uncertainty
    ausc_gap_to_oracle | AUSC gap to oracle ↓ | `ausc` of an order that removes all wrong answers first, minus `ausc`
    aurc | AURC ↓ | mean over n = 1, ..., N of the error rate of the n surest answers
    error_auroc | AUROC (error) ↑ | P(a wrong answer is less certain than a right answer); ties count half | paper 002's
        AUROC of the norm, with uncertainty = −norm
    error_auroc_{score} | AUROC (error) ↑ | P(a wrong answer is less certain than a right answer), by this score of the
        answer (`probmetric list scores`)
    augrc | AUGRC ↓ | area under the share of all queries that are answered wrongly, against coverage | Traub et al.
        2024
    e_aurc | E-AURC ↓ | `aurc` minus the `aurc` of an order that has all wrong answers last | Geifman et al. 2019
    risk_at_coverage_80 | Risk (at coverage 80) ↓ | error rate of the surest 80 % of the answers
    coverage_at_risk_5 | Share answered (5 % wrong) ↑ | largest share of queries that one threshold answers with at most
        5 % of these answers wrong
    accuracy_at_coverage_50, accuracy_at_coverage_80, accuracy_at_coverage_90 | Accuracy (at coverage {}) ↑ | accuracy
        of the surest 50 %, 80 % or 90 % of the answers
    """,
)


class SparsificationCurve(NamedTuple):
    """Hold the shares `removed` (99,) of the most uncertain images and the `accuracy` (99,) of the rest."""

    removed: Doubles
    accuracy: Doubles


def sparsification(
    uncertainty: Any, correct: Any, *, scaling: Literal["unit", "as_published"] = "unit"
) -> tuple[SparsificationCurve, float]:
    """Return the sparsification curve and the area under it (AUSC, higher is better).

    Args:
        uncertainty: (N,) higher = less sure; the highest are removed first.
        correct: (N,) 0 or 1, e.g. `retrieval_per_query(...)["recall_at_1"]`.
        scaling: "unit" (at most 1) or "as_published" (at most 98/99, paper 003).

    Examples:
        >>> curve, ausc = sparsification([0.9, 0.1, 0.2, 0.3], [0, 1, 1, 1])
        >>> float(curve.accuracy[0]), float(curve.accuracy[25])
        (0.75, 1.0)
    """
    arrays.check_choice(scaling, "scaling", ("unit", "as_published"))
    doubt = arrays.vector(uncertainty, "uncertainty")
    right = arrays.booleans(correct, "correct", count=len(doubt))
    kept_accuracy = accuracy_by_coverage(doubt, right)
    steps = np.arange(STEPS)
    kept = len(doubt) - (len(doubt) * steps) // 100
    accuracy = kept_accuracy[kept - 1]
    area = float(np.sum((accuracy[1:] + accuracy[:-1]) / 2))
    return SparsificationCurve(steps / 100.0, accuracy), area / (STEPS if scaling == "as_published" else STEPS - 1)


def accuracy_by_coverage(uncertainty: Doubles, correct: Doubles) -> Doubles:
    """Return the accuracy (N,) of the 1, 2, ..., N surest images, expected over the orders of equal uncertainties."""
    order = np.argsort(uncertainty, kind="stable")
    expected = group_means(uncertainty, correct)[order]
    return np.cumsum(expected) / np.arange(1, len(order) + 1)


def augrc(accuracy: Doubles) -> float:
    """Return the area under the generalised risk from the accuracies (N,) of the 1, 2, ..., N surest.

    The generalised risk is the share of all N images that are answered wrongly. Straight lines join it between
    coverages; it is 0 at coverage 0.

    Examples:
        >>> augrc(np.array([1.0, 0.5]))
        0.125
    """
    count = len(accuracy)
    given_and_wrong = np.r_[0.0, (1.0 - accuracy) * np.arange(1, count + 1) / count]
    return float(np.mean((given_and_wrong[1:] + given_and_wrong[:-1]) / 2))


def coverage_at(accuracy: Doubles, risk: float, uncertainty: Doubles) -> float:
    """Return the largest coverage of a threshold with an error rate of at most `risk`; 0 if no threshold has one.

    Args:
        accuracy: (N,) accuracy of the 1, ..., N surest images.
        risk: error rate.
        uncertainty: (N,) of the images, in any order; a threshold answers all of equal uncertainty, or none of them.

    Examples:
        >>> coverage_at(np.array([1.0, 1.0, 1.0, 0.75]), 0.05, np.array([0.1, 0.2, 0.3, 0.4]))
        0.75
        >>> coverage_at(np.array([1.0, 1.0, 1.0, 0.75]), 0.05, np.array([0.1, 0.2, 0.3, 0.3]))
        0.5
    """
    reached = np.diff(np.sort(uncertainty), append=np.inf) > 0
    kept = np.flatnonzero(reached & (1.0 - accuracy <= risk + 1e-12))
    return float((kept[-1] + 1) / len(accuracy)) if len(kept) else 0.0


def selective_metrics(uncertainty: Any, correct: Any, *, coverages: tuple[int, ...] = COVERAGES) -> dict[str, float]:
    """Return the module docstring's numbers for `uncertainty` (N,), higher = less sure, and `correct` (N,) in {0,1}.

    `error_auroc` is NaN when every answer is right or every answer is wrong. `coverages` are percentages.

    Examples:
        >>> metrics = selective_metrics([0.9, 0.1, 0.2, 0.3], [0, 1, 1, 1])
        >>> metrics["error_auroc"], metrics["accuracy_at_coverage_50"]
        (1.0, 1.0)
    """
    bad = [share for share in coverages if not 0 < share <= 100]
    if bad:
        raise ValueError(f"coverages contain {bad[0]}; expected percentages above 0 and up to 100.")
    doubt = arrays.vector(uncertainty, "uncertainty")
    right = arrays.booleans(correct, "correct", count=len(doubt))
    area = sparsification(doubt, right)[1]
    accuracy = accuracy_by_coverage(doubt, right)
    mixed = 0 < right.sum() < len(right)
    surest = {share: float(accuracy[max(1, int(np.ceil(len(doubt) * share / 100))) - 1]) for share in (*coverages, 80)}
    return {
        "ausc": area,
        "ausc_as_published": sparsification(doubt, right, scaling="as_published")[1],
        "ausc_gap_to_oracle": sparsification(1.0 - right, right)[1] - area,
        "aurc": float(np.mean(1.0 - accuracy)),
        "e_aurc": float(np.mean(accuracy_by_coverage(1.0 - right, right) - accuracy)),
        "augrc": augrc(accuracy),
        "risk_at_coverage_80": 1.0 - surest[80],
        "coverage_at_risk_5": coverage_at(accuracy, 0.05, doubt),
        "error_auroc": auroc(doubt[right == 1], doubt[right == 0]) if mixed else float("nan"),
    } | {f"accuracy_at_coverage_{share}": surest[share] for share in coverages}
