"""Images to embeddings in the run's precision, while training and afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from probmetric.models import Encoder
from probmetric.training.seeds import derive_seed

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


@torch.no_grad()
def embed_as_trained(encoder: Encoder, data: TrainingData, precision: torch.dtype) -> Tensor:
    """Embeddings (N, M) of the training split as a training step makes them, but without augmentation.

    In training mode: a batch normalisation that trains normalises by its batch, whose images are random ones (of one
    class they would lose what sets the class apart); a frozen one by what it has stored. Running statistics and mode
    are left as they were. Each process computes its share of every batch.
    """
    embeddings = torch.zeros(len(data.labels), encoder.dim, device=data.device)
    with _as_training(encoder):
        torch.manual_seed(derive_seed(data.seed, "layers as trained", data.ranks.rank))
        for positions, images in data.own_images_shuffled():
            embeddings[positions.to(data.device)] = embed(encoder, images, precision)
    return data.ranks.added(embeddings)


@contextlib.contextmanager
def _as_training(encoder: Encoder) -> Iterator[None]:
    """Training mode for a while, after which mode and buffers are what they were."""
    was_training, kept = encoder.training, [(buffer, buffer.clone()) for buffer in encoder.buffers()]
    encoder.train()
    try:
        yield
    finally:
        encoder.train(was_training)
        for buffer, value in kept:
            buffer.copy_(value)
