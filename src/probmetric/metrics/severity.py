"""Show what stronger distortions do to answers, stated probabilities and uncertainties.

Answers are put in bins of equal mass by the strength of a distortion of their query; where there are few strengths,
each has its own bin. If an uncertainty notices the distortion, `rank` rises with it. If P(right) stays true, `stated`
equals `wrong` in every bin (Ovadia et al. 2019 draw such curves for shifted data).

    strength   mean of the bin
    wrong      share of wrong answers
    stated     mean of 1 - P(right), where it is given
    rank       mean rank of the own uncertainty among all answers, 0 surest, 1 least sure
    answers    number of answers
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles, Ints
from probmetric.metrics.correlation import average_ranks

# Columns of a manifest: 0 without this distortion, NaN if not measured; `distortion` is the strength of all together.
STRENGTHS = ("warp", "noise", "blur", "occlusion", "distortion")
BINS = 8


def by_severity(
    strength: Any, right: Any, doubt: Any, p_right: Any = None, *, bins: int = BINS
) -> dict[str, list[float]]:
    """Return the curves of the module docstring, each a list with one number per bin; empty without a known strength.

    Args:
        strength: (Q,) strength of the distortion of each query; NaN where it is not known.
        right: (Q,) whether the answer to each query is right.
        doubt: (Q,) uncertainty of each query.
        p_right: (Q,) stated probability that the answer is right, or None.
        bins: largest number of bins.

    Examples:
        >>> curves = by_severity([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], bins=2)
        >>> curves["strength"], curves["wrong"]
        ([0.15, 0.85], [0.0, 0.5])
    """
    measured = np.isfinite(np.asarray(strength, dtype=np.float64))
    if not measured.any():
        return {}
    severity = arrays.vector(np.asarray(strength)[measured], "strength")
    place = _bins(severity, bins)
    columns = {
        "strength": severity,
        "wrong": 1.0 - arrays.booleans(right, "right", count=len(measured))[measured],
        "rank": (average_ranks(arrays.vector(doubt, "doubt", count=len(measured))[measured]) - 1)
        / max(measured.sum() - 1, 1),
    }
    if p_right is not None:
        columns["stated"] = 1.0 - arrays.vector(p_right, "p_right", count=len(measured))[measured]
    count = np.bincount(place).astype(np.float64)
    means = {name: (np.bincount(place, weights=values) / count).round(6).tolist() for name, values in columns.items()}
    return means | {"answers": count.tolist()}


def _bins(severity: Doubles, bins: int) -> Ints:
    """Return the bin (Q,) of each strength, 0 the weakest; with few strengths, each has one bin."""
    values, place = np.unique(severity, return_inverse=True)
    if len(values) <= bins:
        return place.astype(np.int64)
    bin_of = np.empty(len(severity), dtype=np.int64)
    bin_of[np.argsort(severity, kind="stable")] = np.arange(len(severity)) * bins // len(severity)
    return np.unique(bin_of, return_inverse=True)[1].astype(np.int64)
