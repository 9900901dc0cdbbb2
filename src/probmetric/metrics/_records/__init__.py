"""All metrics that the library computes, one record each, by what they are of.

A name is `<group>/<name>`, with `ood/<set>/<name>` for out-of-distribution sets.
"""

from __future__ import annotations

from probmetric.metrics._metric import Metric
from probmetric.metrics._records import classification, cost, retrieval, strangers, structure, uncertainty

METRICS: tuple[Metric, ...] = (
    *retrieval.RETRIEVAL,
    *structure.CLUSTERING,
    *structure.STRUCTURE,
    *uncertainty.SPARSIFICATION,
    *classification.CLASSIFICATION,
    *classification.CALIBRATION,
    *uncertainty.TRUST,
    *uncertainty.DISTORTION,
    *retrieval.VERIFICATION,
    *strangers.OOD,
    *cost.TRAINING,
    *cost.EMBEDDING,
)
