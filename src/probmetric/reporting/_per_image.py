"""What single test images contribute to a metric, as the evaluation of a run left it among its curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from probmetric.metrics.statistics import Doubles
    from probmetric.reporting.experiment import ReportContext

_ByMethod = dict[str, dict[int, "Doubles"]]


def image_values(context: ReportContext, data: str, metric: str) -> _ByMethod:
    """Method -> seed -> values of single test images (N,) whose mean is `metric`; empty where they were not kept."""
    group, _, name = metric.partition("/")
    found: _ByMethod = defaultdict(dict)
    for run in context.runs if group == "retrieval" else ():
        if run.key.data == data and (kept := run.curves.get(f"images/{name}")):
            found[run.key.variant][run.key.seed] = np.array(kept["value"], dtype=np.float64)
    return dict(found)


def image_errors(context: ReportContext, data: str, metric: str) -> dict[str, dict[int, float]]:
    """Method -> seed -> standard error of `metric` over the test images; empty where it was not estimated."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for run in context.runs:
        if run.key.data == data and (error := _error(run.curves.get("image_errors", {}), metric)) is not None:
            found[run.key.variant][run.key.seed] = error
    return dict(found)


def _error(known: Mapping[str, Sequence[float]], metric: str) -> float | None:
    """The standard error of a metric; of a mean over OOD sets (`ood/auroc`) the mean of theirs, which is no less."""
    if metric in known:
        return float(known[metric][0])
    group, _, kind = metric.partition("/")
    sets = [float(error[0]) for name, error in known.items() if name.startswith("ood/") and name.endswith(f"/{kind}")]
    return fmean(sets) if group == "ood" and "/" not in kind and sets else None
