"""Every metric of the table, by method: mean over seeds with its 95 % interval, and the seeds themselves."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

from matplotlib.axes import Axes

from probmetric.metrics import best, heading, label
from probmetric.reporting.comparison import summarise
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _style, register
from probmetric.reporting.results import Series, mean_of
from probmetric.reporting.words import group_title

_COLUMNS = (3, 4, 5)
_LETTERS, _LETTERS_BELOW = 34, 70  # in a line of names at the side; in all names below a row of panels
_WORDS = _style.Words(
    "Metrics by method",
    "Mean over seeds with the 95 % interval of the table (bar) and the single seeds (ticks). Each panel has its own "
    "scale. Overlapping intervals do not decide significance: the table's paired test does.",
    "no run of this experiment is finished.",
)


@register("metric_per_method")
def metric_per_method(context: ReportContext) -> _style.Drawing:
    """Draw one row of panels per dataset, one panel per metric; a method has the same height in every panel."""
    series = {metric: context.by_data(metric) for metric in context.metrics}
    measured = {data: [metric for metric in context.metrics if data in series[metric]] for data in context.data}
    measured = {data: metrics for data, metrics in measured.items() if metrics}
    if not measured:
        return _WORDS.nothing()
    columns = min(_COLUMNS, key=lambda number: sum(math.ceil(len(metrics) / number) for metrics in measured.values()))
    rows = [
        (data, metrics[start : start + columns])
        for data, metrics in measured.items()
        for start in range(0, len(metrics), columns)
    ]
    methods = {
        data: context.ordered(variant for datasets in series.values() for variant in datasets.get(data, {}))
        for data in measured
    }
    names = {data: [_wrapped(context.label(variant)) for variant in methods[data]] for data in measured}
    below = {metric: _wrapped(heading(metric), _LETTERS_BELOW // columns) for metric in context.metrics}
    heights = [
        0.75 + _line(names[data]) * len(methods[data]) + 0.14 * max(below[metric].count("\n") for metric in metrics)
        for data, metrics in rows
    ]
    figure, axes = _style.grid(
        len(rows), columns, panel_height=sum(heights) / len(heights), gridspec_kw={"height_ratios": heights}
    )
    looks = _style.looks(context.variants)
    for line, (data, metrics) in zip(axes, rows, strict=True):
        for axis, metric in zip(line, metrics, strict=False):
            _panel(axis, series[metric][data], methods[data], looks)
            axis.set_xlabel(below[metric])
            axis.set_yticks(range(len(methods[data])), [])
        for axis in line[len(metrics) :]:
            axis.set_visible(False)
        line[0].set_yticks(range(len(methods[data])), names[data], linespacing=0.95)
        line[0].set_title(group_title(data))
    return _WORDS.drawing(figure, _alt(context))


def _panel(axis: Axes, by_method: Mapping[str, Series], methods: list[str], looks: dict[str, _style.Look]) -> None:
    for place, variant in enumerate(methods):
        if variant not in by_method:
            continue
        seeds = list(by_method[variant].values.values())
        cell, colour = summarise(by_method[variant]), looks[variant].colour
        axis.plot(seeds, [place] * cell.n, "|", color=colour, alpha=0.55, markersize=7)
        axis.errorbar(cell.mean, place, xerr=cell.half_width, color=colour, marker="o", markersize=4.5, capsize=2)
    axis.set_ylim(len(methods) - 0.5, -0.5)
    axis.grid(visible=True, axis="x")
    axis.grid(visible=True, axis="y", linestyle=":", color="#EEEEEE")
    axis.locator_params(axis="x", nbins=2, min_n_ticks=2)
    axis.margins(x=0.12)
    low, high = axis.get_xlim()
    inside = [place for place in axis.get_xticks() if low <= place <= high]
    axis.set_xticks(inside[:: max(1, len(inside) - 1)])  # the first and the last: more would touch


def _wrapped(name: str, letters: int = _LETTERS) -> str:
    """Return a long name on several lines, so that the panels keep their room."""
    return "\n".join(textwrap.wrap(name, letters))


def _line(names: list[str]) -> float:
    """Return the inches between two methods."""
    return max(0.21, 0.07 + 0.12 * max(name.count("\n") + 1 for name in names))


def _alt(context: ReportContext) -> str:
    sentences = []
    metric = context.metrics[0]
    for data, by_method in context.ranked(metric).items():
        means = {variant: mean_of(series) for variant, series in by_method.items()}
        leader = best(metric, means)
        sentences.append(f"on {group_title(data)}, {context.label(leader)} has the best mean ({means[leader]:.3f})")
    return f"Dot plot of {len(context.metrics)} metrics. {label(metric)}: {'; '.join(sentences)}."
