"""Monte-Carlo dropout: S networks thinned by dropout (Gal and Ghahramani 2016), as in paper 003, appendix G.4.

Two places are thinned: the encoder's own dropout modules that have a rate above 0 (the paper's small nets have one
after each convolution block) and, with `rate` above 0, the features before the head. As an objective, `rate` also
applies while training; the encoder's own modules do so by themselves.

A draw is one thinned network: its masks are shared by all images of a pass, per channel for `Dropout1d`-`Dropout3d`
and per unit otherwise, so the draws depend on (seed, s) only, not on batch size or order. (The authors draw a new
mask for every image; their rate is 0.05 in the configuration and 0.2 in the text.) Without dropout modules in the
encoder the backbone runs once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.registry import Share
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Objective, Predictor
from probmetric.uncertainty._summary import Sampled

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder

_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_DROPOUT = (nn.Dropout, *_CHANNEL_DROPOUT)
Dropout = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d


class DropoutObjective(Objective):
    """The run's loss with dropout on the features."""

    def __init__(self, inner: Loss, rate: float) -> None:
        super().__init__(inner)
        self.rate = rate

    def from_features(self, features: Tensor, head: nn.Linear, labels: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the loss of thinned features (B, D); a fresh mask for every image."""
        if self.training and self.rate > 0:
            keep = torch.rand(features.shape, generator=generator, device=generator.device) >= self.rate
            features = features * keep.to(features) / (1 - self.rate)
        return self.inner(head(features), labels, generator=generator)


@register
class MCDropout(Sampled):
    """Spread of the embeddings over thinned networks."""

    trains_encoder = True

    def __init__(self, *, rate: Share = 0.2, **shared: Any) -> None:
        super().__init__(**shared)
        self.rate = rate

    def objective(self, encoder: Encoder, loss: Loss, *, num_images: int) -> DropoutObjective:
        """Return the run's loss with dropout on the features."""
        return DropoutObjective(loss, self.rate)

    def represent(self, images: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of `images` (B, ...)."""
        encoder = predictor.encoder
        modules = [module for module in encoder.modules() if isinstance(module, _DROPOUT) and module.p > 0]
        if not modules and self.rate == 0:
            raise ValueError(
                "rate is 0 and the encoder has no active dropout module; set rate or the backbone's dropout."
            )
        features = encoder.features(images)
        embeddings = features if encoder.head is None else encoder.head(features)
        reference = F.normalize(embeddings, dim=1)

        def drawn(draw: int) -> tuple[Tensor, Tensor]:
            generator = torch.Generator().manual_seed(_mix(predictor.seed, draw))
            with _thinned(modules, generator):
                whole = encoder.features(images) if modules else features
            thin = whole * _mask(whole.shape[1:], self.rate, generator, whole)
            sample = thin if encoder.head is None else encoder.head(thin)
            return F.normalize(sample, dim=1) - reference, sample

        return self.summarise(reference, map(drawn, range(self.samples)), predictor.probabilities)


def _mix(seed: int, draw: int) -> int:
    """Return one seed for draw `draw` of a pass seeded with `seed`."""
    return (seed * 1_000_003 + draw) % 2**63


def _mask(shape: torch.Size, rate: float, generator: torch.Generator, like: Tensor) -> Tensor:
    """Inverted-dropout mask of `shape`: 0 with probability `rate`, else 1/(1 − rate)."""
    return (torch.rand(shape, generator=generator) >= rate).to(like) / (1 - rate)


@contextlib.contextmanager
def _thinned(modules: Sequence[Dropout], generator: torch.Generator) -> Iterator[None]:
    """Let dropout modules in evaluation mode apply one mask, drawn in the order of their calls, to all images."""

    def apply(rate: float, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        per_channel = isinstance(module, _CHANNEL_DROPOUT)
        shape = torch.Size([output.shape[1], *[1] * (output.ndim - 2)]) if per_channel else output.shape[1:]
        return output * _mask(shape, rate, generator, output)

    handles = [module.register_forward_hook(functools.partial(apply, module.p)) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
