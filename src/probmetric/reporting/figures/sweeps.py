"""A metric against options of methods, and against the share of wrong training labels.

Paper 000, figure 4 (weight of the guiding loss); paper 002, figure 5 (temperature); paper 004, figure 3 (proxies per
class, delta, alpha, reach of the repulsion).
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from probmetric.metrics import arrow, best, heading, label
from probmetric.reporting.comparison import Cell, summarise
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _lines, _style, register
from probmetric.reporting.results import Series, mean_of
from probmetric.reporting.words import group_title, noise_words, option_words
from probmetric.runs.folder import RunFolder
from probmetric.runs.identity import REGISTRIES
from probmetric.runs.names import LabelNoise, RunKey, override_items, split_data_name

_COLUMNS = 4
_DOTTED = (0, (1.2, 1.2))
_WIDE = 40  # ratio of values from which an axis is logarithmic
TOGETHER = " = "
_OPTIONS = _style.Words(
    "Influence of the options",
    "against the options that the runs override: mean over seeds with the 95 % interval of the table, which with few "
    "seeds may leave the panel. A method that was run without an override stands at the option's default. Methods "
    "without the option are horizontal lines.",
    "no option was run at more than one value.",
)
_NOISE = _style.Words(
    "Robustness to label noise",
    "on clean test data after training with wrong labels: mean over seeds, band: the 95 % interval of the table.",
    "no method of this experiment was run at more than one noise rate.",
    "Metric against label noise. ",
)
Points = dict[Any, Series]  # value of the option -> the metric over seeds
Rates = dict[str, dict[str, dict[float, Cell]]]  # panel -> method -> rate of wrong labels -> mean


@register("option_sweep")
def option_sweep(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset and option; a line per method, horizontal if it was run with one value only."""
    sweeps = {data: sweep for data in context.data if (sweep := collect(context, data)).lines}
    if not sweeps:
        return _OPTIONS.nothing()
    names = list(dict.fromkeys(name for sweep in sweeps.values() for name in _names(sweep)))
    looks = _looks(list(sweeps.values()))
    panels = [(data, option) for data, sweep in sweeps.items() for option in sweep.lines]
    most = max(len(sweep.lines) for sweep in sweeps.values())
    columns = min(_COLUMNS, most) if most > 1 else min(2, len(panels))
    height = 2.5 if columns < 3 else 2.1
    figure, axes = _style.panels(len(panels), columns, panel_height=height, named=list(map(context.label, names)))
    metrics = dict.fromkeys(sweep.metric for sweep in sweeps.values())
    for number, (axis, (data, option)) in enumerate(zip(axes, panels, strict=True)):
        _panel(axis, sweeps[data].lines[option], sweeps[data].aside, looks)
        axis.set_title(group_title(data), fontsize=8)
        if number % columns == 0 or len(metrics) > 1:
            axis.set_ylabel(f"{label(sweeps[data].metric)} {arrow(sweeps[data].metric)}".strip())
        axis.set_xlabel("\n= ".join(map(option_words, option.split(TOGETHER))))
    _style.method_legend(figure, context, names, looks)
    words = replace(_OPTIONS, caption=f"{' and '.join(map(label, metrics))} {_OPTIONS.caption}")
    return words.drawing(figure, _alt(context, sweeps))


def _names(sweep: Sweep) -> list[str]:
    return [*(name for group in sweep.lines.values() for name in group), *sweep.aside]


def _looks(sweeps: Sequence[Sweep]) -> dict[str, _style.Look]:
    """Return a colour per method, dotted for horizontal lines; a colour per line if a method has several."""
    lines = {name for sweep in sweeps for group in sweep.lines.values() for name in group}
    aside = {name for sweep in sweeps for name in sweep.aside} - lines
    methods = {name: name.partition("+")[0] for name in lines | aside}
    if len({methods[name] for name in lines}) < len(lines) or len({methods[name] for name in aside}) < len(aside):
        return _style.looks(lines | aside)
    by_method = _style.looks(methods.values())
    dotted = {name: _style.Look(by_method[methods[name]].colour, _DOTTED) for name in aside}
    return {name: by_method[methods[name]] for name in lines} | dotted


def _panel(axis: Axes, lines: dict[str, Points], aside: dict[str, Series], looks: dict[str, _style.Look]) -> None:
    values = list(dict.fromkeys(value for points in lines.values() for value in points))
    numeric = all(isinstance(value, float) for value in values)
    for name, points in lines.items():
        places = list(points) if numeric else [values.index(value) for value in points]
        cells = [summarise(series) for series in points.values()]
        axis.errorbar(
            places,
            [cell.mean for cell in cells],
            yerr=[cell.half_width or 0.0 for cell in cells],
            color=looks[name].colour,
            linestyle=looks[name].dash,
            marker="o",
            markersize=3.5,
            capsize=2,
            elinewidth=0.9,
        )
    for name, series in aside.items():
        axis.axhline(mean_of(series), color=looks[name].colour, linestyle=looks[name].dash, linewidth=1.1)
    drawn = [value for points in lines.values() for series in points.values() for value in series.values.values()]
    _limits(axis, drawn, list(map(mean_of, aside.values())))
    if numeric:
        _scale(axis, values)
    else:
        axis.set_xticks(range(len(values)), [f"{value:g}" if isinstance(value, float) else value for value in values])


def _limits(axis: Axes, swept: Sequence[float], aside: Sequence[float]) -> None:
    """Set limits that show every seed and every horizontal line; intervals of few seeds would be far wider."""
    room = 0.3 * (max(swept) - min(swept)) or 0.05
    low, high = min([*aside, min(swept) - 0.75 * room]), max([*aside, max(swept) + 0.75 * room])
    axis.set_ylim(low - room / 4, high + room / 4)
    axis.margins(x=0.08)


def _scale(axis: Axes, values: Sequence[float]) -> None:
    """Set a logarithmic axis if the values spread widely, with a linear piece around zero if zero is among them."""
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
                means = {value: mean_of(series) for value, series in points.items()}
                value = best(sweep.metric, means)
                shown = f"{value:g}" if isinstance(value, float) else value
                where = f"{group_title(data)}, {context.label(name)}: best {label(sweep.metric)}"
                parts.append(f"{where} at {option_words(option)} {shown} ({means[value]:.3f})")
    return f"A metric against options. {'; '.join(parts)}."


@dataclass(frozen=True)
class Sweep:
    """Lines of one dataset: option -> method with its other overrides -> value -> mean; and methods without a line."""

    lines: dict[str, dict[str, Points]]
    aside: dict[str, Series]
    metric: str


def collect(context: ReportContext, data: str) -> Sweep:
    """Return the sweeps of one dataset: runs that differ only in one option, with several values of it, make a line.

    Options that always change together, to the same value, count as one: `a = b`. The metric is the experiment's first
    that was measured on the dataset, because accuracy exists for known classes only.
    """
    metric = next((name for name in context.metrics if context.series(data, name)), context.metrics[0])
    measured = context.series(data, metric)
    keys = {key.variant: key for key in context.expected if key.group == data}
    runs = {run.key.variant: run for run in context.runs if run.key.group == data}
    options = _joined({variant: _own_options(context, key) for variant, key in keys.items()})
    lines: dict[str, dict[str, Points]] = {}
    drawn: set[str] = set()
    for option in dict.fromkeys(option for chosen in options.values() for option in chosen):
        grouped: dict[str, dict[str, Any]] = defaultdict(dict)
        for variant in measured:
            others = {name: text for name, text in options[variant].items() if name != option}
            text = options[variant].get(option) or default_text(runs.get(variant), option)
            if text is not None:
                line = "+".join([keys[variant].method, *(f"{name}={other}" for name, other in others.items())])
                grouped[line][variant] = _value(text)
        several = {name: chosen for name, chosen in grouped.items() if len(set(chosen.values())) > 1}
        if several:
            lines[option] = {name: _points(chosen, measured) for name, chosen in several.items()}
            drawn |= {variant for chosen in several.values() for variant in chosen}
    return Sweep(lines, {variant: values for variant, values in measured.items() if variant not in drawn}, metric)


def _joined(options: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the options of every method; options that change together have one name."""
    names = list(dict.fromkeys(name for chosen in options.values() for name in chosen))
    for first, second in itertools.combinations(names, 2):
        both = [chosen for chosen in options.values() if first in chosen and second in chosen]
        values = {(chosen[first], chosen[second]) for chosen in both}
        if len(values) > 1 and all(one == other for one, other in values):
            for chosen in both:
                chosen[f"{first}{TOGETHER}{second}"] = chosen.pop(first)
                del chosen[second]
    return options


def _points(values: dict[str, Any], measured: dict[str, Series]) -> Points:
    """Return value of the option -> metric over seeds, numbers ascending, from method -> value and method -> metric."""
    numbers = all(isinstance(value, float) for value in values.values())
    order = sorted(values, key=values.__getitem__) if numbers else list(values)
    return {values[variant]: measured[variant] for variant in order}


def default_text(run: RunFolder | None, option: str) -> str | None:
    """Return the value of `option` in a run that does not override it, as an override writes it, or None."""
    if run is None:
        return None
    if TOGETHER in option:
        one, *others = (default_text(run, part) for part in option.split(TOGETHER))
        return one if all(other == one for other in others) else None
    parent, _, leaf = option.rpartition(".")
    value = run.find(f"settings.{parent}.options.{leaf}", f"settings.{option}", default=None)
    if value is None and (component := run.find(f"settings.{parent}.name")):
        declared = REGISTRIES[parent].options(component)
        value = declared[leaf].default if leaf in declared else None
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _own_options(context: ReportContext, key: RunKey) -> dict[str, str]:
    """Return the overrides of a run that not all runs of the experiment share, as text."""
    items = [item for item in override_items(key.overrides) if item not in context.shared_overrides]
    return dict(item.split("=", 1) for item in items)


def _value(text: str) -> Any:
    """Return the number that `text` writes, or the text."""
    try:
        return float(text)
    except ValueError:
        return text


@register("noise_robustness")
def noise_robustness(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset and kind of noise; methods run at two rates or more."""
    metric = context.metrics[0]
    panels = {title: _bands(methods) for title, methods in rates_of(context, metric).items()}

    def say(title: str, bands: dict[str, list[np.ndarray]]) -> str:
        return "; ".join(
            f"{title}, {context.label(variant)}: {mean[-1] - mean[0]:+.3f} from {rates[0]:g} % to {rates[-1]:g} % noise"
            for variant, (rates, mean, _, _) in bands.items()
        )

    words = replace(_NOISE, caption=f"{label(metric)} {_NOISE.caption}")
    axes = {"xlabel": "wrong training labels (%)", "ylabel": heading(metric), "xmargin": 0.04}
    return _lines.drawing(context, words, panels, axes, say, columns=2, panel_height=2.6)


def _bands(methods: dict[str, dict[float, Cell]]) -> dict[str, list[np.ndarray]]:
    """Return method -> (percent of wrong labels (R,), mean (R,), lower and upper end of the interval (R,))."""
    bands = {}
    for variant, rates in methods.items():
        mean = np.array([cell.mean for cell in rates.values()])
        half = np.array([cell.half_width or 0.0 for cell in rates.values()])
        bands[variant] = [100 * np.array(list(rates)), mean, mean - half, mean + half]
    return bands


def rates_of(context: ReportContext, metric: str) -> Rates:
    """Return panel -> method -> rate -> mean over seeds, for methods with two rates or more."""
    measured = context.by_data(metric)
    lines: Rates = {}
    for data, methods in measured.items():
        dataset, label_noise = split_data_name(data)
        if not label_noise:
            continue
        noise = LabelNoise.parse(label_noise)
        usual = noise.kind == "uniform" and not noise.seed
        panel = lines.setdefault(dataset if usual else f"{dataset}, {noise_words(noise)}", {})
        for variant, series in methods.items():
            clean = measured.get(dataset, {}).get(variant)
            rates = panel.setdefault(variant, {0.0: summarise(clean)} if clean else {})
            rates[noise.rate] = summarise(series)
    drawn = {
        title: {name: dict(sorted(rates.items())) for name, rates in panel.items() if len(rates) > 1}
        for title, panel in lines.items()
    }
    return {title: panel for title, panel in drawn.items() if panel}
