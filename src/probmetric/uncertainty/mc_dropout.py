"""Monte-Carlo dropout: S networks thinned by dropout (Gal and Ghahramani 2016), as in paper 003, appendix G.4.

Two places are thinned:

- all that the encoder itself drops at random while it trains: dropout modules and functions of every kind, in attention
  too, and residual paths (the paper's small nets have one dropout after each convolution block);
- with `rate` above 0, the features before the head. If you name `mc_dropout` as the objective, `rate` also applies
  while training; the encoder's own dropout always does.

A draw is one thinned network. All images of a pass share its masks, so the draws depend on (seed, s) only, not on batch
size or order. (The authors draw a new mask for every image; their rate is 0.05 in the configuration and 0.2 in the
text.)
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probmetric.registry import Share
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Objective, Predictor, embedded, evaluating, inputs_for, polar
from probmetric.uncertainty._summary import Sampled

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder

_KEPT_IN_TRAINING = {"running_mean", "_u", "weight_u"}
"""Buffers of batch and instance normalisation and spectral norms, which a forward pass in training mode overwrites."""


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

    def check(self, encoder: Encoder, images: Tensor) -> None:
        """Raise a ValueError if neither the network nor `rate` drops units."""
        with evaluating(encoder):
            self._drops(encoder, inputs_for(encoder, images))

    def _drops(self, encoder: Encoder, images: Tensor) -> bool:
        drops = drops_while_training(encoder, images)
        if not drops and self.rate == 0:
            raise ValueError(
                "mc_dropout has rate 0, and the network drops nothing while it trains: set the rate above 0, or give "
                "the network dropout."
            )
        return drops

    def represent(self, images: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of `images` (B, ...)."""
        encoder = predictor.encoder
        features, is_thinned = encoder.features(images), self._drops(encoder, images)
        reference, _ = polar(embedded(encoder, features))

        def drawn(draw: int) -> tuple[Tensor, Tensor]:
            seed = (predictor.seed * 1_000_003 + draw) % 2**63
            whole = thinned_features(encoder, images, seed) if is_thinned else features
            keep = torch.rand(whole.shape[1:], generator=torch.Generator().manual_seed(seed)) >= self.rate
            thin = whole * (keep.to(whole) / (1 - self.rate))
            sample = embedded(encoder, thin)
            return polar(sample)[0] - reference, sample

        return self.summarise(reference, map(drawn, range(self.samples)), predictor.probabilities)


def drops_while_training(encoder: Encoder, images: Tensor) -> bool:
    """Return whether the encoder draws random numbers for an image while it trains, as dropout does."""
    with _thinning(encoder, images, seed=0) as generator:
        before = generator.get_state()
        encoder.features(images[:1])
        return not torch.equal(before, generator.get_state())


def thinned_features(encoder: Encoder, images: Tensor, seed: int) -> Tensor:
    """Return features (B, D) of images (B, ...), all by the one network that dropout thins with `seed`.

    A network that `torch.func.vmap` cannot follow, such as a recurrent one, sees the images one at a time.
    """

    def features(image: Tensor) -> Tensor:
        return encoder.features(image[None])[0]

    with _thinning(encoder, images, seed) as generator:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return torch.func.vmap(features, randomness="same")(images)
        rows = []
        for image in images:
            generator.manual_seed(seed)
            rows.append(features(image))
        return torch.stack(rows)


@contextlib.contextmanager
def _thinning(encoder: nn.Module, images: Tensor, seed: int) -> Iterator[torch.Generator]:
    """Switch on dropout of an encoder in evaluation mode, driven by a global generator with `seed`, for the block."""
    cuda = images.device.type == "cuda"
    parts = [
        part for part in encoder.modules() if not _KEPT_IN_TRAINING & dict(part.named_buffers(recurse=False)).keys()
    ]
    with torch.random.fork_rng(devices=[images.device] if cuda else []):
        try:
            for part in parts:
                part.training = True
            torch.manual_seed(seed)
            yield torch.cuda.default_generators[images.device.index or 0] if cuda else torch.default_generator
        finally:
            for part in parts:
                part.training = False
