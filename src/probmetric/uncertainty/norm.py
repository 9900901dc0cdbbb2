"""The embedding norm as concentration: κ = |z|, μ = z/|z|.

Papers: von Mises-Fisher losses (paper 002, section 3) and non-isotropic probabilistic proxies (paper 000,
section 3.1), where the un-normalised output of the encoder is the natural parameter ν = κμ. It costs nothing,
so every encoder with un-normalised outputs has it; for losses that ignore |z| it is an uncalibrated score, not
a likelihood. Uncertainty is 1/κ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Predictor, Uncertainty


@register
class Norm(Uncertainty):
    """Concentration = embedding norm; class probabilities where the loss is a classifier."""

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of raw embeddings (N, M)."""
        kappa = rows.norm(dim=-1).clamp_min(torch.finfo(rows.dtype).eps)
        return DirectionalBatch(
            mean=rows / kappa[:, None],
            uncertainty=kappa.reciprocal(),
            concentration=kappa,
            probabilities=predictor.probabilities(rows),
        )
