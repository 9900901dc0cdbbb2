"""Controls: trivial uncertainties that a method must beat before you can say that it knows something.

`pixel_statistic`, a floor, uses a statistic of the pixels as uncertainty, without a network:

    noise          median over pixels of |x * K| with K = ((1, -2, 1), (-2, 4, -2), (1, -2, 1)); smooth images give 0
                   (Immerkaer 1996). On `glyphs` it follows the strength of distortion better than every method.
    contrast       standard deviation of the pixels; more is less sure
    low_contrast   the reverse

An uncertainty that claims to follow difficulty, or to find images of unknown classes, must do it better than these.
Colours are averaged; the mean direction is the encoder's.

`head_inputs` uses the inputs h of the last layer as embeddings, u = h / |h|, without the layer; the doubt is 1 / |h|. A
posterior whose prior is far below |W| moves an embedding by about |h|, so its drawn weights rank and retrieve images as
the layer's inputs do. Compare every last-layer posterior with this control (docs/findings/uncertainty.md).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from probmetric.registry import OptionValueError
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Predictor, Uncertainty, linear_head, polar

KERNEL = ((1.0, -2.0, 1.0), (-2.0, 4.0, -2.0), (1.0, -2.0, 1.0))


@register("pixel_statistic")
class PixelStatistic(Uncertainty):
    """Noise or contrast of the image."""

    reads_images = True

    def __init__(self, *, statistic: Literal["noise", "contrast", "low_contrast"] = "noise") -> None:
        self.statistic = statistic

    def represent(self, images: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directions of `images` (B, C, H, W) with the statistic as doubt."""
        if images.ndim != 4:
            raise OptionValueError(f"pixel_statistic reads images (B, C, H, W); these are {tuple(images.shape)}.")
        grey = images.mean(dim=1, keepdim=True)
        doubt = self._noise(grey) if self.statistic == "noise" else grey.flatten(1).std(dim=1)
        return DirectionalBatch(
            mean=polar(predictor.encoder(images))[0],
            uncertainty=-doubt if self.statistic == "low_contrast" else doubt,
        )

    def _noise(self, grey: Tensor) -> Tensor:
        kernel = torch.tensor(KERNEL, dtype=grey.dtype, device=grey.device)[None, None]
        padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
        return F.conv2d(padded, kernel).abs().flatten(1).median(dim=1).values


@register("head_inputs")
class HeadInputs(Uncertainty):
    """Directions and lengths of the last layer's inputs, in their dimension D."""

    needs_head = True

    def represent(self, images: Tensor, predictor: Predictor) -> Tensor:
        """Return inputs (B, D) of the last layer."""
        linear_head(predictor.encoder)
        return predictor.encoder.features(images)

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of features (N, D)."""
        return DirectionalBatch.of_lengths(rows)
