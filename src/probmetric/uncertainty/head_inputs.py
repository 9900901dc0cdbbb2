"""Control: the inputs h of the last layer as embeddings, u = h / |h|, without the layer; the doubt is 1 / |h|.

A posterior whose prior is far below |W| moves an embedding by about |h|: drawn weights then rank images, and retrieve
them, as the layer's inputs do. What a last-layer posterior knows must show beside it (docs/findings/uncertainty.md).
"""

from __future__ import annotations

from torch import Tensor

from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Predictor, Uncertainty, linear_head


@register
class HeadInputs(Uncertainty):
    """Directions and lengths of what the last layer is given, in its dimension D."""

    needs_head = True

    def represent(self, images: Tensor, predictor: Predictor) -> Tensor:
        """Return inputs (B, D) of the last layer."""
        linear_head(predictor.encoder)
        return predictor.encoder.features(images)

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of features (N, D)."""
        return DirectionalBatch.of_lengths(rows)
