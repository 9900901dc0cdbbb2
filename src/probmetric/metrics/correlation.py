"""Compute rank correlations of an uncertainty with a known quantity, and ranks of tied values."""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles
from probmetric.metrics.record import table

METRICS = table(
    "distortion",
    __name__,
    """
    spearman | Spearman (distortion strength) ↑ | rank correlation of the uncertainty with the strength of each image's
        distortion (`glyphs`); strength is not ambiguity, and the method `pixel_noise` is the floor
    """,
)


def spearman(first: Any, second: Any) -> float:
    """Return Spearman's rank correlation of two (N,) arrays; tied values share their mean rank. NaN if one is constant.

    With an uncertainty and a known ambiguity (both higher = harder), higher is better.

    Examples:
        >>> spearman([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
        0.5
    """
    x = arrays.vector(first, "first")
    y = arrays.vector(second, "second", count=len(x))
    a, b = average_ranks(x), average_ranks(y)
    a -= a.mean()
    b -= b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def average_ranks(values: Doubles) -> Doubles:
    """Return ranks 1..N of `values` (N,), ascending; tied values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[inverse]


def group_means(keys: Doubles, values: Doubles) -> Doubles:
    """Return `values` (N,) with each replaced by the mean over all entries that share its key.

    A sum over the first entries then is its expected value over all orders of tied keys.
    """
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return (np.bincount(inverse, weights=values) / counts)[inverse]
