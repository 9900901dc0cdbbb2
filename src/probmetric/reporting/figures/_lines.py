"""Panels of lines: one line per method, or, for many methods, one panel per method with the others in grey."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _style

FEW = 6  # methods that are told apart by colour and dash in one panel
_COLUMNS = 6
_SPARSE = 6  # points; fewer are marked one by one
_LEFT, _GAP, _PANEL, _HEAD, _LINE, _FOOT = 0.5, 0.2, 0.75, 0.28, 0.11, 0.48  # inches
_TYPE, _LETTERS = 6.5, 20  # points; letters that fit above a panel
_GREY = "#C9CED4"


Panels = Mapping[str, Mapping[str, Sequence[np.ndarray]]]  # title -> method -> (x (P,), y (P,)[, low (P,), high (P,)])
Dots = Mapping[str, Mapping[str, tuple[float, float, str]]]  # title -> method -> (x, y, words)
SQUARE = {"xlim": (-0.02, 1.02), "ylim": (-0.02, 1.02), "box_aspect": 1}


def drawing(
    context: ReportContext,
    words: _style.Words,
    panels: Panels,
    axes: Mapping[str, Any],
    say: Callable[[str, Any], str],
    **options: Any,
) -> _style.Drawing:
    """Draw panels of lines, or say in words that there are none.

    Args:
        context: the experiment.
        words: words about the figure; clauses about the panels follow its `alt`.
        panels: the lines to draw.
        axes: limits and labels of a panel, as `Axes.set` takes them; a `SQUARE` panel also shows the diagonal.
        say: title of a panel and its lines -> a clause for the text alternative, or "".
        options: options of `line_panels`.
    """
    if not panels:
        return words.nothing()

    def finish(axis: Axes) -> None:
        if "box_aspect" in axes:
            axis.plot([0, 1], [0, 1], ":", color="#888888", linewidth=1, zorder=1)
        axis.set(**axes)

    figure = line_panels(context, panels, finish, **options)
    clauses = [say(title.replace("\n", " "), lines) for title, lines in panels.items()]
    return words.drawing(figure, f"{words.alt}{'; '.join(filter(None, clauses))}.")


def largest(context: ReportContext, values: Mapping[str, float]) -> tuple[str, float]:
    """Return the label of the method with the largest value, and the value."""
    variant = max(values, key=values.__getitem__)
    return context.label(variant), values[variant]


def line_panels(
    context: ReportContext,
    panels: Panels,
    finish: Callable[[Axes], Any],
    *,
    columns: int = 3,
    panel_height: float = 2.3,
    dots: Dots | None = None,
) -> Figure:
    """Draw title -> method -> line: one panel per title and a legend, or small multiples if there are many methods.

    Args:
        context: the experiment, for labels and the order of methods.
        panels: title of the panel -> method -> (x (P,), y (P,)[, low (P,), high (P,)]).
        finish: sets the limits and the axis labels of a panel.
        columns: most panels in a row.
        panel_height: inches.
        dots: title -> method -> a place to mark on its line, and the panel's words about it.
    """
    variants = context.ordered(variant for curves in panels.values() for variant in curves)
    if len(variants) > FEW:
        return small_multiples(context, panels, finish, dots or {})
    looks = _style.looks(context.variants)
    labels = [context.label(variant) for variant in variants]
    figure, axes = _style.panels(len(panels), columns, panel_height=panel_height, named=labels)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for variant in variants:
            if variant in curves:
                _line(axis, curves[variant], looks[variant])
        _mark(axis, (dots or {}).get(title, {}), looks)
        axis.set_title(title)
        finish(axis)
    _style.method_legend(figure, context, variants, looks)
    return figure


def small_multiples(
    context: ReportContext,
    blocks: Panels,
    finish: Callable[[Axes], Any],
    dots: Dots,
) -> Figure:
    """Draw title -> method -> (x (P,), y (P,)[, low (P,), high (P,)]): a block of panels per title, on common axes.

    Args:
        context: the experiment, for labels and the order of methods.
        blocks: the lines to draw; a block's panels share their axes.
        finish: sets the limits and the axis labels of a panel.
        dots: title -> method -> a place to mark on its line, and the panel's words about it.
    """
    looks = _style.looks(context.variants)
    names = {
        title: {variant: textwrap.wrap(context.label(variant), _LETTERS) for variant in context.ordered(curves)}
        for title, curves in blocks.items()
    }
    rows = {title: math.ceil(len(methods) / _COLUMNS) for title, methods in names.items()}
    heights = [_HEAD + _FOOT + rows[title] * (_above(names[title]) + _PANEL) for title in names]
    figure = Figure(figsize=(_style.WIDTH, sum(heights)))
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, height, (title, curves) in zip(parts, heights, blocks.items(), strict=True):
        part.text(0.01, 1 - 0.05 / height, title, va="top", fontsize=9, fontweight="bold")
        axes = _panels(part, height, names[title])
        for axis, (variant, words) in zip(axes, names[title].items(), strict=True):
            _panel(axis, curves, variant, looks[variant])
            _mark(axis, {name: dot for name, dot in dots.get(title, {}).items() if name == variant}, looks)
            axis.set_title("\n".join(words), fontsize=_TYPE, fontweight="normal", pad=2)
            finish(axis)
        part.text(0.5, 0.08 / height, axes[0].get_xlabel(), ha="center", fontsize=_TYPE + 0.5)
        part.text(0.01, 0.5, axes[0].get_ylabel(), va="center", rotation=90, fontsize=_TYPE + 0.5)
        for axis in axes:
            axis.set(xlabel="", ylabel="")
    return figure


def _above(names: Mapping[str, Sequence[str]]) -> float:
    """Return the inches above a panel for the label of its method; `names` holds the labels' lines."""
    return _LINE * max(map(len, names.values())) + 0.08


def _panels(part: SubFigure, height: float, names: Mapping[str, Sequence[str]]) -> list[Axes]:
    """Make the panels of a block on common axes, with numbers left of every row and below every column."""
    above, side = _above(names), (_style.WIDTH - _LEFT - _GAP * _COLUMNS) / _COLUMNS
    places = {
        "left": _LEFT / _style.WIDTH,
        "right": 1 - _GAP / _style.WIDTH,
        "top": 1 - (_HEAD + above) / height,
        "bottom": _FOOT / height,
        "wspace": _GAP / side,
        "hspace": above / _PANEL,
    }
    rows = math.ceil(len(names) / _COLUMNS)
    grid = part.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False, gridspec_kw=places)
    axes = _style.first(list(grid.flat), len(names))
    for axis in axes[-_COLUMNS:]:
        axis.tick_params(labelbottom=True, which="both")
    return axes


def _line(axis: Axes, curve: Sequence[np.ndarray], look: _style.Look, **options: Any) -> None:
    x, y, *band = curve
    if band:
        axis.fill_between(x, band[0], band[1], color=look.colour, alpha=0.15, linewidth=0)
    marker = "o" if len(x) < _SPARSE else None
    axis.plot(x, y, color=look.colour, marker=marker, markersize=4, **{"linestyle": look.dash} | options)


def _mark(axis: Axes, dots: Mapping[str, tuple[float, float, str]], looks: Mapping[str, _style.Look]) -> None:
    for variant, (x, y, _) in dots.items():
        axis.plot(x, y, "o", color=looks[variant].colour, markersize=5, markeredgecolor="white", zorder=5)
    if words := ", ".join(dict.fromkeys(words for *_, words in dots.values())):
        axis.text(0.03, 0.95, words, transform=axis.transAxes, va="top", fontsize=_TYPE)


def _panel(axis: Axes, curves: Mapping[str, Sequence[np.ndarray]], variant: str, look: _style.Look) -> None:
    others = [np.column_stack(curve[:2]) for name, curve in curves.items() if name != variant]
    axis.add_collection(LineCollection(others, colors=_GREY, linewidths=0.5, zorder=1), autolim=False)
    _line(axis, curves[variant], look, linestyle="-", linewidth=1.6)
    axis.tick_params(labelsize=_TYPE, length=2)
    for ticks in (axis.xaxis, axis.yaxis):
        if ticks.get_scale() == "linear":
            ticks.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 2.5, 5, 10]))
