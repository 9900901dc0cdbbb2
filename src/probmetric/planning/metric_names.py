"""Every metric name the evaluation and the reports compute, so that a misspelt one stops before any job.

A name is `<group>/<metric>`; docs/evaluation.md defines the metrics. Which of them a run has depends on its data
(classification needs test images of the training classes) and its uncertainty (samples); what it lacks is null.

    evaluation   retrieval, clustering, structure, sparsification, calibration, classification, ambiguity, ood,
                 verification (pairs of faces)
    reports      training: times, from a run's history; embedding: times, from its embed step
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from probmetric.config import ConfigError
from probmetric.registry import nearest

_MAP = ("map_at_r", "map_at_5", "map_at_10", "map_at_20", "map_at_1000", "map_at_1000_over_class_size")
_RETRIEVAL = (
    *_MAP,
    *("map_at_5_empty_as_one", "map_at_10_empty_as_one", "map_at_20_empty_as_one"),
    *("recall_at_1_empty_as_zero", "map_at_class_size", "r_precision", "mrr", "queries_without_positives"),
)
_SPARSIFICATION = (
    *("ausc", "ausc_as_published", "ausc_as_published_empty_as_zero", "ausc_query_and_neighbour"),
    *("ausc_gap_to_oracle", "aurc", "error_auroc"),
    *("accuracy_at_coverage_50", "accuracy_at_coverage_80", "accuracy_at_coverage_90"),
)
_STRUCTURE = (
    *("richness_kl", "richness_kl_without_first", "density", "uniformity", "cluster_diversity"),
    *("concentration_variance", "concentration_std"),
)
_OOD = ("auroc", "auprc", "fpr_at_95", "auprc_trapezoid", "base_rate")
_GROUPS: dict[str, tuple[str, ...]] = {
    "clustering": ("nmi", "ami", "f1"),
    "structure": (*_STRUCTURE, "proxy_w1", "proxy_w2"),
    "train/structure": _STRUCTURE,
    "sparsification": _SPARSIFICATION,
    "val/sparsification": _SPARSIFICATION,
    "classification": ("accuracy", "nll", "brier", "error_auroc"),
    "calibration": (
        *("ece", "ece_l2", "ece_equal_width", "ece_classwise", "ece_adaptive"),
        *("retrieval_ece", "retrieval_ece_as_published"),
    ),
    "ambiguity": ("spearman",),
    "verification": ("accuracy", "auroc", "eer", "tar_at_far_1"),
    "ood": _OOD,
    "training": ("epoch_seconds", "seconds", "epochs"),
    "embedding": ("test_seconds", "images_per_second"),
}
_RETRIEVAL_GROUPS = (
    *("retrieval", "val/retrieval", "last/retrieval", "retrieval_euclidean", "retrieval_poincare"),
    *("retrieval_day_to_night", "retrieval_night_to_day"),
)
_AT_K = re.compile(r"(?:recall|precision)_at_(\d+)")


def metric_names(ks: Iterable[int], ood: Iterable[str] = ()) -> list[str]:
    """Every name, with recall and precision at `ks` and the out-of-distribution sets `ood`."""
    retrieval = [*_RETRIEVAL, *(f"{kind}_at_{k}" for kind in ("recall", "precision") for k in sorted({1, *ks}))]
    groups = _GROUPS | dict.fromkeys(_RETRIEVAL_GROUPS, tuple(retrieval)) | {f"ood/{name}": _OOD for name in ood}
    return [f"{group}/{name}" for group, names in groups.items() for name in names]


def check_metrics(where: str, metrics: Iterable[str], *, ks: Iterable[int], ood: Iterable[str]) -> None:
    """Raise `ConfigError` for a metric nothing computes.

    Args:
        where: who asks, for the message.
        metrics: the names asked for.
        ks: `evaluation.ks`.
        ood: out-of-distribution sets of the runs at hand.
    """
    ks, ood = tuple(ks), tuple(dict.fromkeys(ood))
    known = metric_names(ks, ood)
    for name in metrics:
        if name in known:
            continue
        group, _, last = name.rpartition("/")
        at_k = _AT_K.fullmatch(last)
        if at_k and group in _RETRIEVAL_GROUPS:
            raise ConfigError(f"{where}: metric {name!r} needs {at_k[1]} in evaluation.ks of params.yaml, now {ks}.")
        if group.startswith("ood/"):
            sets = ", ".join(ood) or "none"
            raise ConfigError(
                f"{where}: metric {name!r}: no run has {group.removeprefix('ood/')!r} as out-of-distribution set or "
                f"{last!r} is not measured on it (sets: {sets}; see `ood` in params.yaml; metrics: "
                f"{', '.join(_OOD)})."
            )
        same_group = [other for other in known if other.rpartition("/")[0] == group]
        raise ConfigError(f"{where}: nothing computes metric {name!r}; {nearest(name, same_group or known)}")
