"""Look up metrics by name: which way is better, what tables and figures call them, which ones compare runs first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from probmetric.errors import nearest
from probmetric.metrics.catalogue import METRICS, recorded
from probmetric.metrics.own import own_records
from probmetric.metrics.record import Direction, Metric
from probmetric.registry import UnknownNameError, registry_of

Key = TypeVar("Key")

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
_ANSWERS = ("recall_at_1", "map_at_r")
_HEADLINES: dict[str, tuple[str, ...]] = {
    "retrieval": (*_ANSWERS, "recall_at_5", "r_precision", "mrr"),
    "val/retrieval": _ANSWERS,
    "last/retrieval": _ANSWERS,
    "classification": ("accuracy", "nll", "brier"),
    "calibration": ("ece", "retrieval_ece"),
    "clustering": ("nmi", "f1"),
    "sparsification": ("ausc", "aurc", "augrc", "error_auroc", "risk_at_coverage_80", "coverage_at_risk_5"),
    "trust": ("free", "both", "added", "added_low", "added_high"),
    "p_right": ("nll", "ece"),
    "ood": ("auroc", "auprc", "fpr_at_95"),
    "verification": ("accuracy", "auroc"),
    "structure": ("uniformity", "density"),
    "distortion": ("spearman",),
    "exact": ("bayes_accuracy", "error_auroc_regret", "p_right_regret"),
    "training": ("selected_epoch", "seconds"),
    "embedding": ("images_per_second",),
}
HEADLINES: tuple[str, ...] = tuple(f"{group}/{name}" for group, names in _HEADLINES.items() for name in names)


def is_headline(name: str) -> bool:
    """Say whether short tables compare runs by this metric: it is one of `HEADLINES`, or a user's own."""
    group, _, last = name.rpartition("/")
    if group.startswith("ood/"):
        return last == "auroc"
    return name in HEADLINES or group not in {each for record in METRICS for each in record.groups}


def find(name: str) -> Metric:
    """Return the record of the metric with full name `name` (`retrieval/recall_at_4`, `ood/cub/auroc`).

    Raises:
        UnknownNameError: no metric has that name; the message gives the nearest name.
    """
    group, _, last = name.rpartition("/")
    record = recorded(group, last) or own_records().get(name)
    if record is None:
        raise UnknownNameError(f"unknown metric {name!r}: {nearest(name, metric_names((1,)))}")
    return record


def metric_names(ks: Iterable[int], ood: Iterable[str] = ()) -> list[str]:
    """Return every full name; recall and precision are at the cutoffs `ks`, out-of-distribution sets are `ood`."""
    numbers, sets = sorted({1, *ks}), tuple(ood)
    return [name for record in METRICS for name in _full_names(record, numbers, sets)] + list(own_records())


def _full_names(record: Metric, ks: Iterable[int], ood: Iterable[str]) -> Iterator[str]:
    names = [record.name.replace("{k}", str(k)) for k in ks] if "{k}" in record.name else [record.name]
    if "{score}" in record.name:
        names = [record.name.replace("{score}", score) for score in registry_of("score").names()]
    for group in record.groups:
        homes = [group, *(f"ood/{other}" for other in ood)] if group == "ood" else [group]
        yield from (f"{home}/{name}" for home in homes for name in names)


def direction(name: str) -> Direction:
    """Say whether a higher or a lower value of metric `name` is better; "none" for a descriptive quantity."""
    return find(name).direction


def label(name: str) -> str:
    """Return the name for a table's head or a figure's axis, without the arrow: `Recall@1 (validation)`."""
    record, parts = find(name), name.split("/")
    prefix = _PREFIXES[parts.pop(0)] if parts[0] in _PREFIXES and len(parts) > 1 else ""
    source = "/".join(parts[1:-1]) if len(parts) > 2 else "OOD" if parts[0] == "ood" else ""
    notes = ", ".join(note for note in (source, record.variant, _GROUPS.get(parts[0], ""), prefix) if note)
    number = parts[-1].rpartition("_at_")[2]
    text = record.label.replace("{k}", number) or parts[-1].replace("_", " ").capitalize()
    return f"{text} ({notes})" if notes else text


def arrow(name: str) -> str:
    """Return `↑` where a higher value is better, `↓` where a lower one is, else ""."""
    return {"higher": "↑", "lower": "↓", "none": ""}[direction(name)]


def heading(name: str) -> str:
    """Return label and arrow: `Recall@1 ↑`."""
    return f"{label(name)} {arrow(name)}".strip()


def better(name: str, first: float, second: float) -> bool:
    """Say whether value `first` of metric `name` is strictly better than `second`."""
    return first < second if direction(name) == "lower" else first > second


def best(name: str, values: Mapping[Key, float]) -> Key:
    """Return the key of the best of the `values` of metric `name`; of equal values the first key."""
    choose = min if direction(name) == "lower" else max
    return choose(values, key=values.__getitem__)
