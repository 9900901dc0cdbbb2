"""The metrics by which runs are compared at a glance: what MLflow's run table and searches hold of a run."""

from __future__ import annotations

_ANSWERS = ("recall_at_1", "map_at_r")
_GROUPS: dict[str, tuple[str, ...]] = {
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
HEADLINES: tuple[str, ...] = tuple(f"{group}/{name}" for group, names in _GROUPS.items() for name in names)
