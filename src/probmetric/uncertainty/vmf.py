"""The embedding as a von Mises-Fisher distribution that is sampled: x_s ~ vMF(z/|z|, |z|).

Papers 002 (section 3, evaluation with S = 10 samples) and 000. Concentration and uncertainty are those of `norm`;
the samples allow retrieval by vote, and class probabilities that account for the doubt about the embedding:

    probabilities="loss"     what the loss itself reports; a vMF loss averages over its own draws
    probabilities="sampled"  mean_s p(c | x_s), for classifiers that look at the direction only (cosine, ArcFace)

The sampler is exact for every κ and M (see `probmetric.directional`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from probmetric.directional import VonMisesFisher
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Predictor, Uncertainty

_ROWS = 1024


@register
class VMF(Uncertainty):
    """Norm as concentration, with samples of the distribution it stands for."""

    def __init__(
        self,
        *,
        samples: int = 10,
        probabilities: Literal["loss", "sampled"] = "loss",
        keep_samples: bool = True,
    ) -> None:
        if samples < 1:
            raise ValueError(f"samples is {samples}; use at least 1.")
        self.samples, self.probabilities, self.keep_samples = samples, probabilities, keep_samples

    def describe(self, rows: Tensor, given: Predictor) -> DirectionalBatch:
        """Directional distributions of raw embeddings (N, M), a bounded number of rows at a time."""
        generator = torch.Generator(device=rows.device).manual_seed(given.seed)
        return DirectionalBatch.concatenate([self._describe_rows(part, given, generator) for part in rows.split(_ROWS)])

    def _describe_rows(self, embeddings: Tensor, given: Predictor, generator: torch.Generator) -> DirectionalBatch:
        kappa = embeddings.norm(dim=-1).clamp_min(torch.finfo(embeddings.dtype).eps)
        mean = embeddings / kappa[:, None]
        distribution = VonMisesFisher(mean, kappa, validate_args=False)
        samples = distribution.sample((self.samples,), generator=generator)
        if self.probabilities == "sampled":
            drawn = given.probabilities(samples.flatten(0, 1))
            probabilities = None if drawn is None else drawn.unflatten(0, samples.shape[:2]).mean(0)
        else:
            probabilities = given.probabilities(embeddings)
        return DirectionalBatch(
            mean=mean,
            uncertainty=kappa.reciprocal(),
            concentration=kappa,
            samples=samples.transpose(0, 1).contiguous() if self.keep_samples else None,
            probabilities=probabilities,
        )
