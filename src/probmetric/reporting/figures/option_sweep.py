"""A metric against every option that the experiment's runs override.

Paper 000, figure 4 (weight of the guiding loss); paper 002, figure 5 (temperature); paper 004, figure 3 (proxies per
class, delta, alpha, reach of the repulsion).
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from probmetric.reporting import _metrics
from probmetric.reporting._comparison import summarise
from probmetric.reporting.figures import _data, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting._runs import Run, RunKey
    from probmetric.reporting.experiment import ReportContext

TITLE = "Influence of the options"
_COLUMNS = 4
_TOGETHER = " = "
_DOTTED = (0, (1.2, 1.2))
_WIDE = 40  # ratio of values from which an axis is logarithmic
Points = dict[Any, list[float]]  # value of the option -> the metric over seeds


@dataclass(frozen=True)
class Sweep:
    """One dataset's lines: option -> method with its other overrides -> value -> mean; and the methods aside."""

    lines: dict[str, dict[str, Points]]
    aside: dict[str, list[float]]


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
        math.ceil(len(panels) / columns), columns, panel_height=height, legend_entries=len(names)
    )
    for axis, (data, option) in zip(_style.trim(axes, len(panels)), panels, strict=True):
        _panel(axis, sweeps[data].lines[option], sweeps[data].aside, known)
        axis.set_title(_data.group_title(data), fontsize=8)
        axis.set_xlabel(option.replace(_TOGETHER, "\n= "))
    metric = context.metrics[0]
    for row in axes:
        row[0].set_ylabel(f"{_metrics.label(metric)} {_metrics.arrow(metric)}".strip())
    _style.method_legend(figure, context, names, known)
    caption = (
        f"{_metrics.label(metric)} against the options that the runs override: mean over seeds with the 95 % "
        "t-interval, which with few seeds may leave the panel. A method that was run without an override stands at the "
        "option's default; what belongs to no line is drawn as a horizontal one."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, sweeps))


def collect(context: ReportContext, data: str) -> Sweep:
    """The sweeps of one dataset: runs that differ in one option only make a line if it takes several values.

    Options that always change together, to the same value, count as one: `a = b`.
    """
    found = _data.values(context, context.metrics[0]).get(data, {})
    keys = {key.variant: key for key in context.expected if key.data == data}
    runs = {run.key.variant: run for run in context.runs if run.key.data == data}
    options = _joined({variant: _own_options(context, key) for variant, key in keys.items()})
    lines: dict[str, dict[str, Points]] = {}
    drawn: set[str] = set()
    for option in dict.fromkeys(option for own in options.values() for option in own):
        grouped: dict[str, dict[str, Any]] = defaultdict(dict)
        for variant in found:
            others = {name: text for name, text in options[variant].items() if name != option}
            text = options[variant].get(option) or default_text(runs.get(variant), option)
            if text is not None:
                grouped[_variant(keys[variant].method, others)][variant] = _value(text)
        several = {name: chosen for name, chosen in grouped.items() if len(set(chosen.values())) > 1}
        if several:
            lines[option] = {name: _points(chosen, found) for name, chosen in several.items()}
            drawn |= {variant for chosen in several.values() for variant in chosen}
    return Sweep(lines, {variant: values for variant, values in found.items() if variant not in drawn})


def _joined(options: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Options of every method, those that move together under one name."""
    names = list(dict.fromkeys(name for own in options.values() for name in own))
    for first, second in itertools.combinations(names, 2):
        both = [(own[first], own[second]) for own in options.values() if first in own and second in own]
        if len(set(both)) > 1 and all(one == other for one, other in both):
            for own in options.values():
                if first in own and second in own:
                    own[f"{first}{_TOGETHER}{second}"] = own.pop(first)
                    del own[second]
    return options


def _points(values: dict[str, Any], found: dict[str, list[float]]) -> Points:
    """Value of the option -> metric over seeds, numbers ascending, from method -> value and method -> metric."""
    numbers = all(isinstance(value, float) for value in values.values())
    order = sorted(values, key=values.__getitem__) if numbers else list(values)
    return {values[variant]: found[variant] for variant in order}


def default_text(run: Run | None, option: str) -> str | None:
    """What a run that does not override `option` uses, as an override would write it; None if it has no such option."""
    if run is None:
        return None
    if _TOGETHER in option:
        one, *others = (default_text(run, part) for part in option.split(_TOGETHER))
        return one if all(other == one for other in others) else None
    parent, _, leaf = option.rpartition(".")
    value = run.find(f"settings.{parent}.options.{leaf}", f"settings.{option}", default=None)
    if value is None:
        component = run.find(f"settings.{parent}.name", default=None)
        value = _registered_default(parent, component, leaf) if component else None
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _registered_default(parent: str, component: str, leaf: str) -> Any:
    from probmetric import losses, models, uncertainty

    homes = {"loss": losses, "backbone": models, "uncertainty": uncertainty, "objective": uncertainty}
    known = homes[parent].REGISTRY.options(component) if parent in homes else {}
    return known[leaf].default if leaf in known else None


def _own_options(context: ReportContext, key: RunKey) -> dict[str, str]:
    """Overrides of a run that not all runs of the experiment share, as text."""
    items = [item for item in key.overrides.split("+") if item and item not in context.shared_overrides]
    return dict(item.split("=", 1) for item in items)


def _variant(method: str, options: dict[str, str]) -> str:
    return "+".join([method, *(f"{name}={text}" for name, text in options.items())])


def _value(text: str) -> Any:
    """The number that `text` writes, or the text."""
    try:
        return float(text)
    except ValueError:
        return text


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
    metric = context.metrics[0]
    parts = []
    for data, sweep in sweeps.items():
        for option, lines in sweep.lines.items():
            for name, points in lines.items():
                sign = -1 if _metrics.direction(metric) == "lower" else 1
                best = max(points, key=lambda value, points=points, sign=sign: sign * fmean(points[value]))  # type: ignore[misc]
                shown = f"{best:g}" if isinstance(best, float) else best
                where = f"{_data.group_title(data)}, {context.label(name)}"
                parts.append(f"{where}: best {option} {shown} ({fmean(points[best]):.3f})")
    return f"{_metrics.label(metric)} against options. {'; '.join(parts)}."
