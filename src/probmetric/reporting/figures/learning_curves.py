"""Training loss and validation metric by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _style, register
from probmetric.reporting.figures._multiples import FEW, small_multiples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Learning curves"
_CAPTION = (
    "Training loss is divided by its value in the first epoch: losses of different methods have no common scale. The "
    "validation metric selects the weights. Line: mean over seeds; band: lowest to highest."
)
_Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One row per dataset: training loss relative to the first epoch, and the validation metric."""
    groups = {
        data: {variant: runs for variant, runs in methods.items() if any(run.history for run in runs)}
        for data, methods in _data.by_group(context).items()
    }
    groups = {data: methods for data, methods in groups.items() if methods}
    if not groups:
        return _style.nothing(TITLE, "no run of this experiment has a training history.")
    variants = _data.methods_drawn(context, {variant for methods in groups.values() for variant in methods})
    if len(variants) > FEW:
        return _style.Drawing(_multiples(context, groups), TITLE, _CAPTION, _alt(context, groups))
    known = _style.looks(context.variants)
    labels = [context.label(variant) for variant in variants]
    figure, axes = _style.grid(len(groups), 2, panel_height=1.95, named=labels)
    for (loss, metric), (data, methods) in zip(axes, groups.items(), strict=True):
        for variant in variants:
            if variant in methods:
                _line(loss, _band(methods[variant], "train_loss", relative=True), known[variant])
                _line(metric, _band(methods[variant], "val_metric"), known[variant])
        loss.set_title(_data.group_title(data))
        loss.set(xlabel="epoch", ylabel="loss / first epoch")
        metric.set(xlabel="epoch", ylabel="validation metric")
    _style.method_legend(figure, context, variants, known)
    return _style.Drawing(figure, TITLE, _CAPTION, _alt(context, groups))


def _multiples(context: ReportContext, groups: dict[str, dict[str, list[RunFolder]]]) -> Figure:
    """A panel per method, of the loss and of the validation metric on every dataset."""
    blocks: dict[str, dict[str, _Band]] = {}
    for data, methods in groups.items():
        for column, name in (("train_loss", "loss / first epoch"), ("val_metric", "validation metric")):
            bands = {variant: _band(runs, column, relative=column == "train_loss") for variant, runs in methods.items()}
            if found := {variant: band for variant, band in bands.items() if band is not None}:
                blocks[f"{_data.group_title(data)}: {name}"] = found
    return small_multiples(context, blocks, _epochs)


def _epochs(axis: Axes) -> None:
    axis.set_xlabel("epoch")


def _band(runs: Sequence[RunFolder], column: str, *, relative: bool = False) -> _Band | None:
    """(epochs (E,), mean (E,), lowest (E,), highest (E,)) over the epochs all seeds have."""
    curves = [_curve(run, column, relative=relative) for run in runs]
    curves = [curve for curve in curves if curve]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not shared:
        return None
    table = np.array([[curve[epoch] for epoch in shared] for curve in curves])
    return np.array(shared), table.mean(0), table.min(0), table.max(0)


def _curve(run: RunFolder, column: str, *, relative: bool) -> dict[float, float]:
    found = {row["epoch"]: row[column] for row in run.history if row.get("epoch") is not None}
    curve = {epoch: value for epoch, value in found.items() if epoch is not None and value is not None}
    first = next(iter(curve.values()), 0.0) if relative else 1.0
    return {epoch: value / first for epoch, value in curve.items()} if first else {}


def _line(axis: Axes, band: _Band | None, look: _style.Look) -> None:
    from matplotlib.ticker import MaxNLocator

    if band is None:
        return
    epochs, mean, low, high = band
    axis.fill_between(epochs, low, high, color=look.colour, alpha=0.14, linewidth=0)
    marker = "o" if len(epochs) == 1 else None
    axis.plot(epochs, mean, color=look.colour, linestyle=look.dash, marker=marker)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))


def _alt(context: ReportContext, groups: dict[str, dict[str, list[RunFolder]]]) -> str:
    parts = []
    for data, methods in groups.items():
        last = {v: band[1].max() for v, runs in methods.items() if (band := _band(runs, "val_metric")) is not None}
        if last:
            best = max(last, key=last.__getitem__)
            parts.append(f"on {_data.group_title(data)}, {context.label(best)} reaches the highest ({last[best]:.3f})")
    return f"Training loss and validation metric by epoch. Validation metric: {'; '.join(parts) or 'not recorded'}."
