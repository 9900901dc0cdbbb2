"""Runs -> the arrays figures draw: curves averaged over seeds, metrics by method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.metrics import better
from probmetric.reporting._comparison import summarise
from probmetric.reporting._words import group_title

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

Curve = tuple[np.ndarray, np.ndarray]


def by_group(context: ReportContext) -> dict[str, dict[str, list[RunFolder]]]:
    """Dataset (noise included) -> method -> its finished runs, in the experiment's order."""
    found: dict[str, dict[str, list[RunFolder]]] = defaultdict(lambda: defaultdict(list))
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


def first_runs(context: ReportContext, *names: str) -> dict[tuple[str, str], RunFolder]:
    """(dataset, method) -> its first seed whose test embeddings hold all tensors `names`, in the experiment's order."""
    found: dict[tuple[str, str], RunFolder] = {}
    for data, methods in by_group(context).items():
        for variant, runs in methods.items():
            if (run := next((run for run in runs if run.holds("test", *names)), None)) is not None:
                found[data, variant] = run
    return found


def best_runs(context: ReportContext, *names: str) -> dict[str, RunFolder]:
    """Dataset -> first seed of the method with the best mean of the first metric, of those in `first_runs`."""
    metric = context.metrics[0]
    measured = values(context, metric)
    best: dict[str, tuple[float, RunFolder]] = {}
    for (data, variant), run in first_runs(context, *names).items():
        if found := measured.get(data, {}).get(variant):
            mean = summarise(found).mean
            if data not in best or better(metric, mean, best[data][0]):
                best[data] = (mean, run)
    return {data: run for data, (_, run) in best.items()}


def is_right(mean: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Whether the nearest neighbour of each of the unit rows `mean` (N, M) has its `label` (N,)."""
    from probmetric.retrieval import search

    return label[search(mean, k=1).rows[:, 0]] == label  # type: ignore[no-any-return]


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


def collect(
    context: ReportContext, build: Callable[[Sequence[RunFolder]], Curve | None]
) -> dict[str, dict[str, Curve]]:
    """Dataset -> method -> curve built from that method's runs; what has no curve is left out."""
    found: dict[str, dict[str, Curve]] = {}
    for data, methods in by_group(context).items():
        curves = {variant: curve for variant, runs in methods.items() if (curve := build(runs)) is not None}
        if curves:
            found[data] = curves
    return found


def reliability_curves(context: ReportContext, name: str) -> dict[str, dict[str, Curve]]:
    """Dataset -> method -> mean reliability curve `name`, (confidence (P,), accuracy (P,))."""
    return collect(
        context, lambda runs: mean_curve([r.curves.get(name) for r in runs], "confidence", "accuracy", points=41)
    )


def reliability_words(context: ReportContext, found: dict[str, dict[str, Curve]]) -> str:
    """Text alternative of reliability curves: how far each lies from the diagonal."""
    parts = []
    for data, curves in found.items():
        for variant, (confidence, accuracy) in curves.items():
            gap = float(np.mean(accuracy - confidence))
            word = "above" if gap > 0 else "below"
            parts.append(f"{group_title(data)}, {context.label(variant)}: on average {abs(gap):.2f} {word}")
    return f"Accuracy against confidence, relative to the diagonal. {'; '.join(parts)}."


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
