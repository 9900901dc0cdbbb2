"""Temperature-scaled softmax (Guo et al. 2017): one temperature, fitted on validation images.

T minimises the negative log-likelihood of the validation labels under p_c(T) ∝ p_c^(1/T)
(`probmetric.metrics.fit_temperature`). It works for closed sets only: validation images must show training classes,
with labels 0..C-1 as the loss numbers them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from probmetric.metrics.temperature import fit_temperature
from probmetric.uncertainty import register
from probmetric.uncertainty._base import (
    DirectionalBatch,
    Fitting,
    Posterior,
    Predictor,
    Uncertainty,
    evaluating,
    seed_from,
)
from probmetric.uncertainty.softmax import check_classes, class_log_probabilities, classified


@register
class Temperature(Uncertainty):
    """Doubt of the class probabilities at the temperature fitted on validation images."""

    fits = True
    closed_set = True
    needs_classifier = True
    needs = ("temperature",)

    def __init__(self, *, score: Literal["confidence", "entropy"] = "confidence") -> None:
        self.score: Literal["confidence", "entropy"] = score

    def fitted(self, fitting: Fitting) -> Posterior:
        """Fit the temperature to validation batches of (images (B, ...), labels (B,)); read no training batch."""
        if fitting.validation is None:
            raise ValueError("temperature is fitted on validation images, but fit got none; pass validation=.")
        seed, loss = seed_from(fitting.generator), fitting.loss
        with evaluating(fitting.encoder, loss):
            rows, targets = [], []
            for images, labels in fitting.validation:
                embeddings = fitting.encoder(images)
                rows.append(class_log_probabilities(loss, embeddings, seed).double().cpu())
                targets.append(labels.cpu())
        log_probabilities, target = torch.cat(rows), torch.cat(targets)
        remedy = "temperature scaling needs a closed-set split"
        check_classes(target, log_probabilities.shape[1], "validation", remedy)
        return {"temperature": torch.tensor(fit_temperature(log_probabilities.numpy(), target.numpy()))}

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional means and class probabilities of raw embeddings (N, M)."""
        return classified(rows, predictor.loss, float(predictor.posterior["temperature"]), self.score, predictor.seed)
