"""Images to embeddings: of a training step, in the run's precision, or of a whole split, shared by the processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from probmetric.models import Encoder
from probmetric.training.seeds import derive_seed
from probmetric.uncertainty import create_uncertainty

if TYPE_CHECKING:
    from probmetric.data.choosing import Use
    from probmetric.training.data import TrainingData
    from probmetric.training.processes import Processes
    from probmetric.uncertainty import Part, Predictor


def resolve_precision(request: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """Return the type of the encoder's arithmetic; "auto" is bfloat16 on CUDA devices that support it, else float32."""
    if request == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if request == "bf16" else torch.float32


class Network(nn.Module):
    """The network of a training step, as a module that can be compiled and spread over processes."""

    def __init__(
        self, encoder: Encoder, precision: torch.dtype, *, stop_before_head: bool, held_at_once: int | None = None
    ) -> None:
        """Run `encoder`; with `held_at_once` at most so many images have activations in memory at a time.

        Each part of a batch is then computed twice, the second time while the gradient of the whole batch's loss flows
        back through it (gradient cache: Gao et al. 2021, "Scaling deep contrastive learning batch size").
        """
        super().__init__()
        self.encoder, self.precision, self.stop_before_head = encoder, precision, stop_before_head
        self.held_at_once = held_at_once

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings, (B, C, H, W) -> (B, M), or the head's input (B, D)."""
        if self.held_at_once is None:
            return self._once(images)
        parts = images.split(self.held_at_once)
        return torch.cat([checkpoint(self._once, part, use_reentrant=False) for part in parts])

    def _once(self, images: Tensor) -> Tensor:
        return (features_of if self.stop_before_head else embed)(self.encoder, images, self.precision)


def embed(encoder: Encoder, images: Tensor, precision: torch.dtype) -> Tensor:
    """Return raw float32 embeddings, (B, C, H, W) -> (B, M).

    Features may be computed in bfloat16; the head always works in float32, because 8 bits of mantissa would
    quantise the embeddings the loss compares.
    """
    features = features_of(encoder, images, precision)
    return features if encoder.head is None else encoder.head(features)


def features_of(encoder: Encoder, images: Tensor, precision: torch.dtype) -> Tensor:
    """Return the input (B, D) of the encoder's head for images (B, C, H, W), as float32 (float64 if computed so)."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        features = encoder.features(images)
    return features if features.dtype == torch.float64 else features.float()


def embed_split(encoder: Encoder, data: TrainingData, split: Use) -> Tensor:
    """Return raw embeddings (N, M) of a split without augmentation; in processes other than the first, no rows.

    Like those of the finished run (`Predictor`) they are float32, whatever the precision of the training steps.
    """
    predictor = create_uncertainty("norm").bind(encoder, seed=data.seed)
    parts = represented(predictor, partial(data.plain_batches, split), data.processes)
    rows = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat([torch.empty(0, encoder.dim), *rows]).to(data.device)


def represented(predictor: Predictor, read: Callable[..., Iterator[Tensor]], processes: Processes) -> list[Part]:
    """Return `predictor.represent` of all batches of `read(first=, step=)`; each process computes its share.

    The first process gets all parts, in order and on the CPU, the others get none. From these parts
    `predictor.describe` makes the record that one process alone would make, to the bit if the encoder is deterministic.
    """
    parts = predictor.represent(read(first=processes.rank, step=processes.count))
    return processes.in_turn([part.to("cpu") for part in parts])


@torch.no_grad()
def embed_as_trained(encoder: Encoder, data: TrainingData, precision: torch.dtype) -> Tensor:
    """Return embeddings (N, M) of the training split as a training step makes them, but without augmentation.

    The encoder is in training mode: trainable batch normalisation uses the statistics of its batch, frozen batch
    normalisation the stored ones. Batches are random, because a batch of one class would lose what sets the class
    apart. Running statistics and mode do not change. Each process computes its share of every batch.
    """
    embeddings = torch.zeros(len(data.labels), encoder.dim, device=data.device)
    with _as_training(encoder):
        torch.manual_seed(derive_seed(data.seed, "layers as trained", data.processes.rank))
        for positions, images in data.own_images_shuffled():
            embeddings[positions.to(data.device)] = embed(encoder, images, precision)
    return data.processes.added(embeddings)


@contextlib.contextmanager
def _as_training(encoder: Encoder) -> Iterator[None]:
    """Set training mode for the block; afterwards restore mode and buffers."""
    was_training, kept = encoder.training, [(buffer, buffer.clone()) for buffer in encoder.buffers()]
    encoder.train()
    try:
        yield
    finally:
        encoder.train(was_training)
        for buffer, value in kept:
            buffer.copy_(value)
