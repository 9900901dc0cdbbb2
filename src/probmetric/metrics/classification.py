"""Compute classification metrics from class probabilities.

accuracy  share of images whose most probable class is the label (ties: the lowest class number)
nll       mean of -log p(label), natural logarithm, probabilities below 1e-12 count as 1e-12
brier     mean over images of sum_c (p_c - 1[c = label])^2, in [0, 2]
ece       calibration error of the most probable class, 15 bins of equal mass, L1. `ece_l2` is paper 002's number,
          `ece_equal_width` that of Guo et al. 2017
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.calibration import calibration_error, classwise_calibration_error
from probmetric.metrics.record import table

METRICS = table(
    "classification",
    __name__,
    """
    accuracy | Accuracy ↑ | share of images whose most probable class is right
    nll | NLL ↓ | mean over images of −log p(label)
    brier | Brier score ↓ | mean over images of Σ (p − onehot)² over the classes, in [0, 2]
    error_auroc | AUROC (error) ↑ | P(a wrongly classified image is less certain than a rightly classified one); ties
        count half | paper 002, table 1
    """,
)


def classification_metrics(probabilities: Any, labels: Any, *, bins: int = 15) -> dict[str, float]:
    """Return accuracy, NLL, Brier score and calibration errors of `probabilities` (N,C) for `labels` (N,) in 0..C-1.

    Examples:
        >>> classification_metrics([[0.8, 0.2], [0.4, 0.6]], [0, 0])["accuracy"]
        0.5
    """
    rows = arrays.probability_matrix(probabilities)
    classes = arrays.labels_of(labels, len(rows), "labels", "probabilities")
    beyond = np.flatnonzero(classes >= rows.shape[1])
    if beyond.size:
        raise ValueError(
            f"labels: entry {beyond[0]} is {classes[beyond[0]]}, but probabilities have {rows.shape[1]} columns; "
            "pass only images of the classes the model was trained on."
        )
    likelihood = rows[np.arange(len(rows)), classes]
    correct = rows.argmax(axis=1) == classes
    confidence = np.minimum(rows.max(axis=1), 1.0)
    return {
        "accuracy": float(correct.mean()),
        "nll": float(-np.log(np.maximum(likelihood, 1e-12)).mean()),
        "brier": float((np.einsum("ij,ij->i", rows, rows) - 2 * likelihood + 1).mean()),
        "ece": calibration_error(confidence, correct, bins=bins),
        "ece_l2": calibration_error(confidence, correct, bins=bins, norm="l2"),
        "ece_equal_width": calibration_error(confidence, correct, bins=bins, scheme="equal_width"),
        "ece_classwise": classwise_calibration_error(rows, classes, bins=bins),
        "ece_adaptive": classwise_calibration_error(rows, classes, bins=bins, scheme="equal_mass"),
    }
