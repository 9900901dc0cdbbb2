"""Of images from another world."""

from __future__ import annotations

from probmetric.metrics._metric import Metric, measured

OOD = measured(
    ("ood",),
    "metrics.ood",
    Metric("auroc", "AUROC", "higher", "P(out is less certain than in), ties half"),
    Metric(
        "auroc_{score}",
        "AUROC",
        "higher",
        "the same for a score of the answer, a test image",
    ),
    Metric(
        "scod_auroc",
        "AUROC",
        "higher",
        "P(a wrong answer or a stranger is less certain than a right answer)",
        "selective classification in the presence of strangers",
        variant="errors and strangers",
    ),
    Metric(
        "scod_auroc_{score}",
        "AUROC",
        "higher",
        "the same for a score of the answer",
        variant="errors and strangers",
    ),
    Metric("auprc", "AUPRC", "higher", "average precision, out is positive"),
    Metric(
        "auprc_trapezoid",
        "AUPRC",
        "higher",
        "area under the linearly joined precision-recall curve; optimistic",
        "paper 003",
        "trapezoid",
    ),
    Metric(
        "fpr_at_95",
        "FPR@95",
        "lower",
        "share of in-distribution images flagged when at least 95 % of the others are",
    ),
    Metric("base_rate", "", "none", "share of out-of-distribution images, the `auprc` of chance"),
)
