"""Ranks and group means over tied values: what rank statistics share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def average_ranks(values: Doubles) -> Doubles:
    """Ranks 1..N of `values` (N,), ascending; tied values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[inverse]


def group_means(keys: Doubles, values: Doubles) -> Doubles:
    """`values` (N,) with each replaced by the mean over all entries that share its key.

    What depends on the order of tied keys becomes its expected value over all orders.
    """
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return (np.bincount(inverse, weights=values) / counts)[inverse]
