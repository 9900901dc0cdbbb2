"""The statistics of a report, taken from `probmetric.evaluation.statistics`, on plain lists."""

from __future__ import annotations

import math
from collections.abc import Sequence


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """(mean, half-width of the 95 % t-interval); no interval with fewer than two values."""
    from scipy.special import stdtrit

    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, None
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)


def paired_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p-value of the paired t-test; 1 for equal values, 0 for a constant difference."""
    from scipy.special import stdtr

    differences = [a - b for a, b in zip(first, second, strict=True)]
    count = len(differences)
    mean = math.fsum(differences) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (count - 1))
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(count - 1, -abs(mean) / (deviation / math.sqrt(count))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
