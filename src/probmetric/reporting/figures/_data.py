"""Runs -> the arrays figures draw: curves averaged over seeds, metrics by method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from probmetric.reporting._runs import Run
    from probmetric.reporting.experiment import ReportContext

Curve = tuple[np.ndarray, np.ndarray]


def group_title(data: str) -> str:
    """`glyphs+noise0.2` -> `glyphs, 20 % label noise`."""
    dataset, _, noise = data.partition("+noise")
    return f"{dataset}, {100 * float(noise):g} % label noise" if noise else dataset


def by_group(context: ReportContext) -> dict[str, dict[str, list[Run]]]:
    """Dataset (noise included) -> method -> its finished runs, in the experiment's order."""
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in context.runs:
        found[run.key.data][run.key.variant].append(run)
    return {data: dict(methods) for data, methods in found.items()}


def values(context: ReportContext, metric: str) -> dict[str, dict[str, list[float]]]:
    """Dataset -> method -> values of `metric` over seeds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(context.records, key=lambda record: record.key):
        if record.metric == metric and record.value is not None:
            found[record.key.data][record.key.variant].append(record.value)
    return {data: dict(methods) for data, methods in found.items()}


def mean_curve(curves: Iterable[Any], x: str, y: str, points: int = 101) -> Curve | None:
    """Mean over seeds of curves {x: [...], y: [...]}, on `points` places of their common range.

    Returns:
        (x (P,), y (P,)), or None where no curve has at least two finite points.
    """
    usable = [pair for pair in (_arrays(curve, x, y) for curve in curves) if pair is not None]
    if not usable:
        return None
    low = max(first[0] for first, _ in usable)
    high = min(first[-1] for first, _ in usable)
    if high <= low:
        return None
    places = np.linspace(low, high, points)
    return places, np.mean([np.interp(places, first, second) for first, second in usable], axis=0)


def _arrays(curve: Any, x: str, y: str) -> Curve | None:
    if not curve or x not in curve or y not in curve:
        return None
    first = np.array(curve[x], dtype=np.float64)
    second = np.array(curve[y], dtype=np.float64)
    finite = np.isfinite(first) & np.isfinite(second)
    first, second = first[finite], second[finite]
    order = np.argsort(first, kind="stable")
    return (first[order], second[order]) if len(first) > 1 else None


def methods_drawn(context: ReportContext, drawn: Iterable[str]) -> list[str]:
    """The drawn methods in the experiment's order."""
    known = set(drawn)
    return [variant for variant in context.variants if variant in known]


def collect(context: ReportContext, build: Callable[[Sequence[Run]], Curve | None]) -> dict[str, dict[str, Curve]]:
    """Dataset -> method -> curve built from that method's runs; what has no curve is left out."""
    found: dict[str, dict[str, Curve]] = {}
    for data, methods in by_group(context).items():
        curves = {variant: curve for variant, runs in methods.items() if (curve := build(runs)) is not None}
        if curves:
            found[data] = curves
    return found


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
