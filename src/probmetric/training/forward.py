"""Images to embeddings in the run's precision, while training and afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from probmetric.models._base import Encoder


def resolve_precision(request: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """Type of the encoder's arithmetic; "auto" is bfloat16 on CUDA devices that support it, else float32."""
    if request == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if request == "bf16" else torch.float32


def embed(encoder: Encoder, images: Tensor, precision: torch.dtype) -> Tensor:
    """Raw float32 embeddings, (B, C, H, W) -> (B, M).

    Features may be computed in bfloat16; the head always works in float32, because 8 bits of mantissa would
    quantise the embeddings the loss compares.
    """
    features = features_of(encoder, images, precision)
    return features if encoder.head is None else encoder.head(features)


def features_of(encoder: Encoder, images: Tensor, precision: torch.dtype) -> Tensor:
    """Float32 input of the encoder's head, (B, C, H, W) -> (B, D)."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        features = encoder.features(images)
    return features.float()


@torch.no_grad()
def embed_all(encoder: Encoder, batches: Iterable[Tensor], precision: torch.dtype) -> Tensor:
    """Embeddings (N, M) of `batches` of images (B, C, H, W), in evaluation mode; the mode is restored."""
    was_training = encoder.training
    encoder.eval()
    embeddings = torch.cat([embed(encoder, images, precision) for images in batches])
    encoder.train(was_training)
    return embeddings
