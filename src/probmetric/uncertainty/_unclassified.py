"""A predictor of images that are of none of the training classes: their class probabilities are not asked for.

It stands apart from `_base` because it changes nothing else of what an uncertainty says.
"""

from __future__ import annotations

from torch import Tensor

from probmetric.uncertainty._base import Predictor


class Unclassified(Predictor):
    """A predictor without class probabilities; an uncertainty made of them reads the loss itself and has them."""

    def probabilities(self, embeddings: Tensor) -> Tensor | None:
        """None."""
        return None


def unclassified(predictor: Predictor) -> Unclassified:
    """`predictor` without class probabilities."""
    return Unclassified(**vars(predictor))
