"""Softmax confidence of the loss's own classifier: the plain closed-set baseline.

p_c(T) ∝ p_c^(1/T), which is the softmax of logits divided by the temperature T. Uncertainty is 1 − max_c p_c
("confidence", computed as the sum over the other classes so that it does not round to 0) or the entropy in nats. For a
loss whose classifier draws samples (vMF), `probabilities` are the means over its draws. The classifier does not know
open-set test classes; there the score tells how unlike the training classes an image is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from probmetric.registry import Positive
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Predictor, Uncertainty, class_probabilities, polar

if TYPE_CHECKING:
    from probmetric.losses import Loss

Doubt = Literal["confidence", "entropy"]


@register
class Softmax(Uncertainty):
    """Doubt of the class probabilities at a given temperature."""

    needs_classifier = True

    def __init__(self, *, score: Literal["confidence", "entropy"] = "confidence", temperature: Positive = 1.0) -> None:
        self.score: Doubt = score
        self.temperature = temperature

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional means and class probabilities of raw embeddings (N, M)."""
        return classified(rows, predictor.loss, self.temperature, self.score, predictor.seed)


def classified(embeddings: Tensor, loss: Loss | None, temperature: float, score: Doubt, seed: int) -> DirectionalBatch:
    """Return the record of raw embeddings (B, M) with class probabilities at `temperature` and their doubt."""
    log_probabilities = class_log_probabilities(loss, embeddings, seed)
    probabilities = (log_probabilities / temperature).softmax(1)
    return DirectionalBatch(
        mean=polar(embeddings)[0],
        uncertainty=doubt(probabilities, score),
        probabilities=probabilities,
    )


def class_log_probabilities(loss: Loss | None, embeddings: Tensor, seed: int) -> Tensor:
    """Return log class probabilities (B, C) of embeddings (B, M); an error for a loss without a classifier."""
    probabilities = class_probabilities(loss, embeddings, seed)
    if probabilities is None:
        raise ValueError(
            f"loss is {type(loss).__name__}, which defines no class probabilities; softmax, temperature and "
            "loss_prediction need one that does: pass loss=, for instance cosine, arcface, softmax or vmf. Or use norm "
            "or laplace."
        )
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def check_classes(labels: Tensor, classes: int, use: str, remedy: str) -> None:
    """Raise a ValueError if labels (N,) of the images for `use` are no classes 0..C-1 of the classifier."""
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < 0 or high >= classes:
        raise ValueError(f"{use} labels span {low}..{high}, the classifier knows 0..{classes - 1}; {remedy}.")


def doubt(probabilities: Tensor, score: Doubt) -> Tensor:
    """Return the uncertainty (B,) of class probabilities (B, C)."""
    if score == "entropy":
        return torch.special.entr(probabilities).sum(1)
    others = probabilities.scatter(1, probabilities.argmax(1, keepdim=True), 0.0)
    return others.sum(1)
