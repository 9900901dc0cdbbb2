"""Panels of lines, one line per method, or of many methods a panel each with all the others behind it in grey."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from probmetric.reporting.figures import _style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext

FEW = 6  # methods that are told apart by colour and dash in one panel
_COLUMNS = 6
_SPARSE = 6  # points; fewer are marked one by one
_LEFT, _GAP, _PANEL, _HEAD, _LINE, _FOOT = 0.5, 0.2, 0.75, 0.28, 0.11, 0.48  # inches
_TYPE, _LETTERS = 6.5, 20  # points; letters that fit above a panel
_GREY = "#C9CED4"


Panels = Mapping[str, Mapping[str, Sequence[np.ndarray]]]  # title -> method -> (x (P,), y (P,)[, low (P,), high (P,)])
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
        words: about the figure; its `alt` is followed by what is said of every panel.
        panels: what is drawn.
        axes: limits and labels of a panel, as `Axes.set` takes them; of a `SQUARE` one the diagonal is drawn.
        say: title of a panel and its lines -> a clause for the text alternative.
        options: of `line_panels`.
    """
    if not panels:
        return words.nothing()

    def finish(axis: Axes) -> None:
        if "box_aspect" in axes:
            axis.plot([0, 1], [0, 1], ":", color="#888888", linewidth=1, zorder=1)
        axis.set(**axes)

    figure = line_panels(context, panels, finish, **options)
    clauses = [say(title.replace("\n", " "), lines) for title, lines in panels.items()]
    return words.drawing(figure, f"{words.alt}{'; '.join(clauses)}.")


def largest(context: ReportContext, values: Mapping[str, float]) -> tuple[str, float]:
    """Return the label of the method with the largest value, and this."""
    variant = max(values, key=values.__getitem__)
    return context.label(variant), values[variant]


def line_panels(
    context: ReportContext,
    panels: Panels,
    finish: Callable[[Axes], Any],
    *,
    columns: int = 3,
    panel_height: float = 2.3,
    dots: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Figure:
    """Draw title -> method -> line: one panel per title and a legend, or small multiples of many methods.

    Args:
        context: the experiment, for labels and the order of methods.
        panels: title of the panel -> method -> (x (P,), y (P,)[, low (P,), high (P,)]).
        finish: sets the limits and the axis labels of a panel.
        columns: most panels in a row.
        panel_height: inches.
        dots: title -> method -> a place on its line to be marked.
    """
    variants = context.ordered(variant for curves in panels.values() for variant in curves)
    if len(variants) > FEW:
        return small_multiples(context, panels, finish, dots)
    looks = _style.looks(context.variants)
    columns = min(columns, len(panels))
    labels = [context.label(variant) for variant in variants]
    figure, axes = _style.grid(math.ceil(len(panels) / columns), columns, panel_height=panel_height, named=labels)
    for axis, (title, curves) in zip(_style.trim(axes, len(panels)), panels.items(), strict=True):
        for variant in variants:
            if variant in curves:
                _line(axis, curves[variant], looks[variant])
                _mark(axis, (dots or {}).get(title, {}).get(variant), looks[variant])
        axis.set_title(title)
        finish(axis)
    _style.method_legend(figure, context, variants, looks)
    return figure


def small_multiples(
    context: ReportContext,
    blocks: Panels,
    finish: Callable[[Axes], Any],
    dots: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Figure:
    """Draw title -> method -> (x (P,), y (P,)[, low (P,), high (P,)]): a block of panels per title, on common axes.

    Args:
        context: the experiment, for labels and the order of methods.
        blocks: what is drawn; a block's panels share their axes.
        finish: sets the limits and the axis labels of a panel.
        dots: title -> method -> a place on its line to be marked.
    """
    looks = _style.looks(context.variants)
    plans = {title: _Block.of(context, curves) for title, curves in blocks.items()}
    total = sum(plan.height for plan in plans.values())
    figure = Figure(figsize=(_style.WIDTH, total))
    top = total
    for title, plan in plans.items():
        figure.text(0.01, (top - 0.05) / total, title, va="top", fontsize=9, fontweight="bold")
        axes = plan.axes(figure, top - _HEAD)
        for axis, (variant, words) in zip(axes, plan.labels.items(), strict=True):
            _panel(axis, blocks[title], variant, looks[variant])
            _mark(axis, (dots or {}).get(title, {}).get(variant), looks[variant])
            axis.set_title("\n".join(words), fontsize=_TYPE, fontweight="normal", pad=2)
            finish(axis)
        top -= plan.height
        _outer_labels(figure, axes, top / total, (top + plan.height / 2) / total)
    return figure


def _line(axis: Axes, curve: Sequence[np.ndarray], look: _style.Look, **options: Any) -> None:
    x, y, *band = curve
    if band:
        axis.fill_between(x, band[0], band[1], color=look.colour, alpha=0.15, linewidth=0)
    marker = "o" if len(x) < _SPARSE else None
    axis.plot(x, y, color=look.colour, marker=marker, markersize=4, **{"linestyle": look.dash} | options)


def _mark(axis: Axes, place: tuple[float, float] | None, look: _style.Look) -> None:
    if place:
        axis.plot(*place, "o", color=look.colour, markersize=5, markeredgecolor="white", zorder=5)


@dataclass(frozen=True)
class _Block:
    """Where the panels of one title stand: method -> its label in lines, in the order of the panels."""

    labels: dict[str, list[str]]

    @classmethod
    def of(cls, context: ReportContext, curves: Mapping[str, Sequence[np.ndarray]]) -> _Block:
        variants = context.ordered(curves)
        return cls({variant: textwrap.wrap(context.label(variant), _LETTERS) for variant in variants})

    @property
    def above(self) -> list[float]:
        """Room for the labels of every row, in inches."""
        lines = [len(words) for words in self.labels.values()]
        return [_LINE * max(lines[start : start + _COLUMNS]) + 0.08 for start in range(0, len(lines), _COLUMNS)]

    @property
    def height(self) -> float:
        """Inches of the whole block."""
        return _HEAD + sum(self.above) + _PANEL * len(self.above) + _FOOT

    def axes(self, figure: Figure, top: float) -> list[Axes]:
        """Panels row by row below `top` (inches), on common axes."""
        width, height = figure.get_size_inches()
        side = (width - _LEFT - _GAP * _COLUMNS) / _COLUMNS
        axes: list[Axes] = []
        for place in range(len(self.labels)):
            row, column = divmod(place, _COLUMNS)
            left, bottom = _LEFT + column * (side + _GAP), top - sum(self.above[: row + 1]) - (row + 1) * _PANEL
            shared: dict[str, Any] = {"sharex": axes[0], "sharey": axes[0]} if axes else {}
            rectangle = (left / width, bottom / height, side / width, _PANEL / height)
            axes.append(figure.add_axes(rectangle, **shared))
        return axes


def _panel(axis: Axes, curves: Mapping[str, Sequence[np.ndarray]], variant: str, look: _style.Look) -> None:
    others = [np.column_stack(curve[:2]) for name, curve in curves.items() if name != variant]
    axis.add_collection(LineCollection(others, colors=_GREY, linewidths=0.5, zorder=1), autolim=False)
    _line(axis, curves[variant], look, linestyle="-", linewidth=1.6)
    axis.tick_params(labelsize=_TYPE, length=2)
    for name, ticks in (("x", axis.xaxis), ("y", axis.yaxis)):
        if ticks.get_scale() == "linear":
            axis.locator_params(name, nbins=3)


def _outer_labels(figure: Figure, axes: Sequence[Axes], low: float, middle: float) -> None:
    """Numbers left of every row and below every column; what they are, once for the block."""
    figure.text(0.5, low + 0.08 / figure.get_figheight(), axes[0].get_xlabel(), ha="center", fontsize=_TYPE + 0.5)
    figure.text(0.01, middle, axes[0].get_ylabel(), va="center", rotation=90, fontsize=_TYPE + 0.5)
    for place, axis in enumerate(axes):
        lowest, first = place + _COLUMNS >= len(axes), place % _COLUMNS == 0
        axis.tick_params(labelbottom=lowest, labelleft=first, which="both")
        axis.set(xlabel="", ylabel="")
