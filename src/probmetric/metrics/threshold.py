"""Measure threshold consistency: does one threshold of the distance serve every class equally well?

OPIS is the operating-point inconsistency score (Zhang et al. 2024, "Threshold-Consistent Margin Loss for Open-World
Deep Metric Learning", section 3) of Euclidean distances d between unit rows. For class i and threshold t:

    sensitivity   share of the pairs within the class with d <= t
    specificity   share of the pairs of one image of the class and one of another with d > t
    U_i(t)        their harmonic mean
    opis          mean over classes i and thresholds t of (U_i(t) - mean of U(t) over classes)^2

The 101 thresholds are evenly spaced, from the one that accepts 1 % of the pairs of two classes to the one that accepts
10 %. Classes of one image have no pairs and are left out. OPIS is also low where all classes are equally bad: read it
beside accuracy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles, Floats, Ints
from probmetric.metrics.record import table

FALSE_ACCEPTS = (0.01, 0.10)
THRESHOLDS = 101
MOST = 2000  # images drawn to stand for all, or for a class: 60,000 images have 3.6e9 pairs

METRICS = table(
    "threshold",
    __name__,
    """
    opis | OPIS ↓ | variance over classes of the harmonic mean of sensitivity and specificity; mean over the thresholds
        that accept 1 to 10 % of the pairs of images of two classes | Zhang et al. 2024 (TCM)
    """,
)


def threshold_metrics(embeddings: Any, labels: Any, *, seed: int = 0) -> dict[str, float]:
    """Return OPIS of unit rows `embeddings` (N,M) with `labels` (N,).

    It is NaN with fewer than two classes that have two images.

    Args:
        embeddings: (N,M) unit rows.
        labels: (N,) whole numbers.
        seed: seed of the draw of `MOST` images, where there are more.

    Examples:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> threshold_metrics(rows, [0, 0, 1, 1])
        {'opis': 0.0}
    """
    rows = arrays.matrix(embeddings, "embeddings")
    arrays.check_unit_rows(rows, "embeddings")
    classes = arrays.labels_of(labels, len(rows), "labels", "embeddings")
    generator = np.random.default_rng(seed)
    names, counts = np.unique(classes, return_counts=True)
    if np.count_nonzero(counts > 1) < 2:
        return {"opis": math.nan}
    others = _drawn(np.arange(len(rows)), generator)
    first, second = np.triu_indices(len(others), 1)
    apart = classes[others[first]] != classes[others[second]]
    if not apart.any():
        return {"opis": math.nan}
    least, most = np.quantile(_distances(rows[others], rows[others])[first, second][apart], FALSE_ACCEPTS)
    thresholds = np.linspace(least, most, THRESHOLDS)
    utilities = []
    for name in names[counts > 1]:
        inside = rows[_drawn(np.flatnonzero(classes == name), generator)]
        outside = rows[others[classes[others] != name]]
        sensitivity = _accepted(_distances(inside, inside)[np.triu_indices(len(inside), 1)], thresholds)
        specificity = 1 - _accepted(_distances(inside, outside).ravel(), thresholds)
        both = sensitivity + specificity
        utilities.append(2 * sensitivity * specificity / np.where(both > 0, both, 1))
    return {"opis": float(np.var(utilities, axis=0).mean())}


def _drawn(rows: Ints, generator: np.random.Generator) -> Ints:
    """Return `rows`, or `MOST` random ones of them where there are more."""
    return rows if len(rows) <= MOST else np.sort(generator.choice(rows, MOST, replace=False))


def _distances(a: Floats, b: Floats) -> Doubles:
    """Return the Euclidean distances (A,B) of unit rows (A,M) and (B,M)."""
    return np.sqrt(np.maximum(2 - 2 * arrays.products(a, b).astype(np.float64), 0))


def _accepted(distances: Doubles, thresholds: Doubles) -> Doubles:
    """Return the share (T,) of `distances` (P,) that are at most each of the `thresholds` (T,)."""
    return np.searchsorted(np.sort(distances), thresholds, side="right") / len(distances)
