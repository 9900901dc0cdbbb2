"""Seeds -> mean, interval, best method and which others cannot be told apart from it.

Methods are compared on the seeds they share (paired test), within one dataset and noise rate, each against the method
with the best mean; the p-values of one metric are corrected for the number of methods (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from probmetric.metrics import better, direction

LEVEL = 0.05


@dataclass(frozen=True)
class Cell:
    """One metric of one method over seeds.

    Attributes:
        mean: mean over seeds.
        half_width: half of the 95 % t-interval; None with a single seed.
        n: seeds with a value.
        best: the best mean of its dataset, noise rate and metric.
        tied: not significantly worse than the best.
        p_value: Holm-corrected p-value against the best; None for the best itself or where no test is possible.
        difference: mean paired difference to the best, None likewise.
    """

    mean: float
    half_width: float | None
    n: int
    best: bool = False
    tied: bool = False
    p_value: float | None = None
    difference: float | None = None


def summarise(values: Sequence[float]) -> Cell:
    """Mean and 95 % t-interval of the values of one method."""
    from probmetric.evaluation.statistics import mean_interval

    mean, half_width = mean_interval(values)
    return Cell(mean, None if math.isnan(half_width) else half_width, len(values))


def compare(metric: str, by_method: Mapping[str, Mapping[int, float]]) -> dict[str, Cell]:
    """Cells of one metric for the methods of one dataset and noise rate.

    Args:
        metric: name of the metric; decides which direction is better.
        by_method: method -> seed -> value; methods without values are left out of the answer.
    """
    cells = {method: summarise(list(seeds.values())) for method, seeds in by_method.items() if seeds}
    if direction(metric) == "none" or len(cells) < 2:
        return cells
    best = _best(metric, cells)
    tests = {method: _test(by_method[best], by_method[method]) for method in cells if method != best}
    adjusted = _holm({method: p for method, (p, _) in tests.items() if p is not None})
    for method, (_, difference) in tests.items():
        p_value = adjusted.get(method)
        same = cells[method].mean == cells[best].mean
        tied = same or (p_value is not None and p_value >= LEVEL)
        cells[method] = replace(cells[method], p_value=p_value, difference=difference, tied=tied)
    cells[best] = replace(cells[best], best=True)
    return cells


def _best(metric: str, cells: Mapping[str, Cell]) -> str:
    found = next(iter(cells))
    for method, cell in cells.items():
        if better(metric, cell.mean, cells[found].mean):
            found = method
    return found


def _test(best: Mapping[int, float], other: Mapping[int, float]) -> tuple[float | None, float | None]:
    """(p-value, mean difference other - best) over the shared seeds; no p-value with fewer than two."""
    from probmetric.evaluation.statistics import paired_test

    shared = sorted(set(best) & set(other))
    if not shared:
        return None, None
    result = paired_test([other[seed] for seed in shared], [best[seed] for seed in shared])
    return None if math.isnan(result.p_value) else result.p_value, result.difference


def _holm(p_values: Mapping[str, float]) -> dict[str, float]:
    from probmetric.evaluation.statistics import holm

    return dict(zip(p_values, holm(list(p_values.values())).tolist(), strict=True))
