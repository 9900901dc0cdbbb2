"""A misspelt metric stops before any job: which metrics the evaluation, the reports and plugins have, see `metrics`.

Which of them a run has depends on its data (classification needs test images of the training classes) and its
uncertainty (samples); what it lacks is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from probmetric.config import ConfigError
from probmetric.errors import nearest
from probmetric.metrics import METRICS, metric_names

_AT_K = re.compile(r"(?:recall|precision)_at_(\d+)")


def check_metrics(where: str, metrics: Iterable[str], *, ks: Iterable[int], ood: Iterable[str]) -> None:
    """Raise `ConfigError` for a metric nothing computes.

    Args:
        where: who asks, for the message.
        metrics: the names asked for.
        ks: `evaluation.ks`.
        ood: out-of-distribution sets of the runs at hand.
    """
    ks, ood = tuple(ks), tuple(dict.fromkeys(ood))
    computed = metric_names(ks, ood)
    for name in metrics:
        if name in computed:
            continue
        group, _, last = name.rpartition("/")
        at_k = _AT_K.fullmatch(last)
        if at_k and f"{group}/recall_at_1" in computed:
            raise ConfigError(f"{where}: metric {name!r} needs {at_k[1]} in evaluation.ks of params.yaml, now {ks}.")
        if group.startswith("ood/"):
            sets = ", ".join(ood) or "none"
            measured = ", ".join(metric.name for metric in METRICS if "ood" in metric.groups)
            raise ConfigError(
                f"{where}: metric {name!r}: no run has {group.removeprefix('ood/')!r} as out-of-distribution set or "
                f"{last!r} is not measured on it (sets: {sets}; see `ood` in params.yaml; metrics: {measured})."
            )
        same_group = [other for other in computed if other.rpartition("/")[0] == group]
        raise ConfigError(f"{where}: nothing computes metric {name!r}; {nearest(name, same_group or computed)}")
