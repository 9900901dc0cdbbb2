"""Ranges -> settings, in values short enough to stand in a run's folder name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probmetric.config import Component, RunSettings
from probmetric.runs.identity import REGISTRIES

if TYPE_CHECKING:
    import optuna

    from probmetric.config import SearchRange

_DIGITS = 3


def suggest(trial: optuna.Trial, ranges: Mapping[str, SearchRange]) -> dict[str, Any]:
    """Return a trial's settings by dotted key, intervals rounded to three significant digits."""
    return {key: _value(trial, key, span) for key, span in sorted(ranges.items())}


def _value(trial: optuna.Trial, key: str, span: SearchRange) -> Any:
    if span.choices:
        return trial.suggest_categorical(key, list(span.choices))
    low, high = span.interval
    if span.integer:
        return trial.suggest_int(key, int(low), int(high), log=span.log)
    return float(f"{trial.suggest_float(key, low, high, log=span.log):.{_DIGITS}g}")


def present_values(settings: RunSettings, ranges: Mapping[str, SearchRange]) -> dict[str, Any] | None:
    """Return the method's settings before tuning, as a first trial; None where one of them lies outside its range."""
    values = {key: _present(settings, key) for key in ranges}
    return values if all(_contains(ranges[key], value) for key, value in values.items()) else None


def _present(settings: RunSettings, key: str) -> Any:
    """Return the value at a dotted key; an option that is not written down has its registered default."""
    part, _, name = key.rpartition(".")
    holder = getattr(settings, part) if part else settings
    if isinstance(holder, Component):
        option = REGISTRIES[part].options(holder.name).get(name)
        return holder.options.get(name, option.default if option else None)
    return getattr(holder, name, None)


def _contains(span: SearchRange, value: Any) -> bool:
    if span.choices:
        return value in span.choices
    low, high = span.interval
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
