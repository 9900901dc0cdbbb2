"""Runs -> the arrays figures draw: curves averaged over seeds, metrics by method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from probmetric.metrics import better

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

Curve = tuple[np.ndarray, np.ndarray]
Line = TypeVar("Line")


def by_group(context: ReportContext) -> dict[str, dict[str, list[RunFolder]]]:
    """Dataset (noise included) -> method -> its finished runs, in the experiment's order."""
    groups: dict[str, dict[str, list[RunFolder]]] = defaultdict(lambda: defaultdict(list))
    for run in context.runs:
        groups[run.key.group][run.key.variant].append(run)
    return {data: dict(methods) for data, methods in groups.items()}


def first_runs(context: ReportContext, *names: str) -> dict[tuple[str, str], RunFolder]:
    """(dataset, method) -> its first seed whose test embeddings hold all tensors `names`, in the experiment's order."""
    first: dict[tuple[str, str], RunFolder] = {}
    for data, methods in by_group(context).items():
        for variant, runs in methods.items():
            if (run := next((run for run in runs if run.holds("test", *names)), None)) is not None:
                first[data, variant] = run
    return first


def best_runs(context: ReportContext, *names: str) -> dict[str, RunFolder]:
    """Dataset -> first seed of the method with the best mean of the first metric, of those in `first_runs`."""
    metric = context.metrics[0]
    measured = context.values(metric)
    best: dict[str, tuple[float, RunFolder]] = {}
    for (data, variant), run in first_runs(context, *names).items():
        if seeds := measured.get(data, {}).get(variant):
            mean = fmean(seeds.values())
            if data not in best or better(metric, mean, best[data][0]):
                best[data] = (mean, run)
    return {data: run for data, (_, run) in best.items()}


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


def collect(context: ReportContext, build: Callable[[Sequence[RunFolder]], Line | None]) -> dict[str, dict[str, Line]]:
    """Dataset -> method -> what `build` makes of that method's runs; what is None is left out."""
    lines: dict[str, dict[str, Line]] = {}
    for data, methods in by_group(context).items():
        built = {variant: line for variant, runs in methods.items() if (line := build(runs)) is not None}
        if built:
            lines[data] = built
    return lines


def mean_curves(context: ReportContext, name: str, x: str, y: str, *, points: int = 101) -> dict[str, dict[str, Curve]]:
    """Dataset -> method -> mean over seeds of the curve `name` of its runs (`mean_curve`)."""
    return collect(context, lambda runs: mean_curve([run.curves.get(name) for run in runs], x, y, points))
