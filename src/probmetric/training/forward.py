"""Images to embeddings in the run's precision, while training and afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from probmetric.models._base import Encoder

if TYPE_CHECKING:
    from probmetric.training.data import Split, TrainingData


def resolve_precision(request: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """Type of the encoder's arithmetic; "auto" is bfloat16 on CUDA devices that support it, else float32."""
    if request == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if request == "bf16" else torch.float32


class Network(nn.Module):
    """What a training step runs on images: a module, so that it can be compiled and spread over processes."""

    def __init__(self, encoder: Encoder, precision: torch.dtype, *, stop_before_head: bool) -> None:
        super().__init__()
        self.encoder, self.precision, self.stop_before_head = encoder, precision, stop_before_head

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings, (B, C, H, W) -> (B, M), or the head's input (B, D)."""
        return (features_of if self.stop_before_head else embed)(self.encoder, images, self.precision)


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
def embed_split(encoder: Encoder, data: TrainingData, split: Split, precision: torch.dtype) -> Tensor:
    """Embeddings (N, M) of a split without augmentation, in evaluation mode; each process computes its batches."""
    was_training = encoder.training
    encoder.eval()
    embeddings = torch.zeros(data.size(split), encoder.dim, device=data.device)
    for positions, images in data.own_images_in_order(split):
        embeddings[positions.to(data.device)] = embed(encoder, images, precision)
    encoder.train(was_training)
    return data.ranks.added(embeddings)
