"""What a metric is called for a reader and which direction is better.

Names are `<group>/<metric>`, with `<group>/<source>/<metric>` for out-of-distribution sets, and a leading `val/` or
`last/` for the validation split and the last epoch's weights.
"""

from __future__ import annotations

import re
from typing import Literal

Direction = Literal["higher", "lower", "none"]

_LABELS: dict[str, tuple[str, Direction]] = {
    "map_at_r": ("MAP@R", "higher"),
    "map_at_class_size": ("MAP@class size", "higher"),
    "mrr": ("MRR", "higher"),
    "r_precision": ("R-precision", "higher"),
    "nmi": ("NMI", "higher"),
    "ami": ("AMI", "higher"),
    "f1": ("F1", "higher"),
    "accuracy": ("Accuracy", "higher"),
    "auroc": ("AUROC", "higher"),
    "auprc": ("AUPRC", "higher"),
    "ausc": ("AUSC", "higher"),
    "ausc_gap_to_oracle": ("AUSC gap to oracle", "lower"),
    "aurc": ("AURC", "lower"),
    "spearman": ("Spearman", "higher"),
    "ece": ("ECE", "lower"),
    "mce": ("MCE", "lower"),
    "brier": ("Brier score", "lower"),
    "nll": ("NLL", "lower"),
    "fpr_at_95": ("FPR@95", "lower"),
    "eer": ("Equal error rate", "lower"),
    "tar_at_far_1": ("TAR at 1 % FAR", "higher"),
    "richness_kl": ("Spectrum KL", "none"),
    "uniformity": ("Uniformity", "none"),
    "cluster_diversity": ("Cluster diversity", "none"),
    "w1": ("W1", "lower"),
    "w2": ("W2", "lower"),
    "epoch_seconds": ("Seconds per epoch", "lower"),
    "seconds": ("Seconds", "lower"),
    "test_seconds": ("Seconds to embed the test images", "lower"),
    "images_per_second": ("Images/s", "higher"),
}
_AT_K = re.compile(r"(recall|precision|map)_at_(\d+)(?:_(\w+))?")
_AT_NAMES = {"recall": "Recall", "precision": "Precision", "map": "MAP"}
_PREFIXES = {"last": "last epoch", "train": "training images", "val": "validation"}
_DISTANCES = {
    "retrieval_euclidean": "Euclidean",
    "retrieval_poincare": "Poincaré",
    "retrieval_day_to_night": "day to night",
    "retrieval_night_to_day": "night to day",
    "verification": "pairs",
}


def direction(metric: str) -> Direction:
    """Whether a higher or a lower value of `metric` is better; "none" for a descriptive quantity."""
    last = metric.rsplit("/", 1)[-1]
    known = _known(last)
    return _LABELS[known][1] if known else "higher" if _AT_K.fullmatch(last) else "none"


def label(metric: str) -> str:
    """Name for a table's head or a figure's axis, without the arrow."""
    parts = metric.split("/")
    prefix = _PREFIXES[parts.pop(0)] if parts[0] in _PREFIXES and len(parts) > 1 else ""
    text, variant = _text(parts[-1])
    source = "/".join(parts[1:-1]) if len(parts) > 2 else "OOD" if parts[0] == "ood" else ""
    notes = ", ".join(note for note in (source, variant, _DISTANCES.get(parts[0], ""), prefix) if note)
    return f"{text} ({notes})" if notes else text


def _text(last: str) -> tuple[str, str]:
    """(name, which variant of it): `ausc_as_published` -> ("AUSC", "as published")."""
    known = _known(last)
    if known:
        return _LABELS[known][0], " ".join(last.replace(known, "", 1).replace("_", " ").split())
    at_k = _AT_K.fullmatch(last)
    if at_k:
        return f"{_AT_NAMES[at_k[1]]}@{at_k[2]}", (at_k[3] or "").replace("_", " ")
    return last.replace("_", " ").capitalize(), ""


def _known(last: str) -> str:
    """The longest catalogued name that `last` is or holds as words of its own; empty where there is none."""
    fits = [name for name in _LABELS if f"_{name}_" in f"_{last}_"]
    return max(fits, key=len, default="")


def arrow(metric: str) -> str:
    """`↑` where higher is better, `↓` where lower is, else nothing."""
    return {"higher": "↑", "lower": "↓", "none": ""}[direction(metric)]


def heading(metric: str) -> str:
    """Label and arrow: `Recall@1 ↑`."""
    return f"{label(metric)} {arrow(metric)}".strip()


def better(metric: str, first: float, second: float) -> bool:
    """Whether value `first` is strictly better than `second`."""
    return first < second if direction(metric) == "lower" else first > second
