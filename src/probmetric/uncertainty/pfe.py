"""Probabilistic face embeddings (Shi and Jain 2019), as compared in paper 003: a variance head on a frozen encoder.

The head minimises, over mined positive pairs (a, p) and dimensions, the mean of

    (μ_a − μ_p)²/(σ_a² + σ_p²) + log(σ_a² + σ_p²)

with μ the normalised embedding of the trained encoder. The encoder is frozen completely: it runs in evaluation mode
and without gradients, so running statistics of BatchNorm stay as they are. (In the authors' code the backbone's
BatchNorm keeps updating, so the "frozen" mean drifts.) Features are computed once and reused for all epochs.

The head starts around the best constant variance, 2σ² = mean of (μ_a − μ_p)². In tens of dimensions, σ = 1 is noise of
ten times the length of μ. From such a start a few hundred steps do not reach the data's scale, and the samples' mean
stays noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from probmetric.registry import Count, LearningRate, Positive
from probmetric.uncertainty import register
from probmetric.uncertainty._base import Fitting, Posterior, embedded, evaluating, polar, trained
from probmetric.uncertainty._gaussian import GaussianHead, LogVarianceHead
from probmetric.uncertainty.laplace.curvature import mined_pairs


@register
class PFE(GaussianHead):
    """Learnt variance of a frozen encoder."""

    def __init__(
        self,
        *,
        epochs: Count = 20,
        learning_rate: LearningRate = 1e-3,
        margin: Positive = 0.7,
        triplets: Literal["all", "hard", "semihard", "easy"] = "all",
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.epochs, self.learning_rate = epochs, learning_rate
        self.margin, self.triplets = margin, triplets

    def locate(self, embeddings: Tensor) -> Tensor:
        """Return μ, the normalised embedding."""
        return polar(embeddings)[0]

    def fitted(self, fitting: Fitting) -> Posterior:
        """Train the variance head on the features of the training batches; returns its tensors."""
        cached = self._features_and_means(fitting)

        def network() -> LogVarianceHead:
            head = LogVarianceHead(cached[0][0].shape[1], cached[0][1].shape[1])
            head.shift.data.copy_(constant_log_variance([batch[1:] for batch in cached]))
            return head

        head = trained(network, pair_loss, cached, fitting, epochs=self.epochs, learning_rate=self.learning_rate)
        return head.tensors()

    def _features_and_means(self, fitting: Fitting) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return per batch: features (B, D), means (B, M), positive pairs (P, 2) and how often each was mined (P,)."""
        encoder, device, cached = fitting.encoder, fitting.device, []
        with evaluating(encoder):
            for images, labels in fitting.batches:
                features = encoder.features(images)
                means = self.locate(embedded(encoder, features))
                counts, _ = mined_pairs(means, labels.to(device), margin=self.margin, triplets=self.triplets)
                if bool((counts > 0).any()):
                    cached.append((features, means, (counts > 0).nonzero(), counts[counts > 0]))
        if not cached:
            raise ValueError(
                f"no batch had a mined positive pair (margin={self.margin}, triplets={self.triplets!r}); "
                "fit needs batches with at least two images of a class and two classes."
            )
        return cached


def constant_log_variance(batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return the one log σ² that minimises the pair loss of batches of means (B, M), pairs (P, 2) and weights (P,)."""
    squares = [(means[pairs[:, 0]] - means[pairs[:, 1]]).square().mean(1) for means, pairs, _ in batches]
    total = sum((weights * square).sum() for square, (_, _, weights) in zip(squares, batches, strict=True))
    count = sum(weights.sum() for _, _, weights in batches)
    return torch.as_tensor(total / count / 2).clamp_min(torch.finfo(torch.float32).tiny).log()


def pair_loss(log_variance: Tensor, means: Tensor, pairs: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean over pairs (P, 2), weights (P,), and dimensions, of log σ² and means (B, M)."""
    first, second = pairs.T
    variance = log_variance.exp()
    total = variance[first] + variance[second]
    terms = (means[first] - means[second]).square() / total + total.log()
    return (weights * terms.mean(1)).sum() / weights.sum()
