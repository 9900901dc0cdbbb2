"""Register and compute the metrics of users: functions of a run's test embeddings, in a plugin.

    from probmetric.metrics import metric

    @metric(direction="higher", needs=("samples",))
    def spread(test):
        '''Mean distance between an image's samples.'''
        return float(test["samples"].std(axis=1).mean())

`test` maps mean (N, M), uncertainty (N,), label (N,), index (N,) and, where the run has them, concentration (N,),
samples (N, S, M), probabilities (N, C) to NumPy arrays. The step `evaluate` computes the metric for every run that has
what it `needs`, under `<group>/<its name>`. Experiments name it like any other metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from probmetric.errors import ProbMetricError
from probmetric.metrics.catalogue import recorded
from probmetric.metrics.record import DIRECTIONS, Direction, Metric
from probmetric.registry import RegistrationError, Registry

F = TypeVar("F", bound=Callable[..., float])

REGISTRY = Registry(
    "metric",
    "probmetric.metrics.own",
    context=("test",),
    constants=("direction", "group", "label", "unit", "needs"),
)


class MetricError(ProbMetricError, RuntimeError):
    """A user's metric failed; the message names it."""


def metric(
    direction: Direction | Callable[..., Any] | None = None,
    *,
    group: str = "own",
    label: str = "",
    unit: str = "",
    needs: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Register a function of a run's test embeddings as metric `<group>/<its name>`.

    Args:
        direction: "higher" or "lower", whichever is better; "none" for a descriptive quantity.
        group: first part of its name.
        label: its name in tables; made from the function's name by default.
        unit: unit of its value.
        needs: tensors that a run must have, such as ("samples",).

    Raises:
        RegistrationError: no direction, or the library has a metric of that name.
    """

    def register(function: F) -> F:
        name = f"{group}/{function.__name__}"
        if direction not in DIRECTIONS:
            raise RegistrationError(
                f"{function.__module__}: metric {name!r} has direction {direction!r}; write @metric(direction=...): "
                f"{', '.join(map(repr, DIRECTIONS))}."
            )
        if recorded(group, function.__name__):
            raise RegistrationError(f"{function.__module__}: the library has a metric {name!r}; choose another name.")
        constants = {"direction": direction, "group": group, "label": label, "unit": unit, "needs": tuple(needs)}
        for attribute, value in constants.items():
            setattr(function, attribute, value)
        return REGISTRY.register(function.__name__)(function)

    return metric()(direction) if callable(direction) else register


def own_records() -> dict[str, Metric]:
    """Return the records of the users' metrics by full name."""
    REGISTRY.names()
    records = {}
    for name, entry in REGISTRY.foreign_entries().items():
        told = entry.constants
        record = Metric(name, told["label"], told["direction"], entry.doc, unit=told["unit"], computed=entry.module)
        records[f"{told['group']}/{name}"] = replace(record, groups=(told["group"],))
    return records


def own_metrics(test: Mapping[str, Any]) -> dict[str, float]:
    """Return the users' metrics of a run's test embeddings, by full name, if the run has the tensors they need.

    Args:
        test: tensor name -> array, as in the module docstring.
    """
    values = {}
    for name, record in own_records().items():
        needs = REGISTRY.constant(record.name, "needs", ())
        if all(tensor in test for tensor in needs):
            values[name] = _value(name, REGISTRY.get(record.name), test)
    return values


def _value(name: str, function: Callable[..., Any], test: Mapping[str, Any]) -> float:
    try:
        return float(function(test))
    except Exception as error:
        raise MetricError(f"metric {name!r} ({function.__module__}): {type(error).__name__}: {error}") from error
