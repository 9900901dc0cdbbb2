"""The embedding norm as concentration: κ = |z|, μ = z/|z|.

Papers: von Mises-Fisher losses (paper 002, section 3) and non-isotropic probabilistic proxies (paper 000,
section 3.1), where the un-normalised output of the encoder is the natural parameter ν = κμ. It costs nothing,
so every encoder with un-normalised outputs has it; for losses that ignore |z| it is an uncalibrated score, not
a likelihood. Uncertainty is 1/κ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Posterior, class_probabilities
from probmetric.uncertainty._embedding import FromEmbedding

if TYPE_CHECKING:
    from probmetric.losses._base import Loss


@register
class Norm(FromEmbedding):
    """Concentration = embedding norm; class probabilities where the loss is a classifier."""

    def describe(
        self, embeddings: Tensor, *, posterior: Posterior | None, loss: Loss | None, seed: int
    ) -> DirectionalBatch:
        """Directional distributions of raw embeddings (N, M)."""
        kappa = embeddings.norm(dim=-1).clamp_min(torch.finfo(embeddings.dtype).eps)
        return DirectionalBatch(
            mean=embeddings / kappa[:, None],
            uncertainty=kappa.reciprocal(),
            concentration=kappa,
            probabilities=class_probabilities(loss, embeddings, seed),
        )
