"""Rank correlation of an uncertainty with something known."""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics._ordering import average_ranks


def spearman(first: Any, second: Any) -> float:
    """Spearman's rank correlation of two (N,) arrays; tied values share their mean rank. NaN if one is constant.

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
