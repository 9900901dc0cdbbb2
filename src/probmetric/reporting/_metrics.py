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
    "r_precision": ("R-precision", "higher"),
    "nmi": ("NMI", "higher"),
    "ami": ("AMI", "higher"),
    "f1": ("F1", "higher"),
    "accuracy": ("Accuracy", "higher"),
    "auroc": ("AUROC", "higher"),
    "auprc": ("AUPRC", "higher"),
    "ausc": ("AUSC", "higher"),
    "ausc_gain": ("AUSC gain", "higher"),
    "spearman": ("Spearman", "higher"),
    "ece": ("ECE", "lower"),
    "mce": ("MCE", "lower"),
    "brier": ("Brier score", "lower"),
    "nll": ("NLL", "lower"),
    "fpr95": ("FPR95", "lower"),
    "aurc": ("AURC", "lower"),
    "train_loss": ("Training loss", "lower"),
}
_AT_K = re.compile(r"(recall|precision|map)_at_(\d+)")
_AT_NAMES = {"recall": "Recall", "precision": "Precision", "map": "MAP"}
_PREFIXES = {"last": "last epoch", "val": "validation"}


def direction(metric: str) -> Direction:
    """Whether a higher or a lower value of `metric` is better; "none" for a descriptive quantity."""
    last = metric.rsplit("/", 1)[-1]
    if _AT_K.fullmatch(last):
        return "higher"
    return next((known[1] for name, known in _LABELS.items() if _is(last, name)), "none")


def label(metric: str) -> str:
    """Name for a table's head or a figure's axis, without the arrow."""
    parts = metric.split("/")
    notes = [_PREFIXES[parts.pop(0)]] if parts[0] in _PREFIXES and len(parts) > 1 else []
    last = parts[-1]
    at_k = _AT_K.fullmatch(last)
    known = next((entry[0] for name, entry in _LABELS.items() if _is(last, name)), None)
    text = f"{_AT_NAMES[at_k[1]]}@{at_k[2]}" if at_k else known or last.replace("_", " ").capitalize()
    if known and last not in _LABELS:
        notes.insert(0, _qualifier(last))
    if len(parts) > 2:
        notes.insert(0, "/".join(parts[1:-1]))
    elif parts[0] == "ood":
        notes.insert(0, "OOD")
    return f"{text} ({', '.join(notes)})" if notes else text


def arrow(metric: str) -> str:
    """`↑` where higher is better, `↓` where lower is, else nothing."""
    return {"higher": "↑", "lower": "↓", "none": ""}[direction(metric)]


def heading(metric: str) -> str:
    """Label and arrow: `Recall@1 ↑`."""
    return f"{label(metric)} {arrow(metric)}".strip()


def better(metric: str, first: float, second: float) -> bool:
    """Whether value `first` is strictly better than `second`."""
    return first < second if direction(metric) == "lower" else first > second


def _is(last: str, name: str) -> bool:
    return last == name or last.startswith(f"{name}_") or last.endswith(f"_{name}")


def _qualifier(last: str) -> str:
    known = next(name for name in _LABELS if _is(last, name))
    return last.removeprefix(f"{known}_").removesuffix(f"_{known}").replace("_", " ")
