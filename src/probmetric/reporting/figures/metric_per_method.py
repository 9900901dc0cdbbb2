"""Every metric of the table, by method: mean over seeds with its 95 % t-interval, and the seeds themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probmetric.reporting import _metrics
from probmetric.reporting._comparison import summarise
from probmetric.reporting.figures import _data, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext

TITLE = "Metrics by method"
_COLUMNS = 5


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One row of panels per dataset, one panel per metric; methods down the side."""
    values = {metric: _data.values(context, metric) for metric in context.metrics}
    panels = [(data, metric) for data in context.data for metric in context.metrics if data in values[metric]]
    if not panels:
        return _style.nothing(TITLE, "no run of this experiment is finished.")
    most = max(sum(data == first for first, _ in panels) for data in context.data)
    columns = math.ceil(most / math.ceil(most / _COLUMNS))
    rows = _rows(context, panels, columns)
    figure, axes = _style.grid(len(rows), columns, panel_height=0.75 + 0.21 * _most_methods(context))
    known = _style.looks(context.variants)
    for line, row in zip(axes, rows, strict=True):
        for axis in line[len(row) :]:
            axis.set_visible(False)
        for axis, (data, metric) in zip(line, row, strict=False):
            _panel(axis, context, values[metric][data], known, named=axis is line[0])
            axis.set_xlabel(_metrics.heading(metric))
        line[0].set_title(_data.group_title(row[0][0]))
    return _style.Drawing(figure, TITLE, _caption(), _alt(context))


def _rows(context: ReportContext, panels: list[tuple[str, str]], columns: int) -> list[list[tuple[str, str]]]:
    rows = []
    for data in context.data:
        mine = [panel for panel in panels if panel[0] == data]
        rows += [mine[start : start + columns] for start in range(0, len(mine), columns)]
    return rows


def _most_methods(context: ReportContext) -> int:
    return max(len({key.variant for key in context.expected if key.data == data}) for data in context.data)


def _panel(
    axis: Axes,
    context: ReportContext,
    by_method: dict[str, list[float]],
    known: dict[str, _style.Look],
    *,
    named: bool,
) -> None:
    variants = _data.methods_drawn(context, by_method)
    for place, variant in enumerate(variants):
        cell = summarise(by_method[variant])
        look = known[variant]
        axis.plot(by_method[variant], [place] * cell.n, "|", color=look.colour, alpha=0.55, markersize=7)
        axis.errorbar(cell.mean, place, xerr=cell.half_width, color=look.colour, marker="o", markersize=4.5, capsize=2)
    axis.set_yticks(range(len(variants)), [context.label(variant) for variant in variants] if named else [])
    axis.set_ylim(len(variants) - 0.5, -0.5)
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    axis.locator_params(axis="x", nbins=3)
    axis.margins(x=0.12)


def _caption() -> str:
    return (
        "Mean over seeds with the 95 % t-interval (bar) and the single seeds (ticks). Each panel has its own scale. "
        "Overlapping intervals do not decide significance: the table's paired test does."
    )


def _alt(context: ReportContext) -> str:
    sentences = []
    metric = context.metrics[0]
    for data, by_method in _data.values(context, metric).items():
        means = {variant: math.fsum(found) / len(found) for variant, found in by_method.items()}
        best = max(
            means, key=lambda variant: -means[variant] if _metrics.direction(metric) == "lower" else means[variant]
        )
        sentences.append(f"on {_data.group_title(data)}, {context.label(best)} has the best mean ({means[best]:.3f})")
    return f"Dot plot of {len(context.metrics)} metrics. {_metrics.label(metric)}: {'; '.join(sentences)}."
