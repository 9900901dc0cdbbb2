"""All metrics that the library computes, one record each; a record stands beside the function that computes it.

A name is `<group>/<name>`, with `ood/<set>/<name>` for out-of-distribution sets.
"""

from __future__ import annotations

import re
from dataclasses import replace

from probmetric.metrics import (
    answers,
    calibration,
    classification,
    clustering,
    correlation,
    duration,
    ood,
    ranked,
    selective,
    structure,
    verification,
)
from probmetric.metrics.record import Metric
from probmetric.registry import registry_of

METRICS: tuple[Metric, ...] = (
    *ranked.METRICS,
    *clustering.METRICS,
    *structure.METRICS,
    *selective.METRICS,
    *classification.METRICS,
    *calibration.METRICS,
    *answers.METRICS,
    *correlation.METRICS,
    *verification.METRICS,
    *ood.METRICS,
    *duration.METRICS,
)
_BY_NAME = {(group, metric.name): metric for metric in METRICS for group in metric.groups}
_OF_SCORES = tuple(dict.fromkeys(metric.name for metric in METRICS if metric.name.endswith("{score}")))


def recorded(group: str, last: str) -> Metric | None:
    """Return the record of metric `<group>/<last>`, or None."""
    home = "ood" if group.startswith("ood/") else group
    pattern = re.sub(r"(?<=_at_)\d+$", "{k}", last)
    return _BY_NAME.get((home, last)) or _BY_NAME.get((home, pattern)) or _of_score(home, last)


def _of_score(group: str, last: str) -> Metric | None:
    """Return the record of what is measured of every score alike, with the score in it."""
    for name in _OF_SCORES if "auroc_" in last else ():
        prefix = name.removesuffix("{score}")
        score = last.removeprefix(prefix)
        if (group, name) in _BY_NAME and last.startswith(prefix) and score in registry_of("score").names():
            record = _BY_NAME[group, name]
            return replace(record, variant=", ".join(filter(None, (record.variant, score.replace("_", " ")))))
    return None
