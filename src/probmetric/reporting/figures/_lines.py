"""Panels of lines, one line per method, or a panel per method where they are many: the common part of curve figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from probmetric.reporting.figures import _data, _style
from probmetric.reporting.figures._multiples import FEW, small_multiples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probmetric.reporting.experiment import ReportContext


def line_panels(
    context: ReportContext,
    panels: Mapping[str, Mapping[str, _data.Curve]],
    finish: Callable[[Axes], None],
    *,
    columns: int = 3,
    panel_height: float = 2.3,
) -> Figure:
    """Draw title -> method -> curve: one panel per title and a legend, or small multiples of many methods.

    Args:
        context: the experiment, for labels and the order of methods.
        panels: title of the panel -> method -> (x (P,), y (P,)).
        finish: sets the limits and the axis labels of a panel.
        columns: most panels in a row.
        panel_height: inches.
    """
    variants = _data.methods_drawn(context, {variant for curves in panels.values() for variant in curves})
    if len(variants) > FEW:
        return small_multiples(context, panels, finish)
    known = _style.looks(context.variants)
    columns = min(columns, len(panels))
    labels = [context.label(variant) for variant in variants]
    figure, axes = _style.grid(math.ceil(len(panels) / columns), columns, panel_height=panel_height, named=labels)
    for axis, (title, curves) in zip(_style.trim(axes, len(panels)), panels.items(), strict=True):
        for variant in variants:
            if variant in curves:
                look = known[variant]
                axis.plot(*curves[variant], color=look.colour, linestyle=look.dash)
        axis.set_title(title)
        finish(axis)
    _style.method_legend(figure, context, variants, known)
    return figure


def reliability_panels(context: ReportContext, found: Mapping[str, Mapping[str, _data.Curve]]) -> Figure:
    """Dataset -> method -> (confidence (P,), accuracy (P,)), one panel per dataset, with the diagonal."""
    panels = {_data.group_title(data): curves for data, curves in found.items()}
    return line_panels(context, panels, _reliability_axes, panel_height=2.6)


def _reliability_axes(axis: Axes) -> None:
    axis.plot([0, 1], [0, 1], ":", color="#888888", linewidth=1, zorder=1)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="confidence", ylabel="accuracy")
    axis.set_box_aspect(1)
