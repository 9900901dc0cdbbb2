"""Compute metrics: NumPy arrays or torch tensors go in, plain numbers come out.

Each file holds one family of metrics: functions, names, directions, units and definitions. A module is imported when
one of its names is used, and imports NumPy and SciPy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.metrics.calibration import Reliability, calibration_error, classwise_calibration_error, reliability
    from probmetric.metrics.catalogue import METRICS
    from probmetric.metrics.classification import classification_metrics
    from probmetric.metrics.clustering import agreement, clustering_metrics
    from probmetric.metrics.correlation import spearman
    from probmetric.metrics.names import (
        arrow,
        best,
        better,
        direction,
        find,
        heading,
        is_headline,
        label,
        metric_names,
    )
    from probmetric.metrics.ood import auroc, ood_metrics, roc_curve
    from probmetric.metrics.own import REGISTRY, MetricError, metric, own_metrics
    from probmetric.metrics.pairwise import pairwise_tests, pooled_variances
    from probmetric.metrics.record import Direction, Metric
    from probmetric.metrics.selective import SparsificationCurve, selective_metrics, sparsification
    from probmetric.metrics.statistics import (
        PairedResult,
        Sample,
        UnitVariance,
        holm,
        mean_interval,
        paired_test,
        seeds_needed,
        sign_flip_test,
        unit_variance,
    )
    from probmetric.metrics.structure import proxy_transport, structure_metrics
    from probmetric.metrics.temperature import fit_temperature, scaled_probabilities
    from probmetric.metrics.threshold import threshold_metrics
    from probmetric.metrics.verification import verification_metrics

__all__ = [
    "METRICS",
    "REGISTRY",
    "Direction",
    "Metric",
    "MetricError",
    "PairedResult",
    "Reliability",
    "Sample",
    "SparsificationCurve",
    "UnitVariance",
    "agreement",
    "arrow",
    "auroc",
    "best",
    "better",
    "calibration_error",
    "classification_metrics",
    "classwise_calibration_error",
    "clustering_metrics",
    "direction",
    "find",
    "fit_temperature",
    "heading",
    "holm",
    "is_headline",
    "label",
    "mean_interval",
    "metric",
    "metric_names",
    "ood_metrics",
    "own_metrics",
    "paired_test",
    "pairwise_tests",
    "pooled_variances",
    "proxy_transport",
    "reliability",
    "roc_curve",
    "scaled_probabilities",
    "seeds_needed",
    "selective_metrics",
    "sign_flip_test",
    "sparsification",
    "spearman",
    "structure_metrics",
    "threshold_metrics",
    "unit_variance",
    "verification_metrics",
]

__getattr__ = exported(__name__)
