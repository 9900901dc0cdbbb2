"""Predicted loss (Yoo and Kweon 2019): a small network on the frozen features predicts the classifier's loss.

    u(x) = softplus(MLP(h))      MLP: D -> width -> 1, trained by mean squared error to predict -log p(y | x) of the
                                 training images (as "Loss Prediction" of Kirchhof et al. 2023, URL)

h are the encoder's features (D,). The encoder is frozen and in evaluation mode, so features are computed once.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.registry import Count, LearningRate, StepCount
from probmetric.uncertainty import register
from probmetric.uncertainty._base import (
    DirectionalBatch,
    Fitting,
    Posterior,
    Predictor,
    Uncertainty,
    embedded,
    evaluating,
    polar,
    trained,
)
from probmetric.uncertainty.softmax import check_classes, class_log_probabilities


@register
class LossPrediction(Uncertainty):
    """Loss of an image, predicted from its features by a small network."""

    fits, needs_classifier = True, True
    needs = ("0.weight",)

    def __init__(self, *, width: StepCount = 256, epochs: Count = 20, learning_rate: LearningRate = 1e-3) -> None:
        self.width, self.epochs, self.learning_rate = width, epochs, learning_rate

    def fitted(self, fitting: Fitting) -> Posterior:
        """Train the network on the losses of the training images; returns its tensors."""
        batches = _losses(fitting)
        make = functools.partial(_network, batches[0][0].shape[1], self.width)
        network = trained(make, F.mse_loss, batches, fitting, epochs=self.epochs, learning_rate=self.learning_rate)
        return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}

    def represent(self, images: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of `images` (B, ...)."""
        encoder, posterior = predictor.encoder, predictor.posterior
        features = encoder.features(images)
        embeddings = embedded(encoder, features)
        with torch.device("meta"):
            network = _network(features.shape[1], len(posterior["0.weight"]))
        network.load_state_dict({name: value.to(features) for name, value in posterior.items()}, assign=True)
        probabilities = predictor.probabilities(embeddings)
        return DirectionalBatch(polar(embeddings)[0], network(features), probabilities=probabilities)


def _network(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1), nn.Softplus(), nn.Flatten(0))


def _losses(fitting: Fitting) -> list[tuple[Tensor, Tensor]]:
    """Return features (B, D) and -log p of the right class (B,) of every batch."""
    encoder, device, made = fitting.encoder, fitting.device, []
    with evaluating(encoder, fitting.loss):
        for images, labels in fitting.batches:
            features = encoder.features(images)
            log_probabilities = class_log_probabilities(fitting.loss, embedded(encoder, features), 0)
            check_classes(labels, log_probabilities.shape[1], "training", "create the loss with the number of classes")
            made.append((features, -log_probabilities.gather(1, labels.to(device)[:, None]).squeeze(1)))
    return made
