"""Reliability diagrams: how often a prediction made with some confidence is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext

TITLE = "Reliability"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    found = _data.collect(
        context,
        lambda runs: _data.mean_curve([r.curves.get("reliability") for r in runs], "confidence", "accuracy", points=41),
    )
    if not found:
        return _style.nothing(TITLE, "no run of this experiment has class probabilities on a closed set.")
    figure = _lines.line_panels(
        context, {_data.group_title(data): curves for data, curves in found.items()}, _finish, panel_height=2.6
    )
    caption = (
        "Accuracy of predictions against their confidence, in bins, mean over seeds. On the dotted diagonal confidence "
        "means what it says; below it the method is overconfident, above it underconfident."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, found))


def _finish(axis: Axes) -> None:
    axis.plot([0, 1], [0, 1], ":", color="#888888", linewidth=1, zorder=1)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="confidence", ylabel="accuracy")
    axis.set_box_aspect(1)


def _alt(context: ReportContext, found: dict[str, dict[str, _data.Curve]]) -> str:
    parts = []
    for data, curves in found.items():
        for variant, (confidence, accuracy) in curves.items():
            gap = float(np.mean(accuracy - confidence))
            word = "above" if gap > 0 else "below"
            parts.append(f"{_data.group_title(data)}, {context.label(variant)}: on average {abs(gap):.2f} {word}")
    return f"Accuracy against confidence, relative to the diagonal. {'; '.join(parts)}."
