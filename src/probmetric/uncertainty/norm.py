"""The embedding norm as concentration: κ = |z|, μ = z/|z|, with z at the scale that the loss reads (vMF losses).

Papers: von Mises-Fisher losses (paper 002, section 3) and non-isotropic probabilistic proxies (paper 000,
section 3.1), where the un-normalised output of the encoder is the natural parameter ν = κμ. Every encoder with
un-normalised outputs has it at no cost. For losses that ignore |z| it is an uncalibrated score, not a likelihood.
Uncertainty is 1/κ.
"""

from __future__ import annotations

from torch import Tensor

from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Predictor, Uncertainty


@register
class Norm(Uncertainty):
    """Concentration = embedding norm; class probabilities where the loss is a classifier."""

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of raw embeddings (N, M)."""
        return DirectionalBatch.of_lengths(predictor.natural_parameters(rows), predictor.probabilities(rows))
