"""Predicted loss (Yoo and Kweon 2019): a small network on the frozen features predicts the classifier's loss.

    u(x) = softplus(MLP(h))      MLP: D -> width -> 1, trained by mean squared error to predict -log p(y | x) of the
                                 training images (as "Loss Prediction" of Kirchhof et al. 2023, URL)

h are the encoder's features (D,). The encoder is frozen and in evaluation mode, so features are computed once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.lazy import uncompiled
from probmetric.registry import Count, LearningRate, StepCount
from probmetric.uncertainty import register
from probmetric.uncertainty._base import (
    DirectionalBatch,
    Fitting,
    Posterior,
    Predictor,
    Uncertainty,
    class_probabilities,
    evaluating,
    polar,
    seed_from,
)


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
        shuffle = torch.Generator().manual_seed(seed_from(fitting.generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(shuffle.initial_seed())
            network = _network(batches[0][0].shape[1], self.width).to(fitting.device)
        optimizer = uncompiled(torch.optim.Adam)(network.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            for index in torch.randperm(len(batches), generator=shuffle).tolist():
                features, losses = batches[index]
                optimizer.zero_grad()
                F.mse_loss(network(features).squeeze(1), losses).backward()
                optimizer.step()
        return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}

    def represent(self, images: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of `images` (B, ...)."""
        encoder, posterior = predictor.encoder, predictor.posterior
        features = encoder.features(images)
        embeddings = features if encoder.head is None else encoder.head(features)
        with torch.device("meta"):
            network = _network(features.shape[1], len(posterior["0.weight"]))
        network.load_state_dict({name: value.to(features) for name, value in posterior.items()}, assign=True)
        doubt = network(features).squeeze(1)
        return DirectionalBatch(polar(embeddings)[0], doubt, probabilities=predictor.probabilities(embeddings))


def _network(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1), nn.Softplus())


def _losses(fitting: Fitting) -> list[tuple[Tensor, Tensor]]:
    """Return features (B, D) and -log p of the right class (B,) of every batch."""
    encoder, device, made = fitting.encoder, fitting.device, []
    with evaluating(encoder, fitting.loss):
        for images, labels in fitting.batches:
            features = encoder.features(images)
            embeddings = features if encoder.head is None else encoder.head(features)
            probabilities = class_probabilities(fitting.loss, embeddings, 0)
            if probabilities is None:
                raise ValueError(
                    f"loss {type(fitting.loss).__name__} defines no class probabilities; loss_prediction needs one "
                    "that does: pass loss=, for instance cosine, arcface, softmax or vmf."
                )
            chosen = probabilities.gather(1, labels.to(device)[:, None]).squeeze(1)
            made.append((features, -chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log()))
    return made
