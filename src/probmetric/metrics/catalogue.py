"""Collect the records of all metrics that the library computes; each is written beside the function that computes it.

A metric's full name is `<group>/<name>`, or `ood/<set>/<name>` for an out-of-distribution set.
"""

from __future__ import annotations

import re
from dataclasses import replace

from probmetric.metrics import (
    calibration,
    classification,
    clustering,
    correlation,
    elsewhere,
    ood,
    ranked,
    selective,
    structure,
    threshold,
    verification,
)
from probmetric.metrics.record import Metric
from probmetric.registry import registry_of

METRICS: tuple[Metric, ...] = (
    *ranked.METRICS,
    *clustering.METRICS,
    *structure.METRICS,
    *threshold.METRICS,
    *selective.METRICS,
    *classification.METRICS,
    *calibration.METRICS,
    *elsewhere.METRICS,
    *correlation.METRICS,
    *verification.METRICS,
    *ood.METRICS,
)
_BY_NAME = {(group, metric.name): metric for metric in METRICS for group in metric.groups}
_OF_SCORES = {name.removesuffix("{score}") for _, name in _BY_NAME if name.endswith("{score}")}


def recorded(group: str, last: str) -> Metric | None:
    """Return the record of metric `<group>/<last>`, or None; the variant of a score's metric names the score."""
    home = "ood" if group.startswith("ood/") else group
    record = _BY_NAME.get((home, last)) or _BY_NAME.get((home, re.sub(r"(?<=_at_)\d+$", "{k}", last)))
    for prefix in _OF_SCORES if record is None else ():
        record, score = _BY_NAME.get((home, f"{prefix}{{score}}")), last.removeprefix(prefix)
        if record and score != last and score in registry_of("score").names():
            return replace(record, variant=", ".join(filter(None, (record.variant, score.replace("_", " ")))))
        record = None
    return record
