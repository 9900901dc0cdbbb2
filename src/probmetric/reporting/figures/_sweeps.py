"""Runs that override options -> lines of a metric over the values of each option."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probmetric.reporting.figures import _data
from probmetric.runs.names import override_items

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder
    from probmetric.runs.names import RunKey

TOGETHER = " = "
Points = dict[Any, list[float]]  # value of the option -> the metric over seeds


@dataclass(frozen=True)
class Sweep:
    """One dataset's lines: option -> method with its other overrides -> value -> mean; and the methods aside."""

    lines: dict[str, dict[str, Points]]
    aside: dict[str, list[float]]
    metric: str


def collect(context: ReportContext, data: str) -> Sweep:
    """The sweeps of one dataset: runs that differ in one option only make a line if it takes several values.

    Options that always change together, to the same value, count as one: `a = b`. The metric is the experiment's first
    that was measured on the dataset: accuracy needs known classes, where others are retrieved.
    """
    measured = {metric: _data.values(context, metric).get(data, {}) for metric in context.metrics}
    metric = next((name for name, found in measured.items() if found), context.metrics[0])
    found = measured[metric]
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
    return Sweep(lines, {variant: values for variant, values in found.items() if variant not in drawn}, metric)


def _joined(options: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Options of every method, those that move together under one name."""
    names = list(dict.fromkeys(name for own in options.values() for name in own))
    for first, second in itertools.combinations(names, 2):
        both = [(own[first], own[second]) for own in options.values() if first in own and second in own]
        if len(set(both)) > 1 and all(one == other for one, other in both):
            for own in options.values():
                if first in own and second in own:
                    own[f"{first}{TOGETHER}{second}"] = own.pop(first)
                    del own[second]
    return options


def _points(values: dict[str, Any], found: dict[str, list[float]]) -> Points:
    """Value of the option -> metric over seeds, numbers ascending, from method -> value and method -> metric."""
    numbers = all(isinstance(value, float) for value in values.values())
    order = sorted(values, key=values.__getitem__) if numbers else list(values)
    return {values[variant]: found[variant] for variant in order}


def default_text(run: RunFolder | None, option: str) -> str | None:
    """What a run that does not override `option` uses, as an override would write it; None if it has no such option."""
    if run is None:
        return None
    if TOGETHER in option:
        one, *others = (default_text(run, part) for part in option.split(TOGETHER))
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
    items = [item for item in override_items(key.overrides) if item not in context.shared_overrides]
    return dict(item.split("=", 1) for item in items)


def _variant(method: str, options: dict[str, str]) -> str:
    return "+".join([method, *(f"{name}={text}" for name, text in options.items())])


def _value(text: str) -> Any:
    """The number that `text` writes, or the text."""
    try:
        return float(text)
    except ValueError:
        return text
