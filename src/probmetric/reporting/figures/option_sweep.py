"""A metric against every option that the experiment's runs override.

Paper 000, figure 4 (weight of the guiding loss); paper 002, figure 5 (temperature); paper 004, figure 3 (proxies per
class, delta, alpha, reach of the repulsion).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from probmetric.metrics import arrow, direction, label
from probmetric.reporting._comparison import summarise
from probmetric.reporting._words import option_words
from probmetric.reporting.figures import _data, _style, register
from probmetric.reporting.figures._sweeps import TOGETHER, Points, Sweep, collect

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext

TITLE = "Influence of the options"
_COLUMNS = 4
_DOTTED = (0, (1.2, 1.2))
_WIDE = 40  # ratio of values from which an axis is logarithmic


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset and option; a line per method, horizontal for what was run with one value only."""
    sweeps = {data: sweep for data in context.data if (sweep := collect(context, data)).lines}
    if not sweeps:
        return _style.nothing(TITLE, "no option was run at more than one value.")
    names = list(dict.fromkeys(name for sweep in sweeps.values() for name in _names(sweep)))
    known = _looks(list(sweeps.values()))
    panels = [(data, option) for data, sweep in sweeps.items() for option in sweep.lines]
    most = max(len(sweep.lines) for sweep in sweeps.values())
    columns = min(_COLUMNS, most) if most > 1 else min(2, len(panels))
    height = 2.5 if columns < 3 else 2.1
    figure, axes = _style.grid(
        math.ceil(len(panels) / columns), columns, panel_height=height, named=list(map(context.label, names))
    )
    metrics = dict.fromkeys(sweep.metric for sweep in sweeps.values())
    first_column = [row[0] for row in axes]
    for axis, (data, option) in zip(_style.trim(axes, len(panels)), panels, strict=True):
        _panel(axis, sweeps[data].lines[option], sweeps[data].aside, known)
        axis.set_title(_data.group_title(data), fontsize=8)
        if axis in first_column or len(metrics) > 1:
            axis.set_ylabel(f"{label(sweeps[data].metric)} {arrow(sweeps[data].metric)}".strip())
        axis.set_xlabel("\n= ".join(map(option_words, option.split(TOGETHER))))
    _style.method_legend(figure, context, names, known)
    caption = (
        f"{' and '.join(map(label, metrics))} against the options that the runs override: mean over seeds "
        "with the 95 % t-interval, which with few seeds may leave the panel. A method that was run without an override "
        "stands at the option's default; what belongs to no line is drawn as a horizontal one."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, sweeps))


def _names(sweep: Sweep) -> list[str]:
    return [*(name for group in sweep.lines.values() for name in group), *sweep.aside]


def _looks(sweeps: Sequence[Sweep]) -> dict[str, _style.Look]:
    """A colour per method, dotted for horizontal lines; a colour per line where a method has several."""
    lines = {name for sweep in sweeps for group in sweep.lines.values() for name in group}
    aside = {name for sweep in sweeps for name in sweep.aside} - lines
    methods = {name: name.partition("+")[0] for name in lines | aside}
    if len({methods[name] for name in lines}) < len(lines) or len({methods[name] for name in aside}) < len(aside):
        return _style.looks(lines | aside)
    known = _style.looks(methods.values())
    looks = {name: known[methods[name]] for name in lines}
    return looks | {name: _style.Look(known[methods[name]].colour, _DOTTED) for name in aside}


def _panel(axis: Axes, lines: dict[str, Points], aside: dict[str, list[float]], known: dict[str, _style.Look]) -> None:
    values = list(dict.fromkeys(value for points in lines.values() for value in points))
    numeric = all(isinstance(value, float) for value in values)
    for name, points in lines.items():
        places = list(points) if numeric else [values.index(value) for value in points]
        cells = [summarise(seeds) for seeds in points.values()]
        axis.errorbar(
            places,
            [cell.mean for cell in cells],
            yerr=[cell.half_width or 0.0 for cell in cells],
            color=known[name].colour,
            linestyle=known[name].dash,
            marker="o",
            markersize=3.5,
            capsize=2,
            elinewidth=0.9,
        )
    for name, seeds in aside.items():
        axis.axhline(fmean(seeds), color=known[name].colour, linestyle=known[name].dash, linewidth=1.1)
    seeds_drawn = [value for points in lines.values() for seeds in points.values() for value in seeds]
    _limits(axis, seeds_drawn, [fmean(seeds) for seeds in aside.values()])
    if numeric:
        _scale(axis, values)
    else:
        axis.set_xticks(range(len(values)), [f"{value:g}" if isinstance(value, float) else value for value in values])


def _limits(axis: Axes, swept: Sequence[float], aside: Sequence[float]) -> None:
    """Room for every seed and every horizontal line; the intervals of few seeds would dwarf them."""
    room = 0.3 * (max(swept) - min(swept)) or 0.05
    low, high = min([*aside, min(swept) - 0.75 * room]), max([*aside, max(swept) + 0.75 * room])
    axis.set_ylim(low - room / 4, high + room / 4)
    axis.margins(x=0.08)


def _scale(axis: Axes, values: Sequence[float]) -> None:
    """Logarithmic where the values spread widely; with a linear piece around zero if zero is among them."""
    positive = [value for value in values if value > 0]
    if min(values) < 0 or len(positive) < 2 or max(positive) / min(positive) < _WIDE:
        axis.locator_params(axis="x", nbins=5)
    elif 0 in values:
        axis.set_xscale("symlog", linthresh=min(positive))
    else:
        axis.set_xscale("log")


def _alt(context: ReportContext, sweeps: dict[str, Sweep]) -> str:
    parts = []
    for data, sweep in sweeps.items():
        for option, lines in sweep.lines.items():
            for name, points in lines.items():
                sign = -1 if direction(sweep.metric) == "lower" else 1
                best = max(points, key=lambda value, points=points, sign=sign: sign * fmean(points[value]))  # type: ignore[misc]
                shown = f"{best:g}" if isinstance(best, float) else best
                where = f"{_data.group_title(data)}, {context.label(name)}"
                parts.append(
                    f"{where}: best {label(sweep.metric)} at {option_words(option)} {shown} ({fmean(points[best]):.3f})"
                )
    return f"A metric against options. {'; '.join(parts)}."
