"""Metrics by name: which way is better, what tables call them, where they are computed; and the user's own.

Every metric has one record (`_metric.Metric`, all in `_records`). A user's own is a function of a run's test
embeddings, in a plugin:

    from probmetric.metrics import metric

    @metric(direction="higher", needs=("samples",))
    def spread(test):
        '''Mean distance between an image's samples.'''
        return float(test["samples"].std(axis=1).mean())

`test` maps mean (N, M), uncertainty (N,), label (N,), index (N,) and, where the run has them, concentration (N,),
samples (N, S, M), probabilities (N, C) to NumPy arrays. The step `evaluate` computes it for every run that has what it
needs, under `<group>/<its name>`; experiments name it like any other metric. Nothing here imports NumPy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from probmetric.errors import ProbMetricError
from probmetric.lazy import exported
from probmetric.metrics._docs import with_tables, write_tables
from probmetric.metrics._headlines import HEADLINES
from probmetric.metrics._metric import DIRECTIONS, Direction, Metric
from probmetric.metrics._records import METRICS
from probmetric.registry import Entry, RegistrationError, Registry, UnknownNameError, nearest, registry_of

if TYPE_CHECKING:
    from probmetric.metrics.calibration import Reliability, calibration_error, classwise_calibration_error, reliability
    from probmetric.metrics.classification import classification_metrics
    from probmetric.metrics.clustering import agreement, clustering_metrics
    from probmetric.metrics.correlation import spearman
    from probmetric.metrics.ood import auroc, ood_metrics, roc_curve
    from probmetric.metrics.selective import SparsificationCurve, risk_coverage, selective_metrics, sparsification
    from probmetric.metrics.statistics import (
        PairedResult,
        bootstrap_interval,
        holm,
        image_variance,
        mean_interval,
        paired_test,
        pairwise_tests,
        seeds_needed,
    )
    from probmetric.metrics.structure import structure_metrics
    from probmetric.metrics.temperature import fit_temperature, scaled_probabilities
    from probmetric.metrics.transport import proxy_transport

__all__ = [
    "HEADLINES",
    "METRICS",
    "REGISTRY",
    "Direction",
    "Metric",
    "MetricError",
    "PairedResult",
    "Reliability",
    "SparsificationCurve",
    "agreement",
    "arrow",
    "auroc",
    "better",
    "bootstrap_interval",
    "calibration_error",
    "classification_metrics",
    "classwise_calibration_error",
    "clustering_metrics",
    "direction",
    "find",
    "fit_temperature",
    "heading",
    "holm",
    "image_variance",
    "is_headline",
    "label",
    "mean_interval",
    "metric",
    "metric_names",
    "ood_metrics",
    "own_metrics",
    "paired_test",
    "pairwise_tests",
    "proxy_transport",
    "reliability",
    "risk_coverage",
    "roc_curve",
    "scaled_probabilities",
    "seeds_needed",
    "selective_metrics",
    "sparsification",
    "spearman",
    "structure_metrics",
    "with_tables",
    "write_tables",
]

__getattr__ = exported(
    __name__,
    {
        "Reliability": "calibration",
        "calibration_error": "calibration",
        "classwise_calibration_error": "calibration",
        "reliability": "calibration",
        "classification_metrics": "classification",
        "agreement": "clustering",
        "clustering_metrics": "clustering",
        "spearman": "correlation",
        "auroc": "ood",
        "ood_metrics": "ood",
        "roc_curve": "ood",
        "SparsificationCurve": "selective",
        "risk_coverage": "selective",
        "selective_metrics": "selective",
        "sparsification": "selective",
        "PairedResult": "statistics",
        "bootstrap_interval": "statistics",
        "holm": "statistics",
        "image_variance": "statistics",
        "mean_interval": "statistics",
        "paired_test": "statistics",
        "pairwise_tests": "statistics",
        "seeds_needed": "statistics",
        "structure_metrics": "structure",
        "fit_temperature": "temperature",
        "scaled_probabilities": "temperature",
        "proxy_transport": "transport",
    },
)


class MetricError(ProbMetricError, RuntimeError):
    """A user's metric failed; the message names it."""


F = TypeVar("F", bound=Callable[..., float])

REGISTRY = Registry(
    "metric",
    "probmetric.metrics.own",
    context=("test",),
    constants=("direction", "group", "label", "unit", "needs"),
)
_PREFIXES = {"last": "last epoch", "train": "training images", "val": "validation"}
_GROUPS = {
    "retrieval_euclidean": "Euclidean",
    "retrieval_poincare": "Poincaré",
    "retrieval_day_to_night": "day to night",
    "retrieval_night_to_day": "night to day",
    "verification": "pairs",
    "p_right": "P(right)",
    "p_right_val": "P(right) fitted on validation classes",
}


def is_headline(name: str) -> bool:
    """Whether runs are compared by this metric at a glance: one of `HEADLINES`, or a user's own."""
    group, _, last = name.rpartition("/")
    if group.startswith("ood/"):
        return last == "auroc"
    return name in HEADLINES or group not in {known for record in METRICS for known in record.groups}


def metric(
    *,
    direction: Direction | None = None,
    group: str = "own",
    label: str = "",
    unit: str = "",
    needs: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Register a function of a run's test embeddings as metric `<group>/<its name>`.

    Args:
        direction: "higher" or "lower" where that is better, "none" for a descriptive quantity.
        group: first part of its name.
        label: what tables call it; made from its name by default.
        unit: of its value.
        needs: tensors without which a run does not have it, such as ("samples",).

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
        if _recorded(group, function.__name__):
            raise RegistrationError(f"{function.__module__}: the library has a metric {name!r}; choose another name.")
        for attribute, value in {"direction": direction, "group": group, "label": label, "unit": unit}.items():
            setattr(function, attribute, value)
        function.needs = tuple(needs)  # type: ignore[attr-defined]
        return REGISTRY.register(function.__name__)(function)

    return register


def find(name: str) -> Metric:
    """The record of the metric with full name `name` (`retrieval/recall_at_4`, `ood/cub/auroc`).

    Raises:
        UnknownNameError: no metric has that name; names the nearest.
    """
    group, _, last = name.rpartition("/")
    found = _recorded(group, last) or _own().get(name)
    if found is None:
        raise UnknownNameError(f"unknown metric {name!r}: {nearest(name, metric_names((1,)))}")
    return found


def _recorded(group: str, last: str) -> Metric | None:
    home = "ood" if group.startswith("ood/") else group
    pattern = re.sub(r"(?<=_at_)\d+$", "{k}", last)
    return _BY_NAME.get((home, last)) or _BY_NAME.get((home, pattern)) or _of_score(home, last)


def _of_score(group: str, last: str) -> Metric | None:
    """The record of what is measured of every score alike, with the score in it."""
    for name in _OF_SCORES if "auroc_" in last else ():
        prefix = name.removesuffix("{score}")
        score = last.removeprefix(prefix)
        if (group, name) in _BY_NAME and last.startswith(prefix) and score in registry_of("score").names():
            record = _BY_NAME[group, name]
            return replace(record, variant=", ".join(filter(None, (record.variant, score.replace("_", " ")))))
    return None


_BY_NAME = {(group, metric.name): metric for metric in METRICS for group in metric.groups}
_OF_SCORES = tuple(dict.fromkeys(metric.name for metric in METRICS if metric.name.endswith("{score}")))


def _own() -> dict[str, Metric]:
    """The users' metrics by full name."""
    REGISTRY.names()
    found = (_own_record(name, entry) for name, entry in REGISTRY.foreign_entries().items())
    return {f"{record.groups[0]}/{record.name}": record for record in found}


def _own_record(name: str, entry: Entry) -> Metric:
    told = entry.constants
    return Metric(
        name,
        told["label"],
        told["direction"],
        entry.doc,
        unit=told["unit"],
        groups=(told["group"],),
        computed=entry.module,
    )


def metric_names(ks: Iterable[int], ood: Iterable[str] = ()) -> list[str]:
    """Every full name, with recall and precision at `ks` and the out-of-distribution sets `ood`."""
    numbers, sets = sorted({1, *ks}), tuple(ood)
    return [name for record in METRICS for name in _full_names(record, numbers, sets)] + list(_own())


def _full_names(record: Metric, ks: Iterable[int], ood: Iterable[str]) -> Iterator[str]:
    names = [record.name.replace("{k}", str(k)) for k in ks] if "{k}" in record.name else [record.name]
    if "{score}" in record.name:
        names = [record.name.replace("{score}", score) for score in registry_of("score").names()]
    for group in record.groups:
        homes = [group, *(f"ood/{other}" for other in ood)] if group == "ood" else [group]
        yield from (f"{home}/{name}" for home in homes for name in names)


def own_metrics(test: Mapping[str, Any]) -> dict[str, float]:
    """The users' metrics of a run's test embeddings, by full name; those that need what the run lacks are left out.

    Args:
        test: tensor name -> array, as in the module docstring.
    """
    metrics = {}
    for name, record in _own().items():
        needs = REGISTRY.constant(record.name, "needs", ())
        if all(tensor in test for tensor in needs):
            metrics[name] = _value(name, REGISTRY.get(record.name), test)
    return metrics


def _value(name: str, function: Callable[..., Any], test: Mapping[str, Any]) -> float:
    try:
        return float(function(test))
    except Exception as error:
        raise MetricError(f"metric {name!r} ({function.__module__}): {type(error).__name__}: {error}") from error


def direction(name: str) -> Direction:
    """Whether a higher or a lower value of metric `name` is better; "none" for a descriptive quantity."""
    return find(name).direction


def label(name: str) -> str:
    """Name for a table's head or a figure's axis, without the arrow: `Recall@1 (validation)`."""
    record, parts = find(name), name.split("/")
    prefix = _PREFIXES[parts.pop(0)] if parts[0] in _PREFIXES and len(parts) > 1 else ""
    source = "/".join(parts[1:-1]) if len(parts) > 2 else "OOD" if parts[0] == "ood" else ""
    notes = ", ".join(note for note in (source, record.variant, _GROUPS.get(parts[0], ""), prefix) if note)
    number = parts[-1].rpartition("_at_")[2]
    text = record.label.replace("{k}", number) or parts[-1].replace("_", " ").capitalize()
    return f"{text} ({notes})" if notes else text


def arrow(name: str) -> str:
    """`↑` where higher is better, `↓` where lower is, else nothing."""
    return {"higher": "↑", "lower": "↓", "none": ""}[direction(name)]


def heading(name: str) -> str:
    """Label and arrow: `Recall@1 ↑`."""
    return f"{label(name)} {arrow(name)}".strip()


def better(name: str, first: float, second: float) -> bool:
    """Whether value `first` of metric `name` is strictly better than `second`."""
    return first < second if direction(name) == "lower" else first > second
