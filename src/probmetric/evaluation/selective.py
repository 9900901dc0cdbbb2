"""Sparsification: does the model know which of its answers are wrong?

Images are removed from the most uncertain on; accuracy of the remainder should rise. Paper 003 removes i %, i = 0..98,
and integrates the 99 accuracies by the trapezoid rule with dx = 1/99, which cannot exceed 98/99 = 0.9899
(`scaling="as_published"`). The default divides by the width of the interval, so that a model without errors gets 1.
Images of equal uncertainty are interchangeable: the accuracies are means over all their orders.

In retrieval, an answer is correct when the nearest neighbour is a positive (recall@1 of the query).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probmetric.evaluation import _arrays
from probmetric.evaluation._ordering import group_means

Doubles = NDArray[np.float64]
STEPS = 99


class SparsificationCurve(NamedTuple):
    """Share `removed` (99,) of the most uncertain images and `accuracy` (99,) of the rest."""

    removed: Doubles
    accuracy: Doubles


def sparsification(
    uncertainty: Any, correct: Any, *, scaling: Literal["unit", "as_published"] = "unit"
) -> tuple[SparsificationCurve, float]:
    """Sparsification curve and the area under it (AUSC, higher is better), from (N,) and (N,) arrays.

    Args:
        uncertainty: higher = less sure; those are removed first.
        correct: 0 or 1, e.g. `retrieval_per_query(...)["recall_at_1"]`.
        scaling: "unit" (at most 1) or "as_published" (at most 98/99, paper 003).

    Example:
        >>> curve, ausc = sparsification([0.9, 0.1, 0.2, 0.3], [0, 1, 1, 1])
        >>> float(curve.accuracy[0]), float(curve.accuracy[25])
        (0.75, 1.0)
    """
    if scaling not in ("unit", "as_published"):
        raise ValueError(f"scaling is {scaling!r}; allowed: 'unit', 'as_published'.")
    doubt = _arrays.vector(uncertainty, "uncertainty")
    right = _arrays.booleans(correct, "correct", count=len(doubt))
    kept_accuracy = accuracy_by_coverage(doubt, right)
    steps = np.arange(STEPS)
    kept = len(doubt) - (len(doubt) * steps) // 100
    accuracy = kept_accuracy[kept - 1]
    area = float(np.sum((accuracy[1:] + accuracy[:-1]) / 2))
    return SparsificationCurve(steps / 100.0, accuracy), area / (STEPS if scaling == "as_published" else STEPS - 1)


def accuracy_by_coverage(uncertainty: Doubles, correct: Doubles) -> Doubles:
    """Accuracy of the 1, 2, ..., N surest images (N,), as expected over the orders of equal uncertainties."""
    order = np.argsort(uncertainty, kind="stable")
    expected = group_means(uncertainty, correct)[order]
    return np.cumsum(expected) / np.arange(1, len(order) + 1)
