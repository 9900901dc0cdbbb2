"""The embedding as a von Mises-Fisher distribution that is sampled: x_s ~ vMF(z/|z|, κ).

Papers 002 (section 3, evaluation with S = 10 samples) and 000. Concentration κ and uncertainty are those of `norm`. The
samples allow retrieval by vote, and class probabilities that account for the doubt about the embedding:

    probabilities="loss"     those that the loss itself reports; a vMF loss averages over its own draws
    probabilities="sampled"  mean_s p(c | |z| x_s): the classifier's mean over samples of the embedding's length
    probabilities="auto"     "loss" for a loss that draws, else "sampled"

The sampler is exact for every κ and M (see `probmetric.directional`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from probmetric.directional import VonMisesFisher
from probmetric.losses import Loss
from probmetric.losses._base import WrappingLoss
from probmetric.registry import Range
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Predictor, Uncertainty, polar

_ROWS = 1024


def draws_its_own(loss: Loss | None) -> bool:
    """Return whether `loss` reports class probabilities as means over its own draws, not as a softmax of logits."""
    while isinstance(loss, WrappingLoss):
        loss = loss.inner
    return loss is not None and type(loss).probabilities is not Loss.probabilities


@register
class VMF(Uncertainty):
    """Norm as concentration, with samples of the von Mises-Fisher distribution."""

    def __init__(
        self,
        *,
        samples: Annotated[int, Range(low=1, high=5000)] = 10,
        probabilities: Literal["auto", "loss", "sampled"] = "auto",
        keep_samples: bool = True,
    ) -> None:
        self.samples, self.chosen, self.keep_samples = samples, probabilities, keep_samples

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of raw embeddings (N, M), a bounded number of rows at a time."""
        generator = torch.Generator(device=rows.device).manual_seed(predictor.seed)
        return DirectionalBatch.concatenate(
            [self._describe_rows(part, predictor, generator) for part in rows.split(_ROWS)]
        )

    def _describe_rows(self, embeddings: Tensor, predictor: Predictor, generator: torch.Generator) -> DirectionalBatch:
        record = DirectionalBatch.of_lengths(predictor.natural_parameters(embeddings))
        kappa = record.concentration
        assert kappa is not None
        axis = torch.eye(embeddings.shape[1], dtype=embeddings.dtype, device=embeddings.device)[0]
        axes = torch.where(
            (record.mean != 0).any(dim=1, keepdim=True), record.mean, axis
        )  # any one, for a uniform draw
        distribution = VonMisesFisher(axes, kappa, validate_args=False)
        samples = distribution.sample((self.samples,), generator=generator)
        if self.chosen == "sampled" or (self.chosen == "auto" and not draws_its_own(predictor.loss)):
            drawn = predictor.probabilities((polar(embeddings)[1][:, None] * samples).flatten(0, 1))
            record.probabilities = None if drawn is None else drawn.unflatten(0, samples.shape[:2]).mean(0)
        else:
            record.probabilities = predictor.probabilities(embeddings)
        record.samples = samples.transpose(0, 1).contiguous() if self.keep_samples else None
        return record
