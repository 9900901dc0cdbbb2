"""Detect out-of-distribution images by a scalar uncertainty.

The out-of-distribution set is the positive class, and a higher uncertainty means "out". `METRICS` defines the metrics.
`auprc` is the average precision, sum over thresholds of (R_n - R_{n-1}) P_n; it depends on the share of
out-of-distribution images, `base_rate`. Paper 003 reports `auprc_trapezoid`.

The set `unanswerable` holds test images that have no right answer in the gallery, such as people with one photograph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles
from probmetric.metrics.correlation import average_ranks
from probmetric.metrics.record import table

UNANSWERABLE = "unanswerable"

METRICS = table(
    "ood",
    __name__,
    """
    auroc | AUROC ↑ | P(an out-of-distribution image is less certain than an in-distribution image); ties count half
    auroc_{score} | AUROC ↑ | P(the answer to an out-of-distribution image is less certain than the answer to an
        in-distribution image), by this score of the answer
    scod_auroc | AUROC (errors and strangers) ↑ | P(a wrong answer, or the answer to an out-of-distribution image, is
        less certain than a right answer), by the own uncertainty | selective classification in the presence of
        strangers
    scod_auroc_{score} | AUROC (errors and strangers) ↑ | P(a wrong answer, or the answer to an out-of-distribution
        image, is less certain than a right answer), by this score of the answer
    auprc | AUPRC ↑ | average precision of finding the out-of-distribution images by their uncertainty
    auprc_trapezoid | AUPRC (trapezoid) ↑ | area under the precision-recall curve whose points are joined by straight
        lines; too optimistic | paper 003
    fpr_at_95 | FPR@95 ↓ | share of in-distribution images flagged at the highest threshold of uncertainty that flags at
        least 95 % of the out-of-distribution images
    base_rate | | share of out-of-distribution images among all; the `auprc` of a random score
    """,
)


@dataclass(frozen=True)
class Curve:
    """Hold detection counts (T,) at each distinct threshold, most uncertain first."""

    true_positives: Doubles
    false_positives: Doubles
    positives: int
    negatives: int


def ood_metrics(id_uncertainty: Any, ood_uncertainty: Any) -> dict[str, float]:
    """Return metrics of detecting `ood_uncertainty` (P,) among `id_uncertainty` (N,); higher = less sure.

    Examples:
        >>> ood_metrics([0.1, 0.2, 0.3], [0.25, 0.9])["auroc"]
        0.8333333333333334
    """
    curve = _curve(id_uncertainty, ood_uncertainty)
    precision = curve.true_positives / (curve.true_positives + curve.false_positives)
    recall = curve.true_positives / curve.positives
    steps = np.diff(np.r_[0.0, recall])
    padded = np.r_[1.0, precision]
    share = curve.positives / (curve.positives + curve.negatives)
    reached = np.argmax(curve.true_positives >= 0.95 * curve.positives)
    return {
        "auroc": auroc(id_uncertainty, ood_uncertainty),
        "auprc": float(np.sum(steps * precision)),
        "auprc_trapezoid": float(np.sum(steps * (padded[1:] + padded[:-1]) / 2)),
        "fpr_at_95": float(curve.false_positives[reached] / curve.negatives),
        "base_rate": share,
    }


def auroc(negative_scores: Any, positive_scores: Any) -> float:
    """Return P(positive score > negative score) + P(equal) / 2 (Mann-Whitney), from (N,) and (P,) scores."""
    negative = arrays.vector(negative_scores, "negative scores")
    positive = arrays.vector(positive_scores, "positive scores")
    ranks = average_ranks(np.concatenate([positive, negative]))
    wins = ranks[: len(positive)].sum() - len(positive) * (len(positive) + 1) / 2
    return float(wins / (len(positive) * len(negative)))


def roc_curve(id_uncertainty: Any, ood_uncertainty: Any, *, points: int | None = None) -> dict[str, Doubles]:
    """Return the false and true positive rates, from (0,0) to (1,1), at no more than `points` points if that is given.

    Examples:
        >>> rates = roc_curve([0.1, 0.3], [0.2, 0.9])
        >>> rates["fpr"].tolist(), rates["tpr"].tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    if points is not None:
        arrays.check_count(points, "points")
    curve = _curve(id_uncertainty, ood_uncertainty)
    rates = {
        "fpr": np.r_[0.0, curve.false_positives / curve.negatives],
        "tpr": np.r_[0.0, curve.true_positives / curve.positives],
    }
    if points is None or len(rates["fpr"]) <= points:
        return rates
    progress = rates["fpr"] + rates["tpr"]
    kept = np.unique(np.searchsorted(progress, np.linspace(0.0, 2.0, points), side="left").clip(max=len(progress) - 1))
    return {name: values[kept] for name, values in rates.items()}


def _curve(id_uncertainty: Any, ood_uncertainty: Any) -> Curve:
    negative = arrays.vector(id_uncertainty, "id_uncertainty")
    positive = arrays.vector(ood_uncertainty, "ood_uncertainty")
    scores, inverse = np.unique(np.concatenate([positive, negative]), return_inverse=True)
    hits = np.bincount(inverse[: len(positive)], minlength=len(scores))[::-1]
    misses = np.bincount(inverse[len(positive) :], minlength=len(scores))[::-1]
    true, false = np.cumsum(hits).astype(np.float64), np.cumsum(misses).astype(np.float64)
    return Curve(true, false, len(positive), len(negative))
