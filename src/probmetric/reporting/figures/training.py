"""Learning curves: training loss and validation metric by epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _data, _lines, _style, register
from probmetric.reporting.words import group_title
from probmetric.runs.folder import RunFolder

COLUMNS = {"train_loss": "change of the loss", "val_metric": "validation metric"}
_WORDS = _style.Words(
    "Learning curves",
    "Training loss: its change since the first epoch, divided by the largest; -1 is as low as it came. Losses of "
    "different methods have no common scale, and some are negative. The validation metric selects the weights. Line: "
    "mean over seeds; band: lowest to highest.",
    "no run of this experiment has a training history.",
)
_Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@register("learning_curves")
def learning_curves(context: ReportContext) -> _style.Drawing:
    """One row per dataset: change of the training loss since the first epoch, and the validation metric."""
    bands = {column: _data.collect(context, lambda runs, column=column: _band(runs, column)) for column in COLUMNS}  # type: ignore[misc]
    drawn = {title for methods in bands.values() for title in methods}
    titles = [title for title in map(group_title, context.data) if title in drawn]
    if not titles:
        return _WORDS.nothing()
    panels = {
        f"{title}: {name}": bands[column][title]
        for title in titles
        for column, name in COLUMNS.items()
        if title in bands[column]
    }
    figure = _lines.line_panels(context, panels, _epochs, columns=2, panel_height=1.95)
    return _WORDS.drawing(figure, _alt(context, bands["val_metric"]))


def _epochs(axis: Axes) -> None:
    axis.set(xlabel="epoch")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))


def _band(runs: Sequence[RunFolder], column: str) -> _Band | None:
    """Return (epochs (E,), mean (E,), lowest (E,), highest (E,)) over the epochs all seeds have."""
    curves = [curve for run in runs if (curve := _curve(run, column))]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not shared:
        return None
    table = np.array([[curve[epoch] for epoch in shared] for curve in curves])
    return np.array(shared), table.mean(0), table.min(0), table.max(0)


def _curve(run: RunFolder, column: str) -> dict[float, float]:
    """Return epoch -> value; of a loss the change since the first epoch, as a share of the largest."""
    curve = {
        epoch: value
        for row in run.history
        if (epoch := row.get("epoch")) is not None and (value := row[column]) is not None
    }
    if column != "train_loss" or not curve:
        return curve
    first = next(iter(curve.values()))
    largest = max(abs(value - first) for value in curve.values())
    return {epoch: (value - first) / (largest or 1.0) for epoch, value in curve.items()}


def _alt(context: ReportContext, validation: dict[str, dict[str, _Band]]) -> str:
    parts = []
    for title, bands in validation.items():
        label, highest = _lines.largest(context, {variant: band[1].max() for variant, band in bands.items()})
        parts.append(f"on {title}, {label} reaches the highest ({highest:.3f})")
    return f"Training loss and validation metric by epoch. Validation metric: {'; '.join(parts) or 'not recorded'}."
