"""Uncertainties that see a whole pass at once: the encoder runs once per image, then all rows are described together.

That way expensive draws are made once, and draws do not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from probmetric.uncertainty._base import DirectionalBatch, Posterior, Uncertainty, device_of, evaluating

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder


class WholePass(Uncertainty):
    """Base: `represent` turns images into rows, `describe` turns the rows of a pass into distributions."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Tensors the posterior must hold."""

    def represent(self, encoder: Encoder, images: Tensor) -> Tensor:
        """Rows (B, ·) of images (B, ...): the raw embeddings, unless overridden."""
        return encoder(images)

    def describe(
        self, rows: Tensor, *, encoder: Encoder, posterior: Posterior | None, loss: Loss | None, seed: int
    ) -> DirectionalBatch:
        """Directional distributions of the rows (N, ·) of a pass."""
        raise NotImplementedError

    def embed(
        self,
        encoder: Encoder,
        images: Tensor,
        *,
        posterior: Posterior | None = None,
        loss: Loss | None = None,
        seed: int,
    ) -> DirectionalBatch:
        """Directional distributions of `images` (B, ...). For many batches use `embed_batches`: one set of draws."""
        return self._describe_pass(encoder, [images], posterior, loss, seed)

    def embed_batches(
        self,
        encoder: Encoder,
        batches: Iterable[Tensor],
        *,
        posterior: Posterior | None = None,
        loss: Loss | None = None,
        seed: int,
    ) -> DirectionalBatch:
        """Directional distributions of a whole pass, on the CPU."""
        return self._describe_pass(encoder, batches, posterior, loss, seed).to("cpu")

    def _describe_pass(
        self,
        encoder: Encoder,
        batches: Iterable[Tensor],
        posterior: Posterior | None,
        loss: Loss | None,
        seed: int,
    ) -> DirectionalBatch:
        if self.needs:
            self.require(posterior, self.needs)
        with evaluating(encoder, loss):
            rows = torch.cat([self.represent(encoder, images.to(device_of(encoder, images))) for images in batches])
            return self.describe(rows, encoder=encoder, posterior=posterior, loss=loss, seed=seed)
