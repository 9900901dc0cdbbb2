"""Uncertainties that are a function of the raw embedding alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probmetric.uncertainty._base import DirectionalBatch, Posterior, Uncertainty, device_of, evaluating

if TYPE_CHECKING:
    from probmetric.losses._base import Loss
    from probmetric.models._base import Encoder


class FromEmbedding(Uncertainty):
    """Base: a pass is embedded first and described as a whole, so that draws do not depend on the batch size."""

    def describe(
        self, embeddings: Tensor, *, posterior: Posterior | None, loss: Loss | None, seed: int
    ) -> DirectionalBatch:
        """Directional distributions of raw embeddings (N, M)."""
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
        """Directional distributions of `images` (B, ...)."""
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
        with evaluating(encoder, loss):
            embeddings = torch.cat([encoder(images.to(device_of(encoder, images))) for images in batches])
            return self.describe(embeddings, posterior=posterior, loss=loss, seed=seed)
