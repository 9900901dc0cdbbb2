"""Metrics of images from other datasets: are they told from the test images?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probmetric.metrics.image_errors import auroc_error
from probmetric.metrics.ood import ood_metrics, roc_curve
from probmetric.runs.evaluate_found import Found
from probmetric.runs.evaluate_settings import EvaluationSettings
from probmetric.runs.folder import Embeddings
from probmetric.trust.answers import Answers, ood_sets, ood_source, stranger_aurocs


def evaluate_ood(
    test: Embeddings, ood: Embeddings, settings: EvaluationSettings, answers: Mapping[str, Answers]
) -> Found:
    """Detection metrics and ROC curve of each set in `ood` against the test split, and the means over the sets.

    A set without images is left out. `answers` as in `evaluate_run`.
    """
    source = ood_source(ood)
    numbers = {name: number for number, name in enumerate(ood_sets(ood)) if np.any(source == number)}
    found = Found()
    for name, number in numbers.items():
        doubt = ood["uncertainty"][source == number]
        found.add(f"ood/{name}", ood_metrics(test["uncertainty"], doubt))
        rates = roc_curve(test["uncertainty"], doubt, points=settings.curve_points)
        found.curves[f"roc/{name}"] = {key: values.tolist() for key, values in rates.items()}
        found.errors[f"ood/{name}/auroc"] = auroc_error(test["uncertainty"], doubt)
        if "test" in answers and f"ood/{name}" in answers:
            found.add(f"ood/{name}", stranger_aurocs(answers["test"], answers[f"ood/{name}"]))
    if numbers:
        kinds = ("auroc", "auprc", "fpr_at_95")
        means = {kind: np.mean([found.metrics[f"ood/{name}/{kind}"] for name in numbers]) for kind in kinds}
        found.add("ood", {kind: float(value) for kind, value in means.items()})
    return found
