"""Runs -> the arrays figures draw: curves averaged over seeds, metrics by method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from probmetric.data.manifest import MANIFEST, read_table, values_of
from probmetric.io import present
from probmetric.metrics import best
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.results import mean_of
from probmetric.reporting.words import group_title
from probmetric.retrieval import search
from probmetric.runs.folder import RunFolder
from probmetric.runs.roles import Asked, Roles

Curve = tuple[np.ndarray, np.ndarray]
Line = TypeVar("Line")


def first_runs(context: ReportContext, *names: str) -> dict[tuple[str, str], RunFolder]:
    """Return (dataset, method) -> first seed whose test embeddings hold all tensors `names`, in order."""
    first: dict[tuple[str, str], RunFolder] = {}
    for data, methods in context.methods.items():
        for variant, runs in methods.items():
            if (run := next((run for run in runs if run.holds("test", *names)), None)) is not None:
                first[data, variant] = run
    return first


def best_runs(context: ReportContext, *names: str) -> dict[str, RunFolder]:
    """Return dataset -> first seed of the method with the best mean of the first metric, of those in `first_runs`."""
    metric, first, runs = context.metrics[0], first_runs(context, *names), {}
    for data, methods in context.ranked(metric).items():
        means = {variant: mean_of(series) for variant, series in methods.items() if (data, variant) in first}
        if means:
            runs[data] = first[data, best(metric, means)]
    return runs


def mean_curve(curves: Iterable[Any], x: str, y: str, points: int = 101) -> Curve | None:
    """Return the mean over seeds of curves {x: [...], y: [...]}, on `points` places of their common range.

    Returns:
        (x (P,), y (P,)), or None if no curve has at least two finite points.
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
    """Return title of the dataset -> method -> result of `build` for that method's runs; None is left out."""
    lines: dict[str, dict[str, Line]] = {}
    for data, methods in context.methods.items():
        built = {variant: line for variant, runs in methods.items() if (line := build(runs)) is not None}
        if built:
            lines[group_title(data)] = built
    return lines


def mean_curves(context: ReportContext, name: str, x: str, y: str, *, points: int = 101) -> dict[str, dict[str, Curve]]:
    """Return title of the dataset -> method -> mean over seeds of the curve `name` of its runs (`mean_curve`)."""
    return collect(context, lambda runs: mean_curve([run.curves.get(name) for run in runs], x, y, points))


def sides(context: ReportContext, data: str, test: Mapping[str, np.ndarray]) -> Asked:
    """Return the test images that ask and those they search: queries in a gallery without junk, or all among all.

    Args:
        context: the experiment.
        data: a dataset of it.
        test: `index` (N,) and `label` (N,) of the test images.
    """
    folder, names = context.prepared / data, ("split", "role", "group")
    table = read_table(folder, ["split"], optional=names)[0] if present(folder / MANIFEST) else None
    roles = table and Roles.of({name: values_of(table, name) for name in names if name in table.column_names})
    if not roles:
        every = np.arange(len(test["index"]))
        return Asked(every, every, np.stack([every, every], axis=1))
    among = roles.among(test["index"], test["label"])
    kept = test["label"][among.gallery] >= 0
    pairs = among.ignored[kept[among.ignored[:, 1]]]
    return Asked(among.queries, among.gallery[kept], np.stack([pairs[:, 0], (kept.cumsum() - 1)[pairs[:, 1]]], axis=1))


def nearest(mean: np.ndarray, protocol: Asked, rows: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (Q, K) of the images nearest to each of some queries, and their cosines (Q, K), `most` or fewer.

    Args:
        mean: unit rows (N, M).
        protocol: which rows ask, and which rows they search.
        rows: some of the queries (Q,).
        most: longest list.
    """
    number = np.full(len(mean), -1)
    number[rows] = np.arange(len(rows))
    query = number[protocol.queries[protocol.ignored[:, 0]]]
    pairs = np.stack([query, protocol.ignored[:, 1]], axis=1)[query >= 0]
    k = min(most, len(protocol.gallery) - np.bincount(pairs[:, 0]).max(initial=0))
    if k < 1 or not len(rows):
        return np.empty((len(rows), 0), dtype=np.int64), np.empty((len(rows), 0))
    matches = search(mean[rows], mean[protocol.gallery], k=k, ignore=pairs)
    return protocol.gallery[matches.rows], matches.cosines
