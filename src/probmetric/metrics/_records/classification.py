"""Of class probabilities."""

from __future__ import annotations

from probmetric.metrics._metric import Metric, measured

CLASSIFICATION = measured(
    ("classification",),
    "metrics.classification",
    Metric("accuracy", "Accuracy", "higher", "share of images whose most probable class is right"),
    Metric("nll", "NLL", "lower", "mean −log p(label)"),
    Metric("brier", "Brier score", "lower", "mean Σ (p − onehot)² in [0, 2]"),
    Metric(
        "error_auroc",
        "AUROC",
        "higher",
        "AUROC of the uncertainty for wrongly against rightly classified images",
        "paper 002, table 1",
        "error",
    ),
)

_CALIBRATION = (
    Metric("ece", "ECE", "lower", "top-label, 15 bins of equal mass, L1"),
    Metric("ece_l2", "ECE", "lower", "the same with the root of the mean square", "what paper 002 prints as ECE", "l2"),
    Metric("ece_equal_width", "ECE", "lower", "15 bins of equal width, L1", "Guo et al. 2017", "equal width"),
    Metric(
        "ece_classwise",
        "ECE",
        "lower",
        "mean over classes of each column's error, equal width",
        "Nixon et al. 2019",
        "classwise",
    ),
    Metric("ece_adaptive", "ECE", "lower", "the same, equal mass", "Nixon et al. 2019", "adaptive"),
    Metric(
        "retrieval_ece",
        "ECE",
        "lower",
        "nearest neighbour in each of S samples; confidence = share of the winning label; 10 bins of equal width",
        variant="retrieval",
    ),
    Metric(
        "retrieval_ece_as_published",
        "ECE",
        "lower",
        "the same with the last bin open, which drops unanimous votes",
        "paper 003's code",
        "retrieval as published",
    ),
)

CALIBRATION = measured(("calibration",), "metrics.calibration", *_CALIBRATION)
