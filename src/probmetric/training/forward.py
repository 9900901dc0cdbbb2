"""Images to embeddings: in a training step, in the precision of the run; of a whole split, shared by the processes."""

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
    """What a training step runs on images: a module, so that it can be compiled and spread over processes."""

    def __init__(
        self, encoder: Encoder, precision: torch.dtype, *, stop_before_head: bool, held_at_once: int | None = None
    ) -> None:
        """Run `encoder`; with `held_at_once` no more images than that have activations in memory at a time.

        Each part of a batch is computed twice, the second time while the gradient of the whole batch's loss flows back
        through it (gradient cache: Gao et al. 2021, "Scaling deep contrastive learning batch size").
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
    """Return the input (B, D) of the encoder's head for images (B, C, H, W): float32, or float64 as the encoder."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        features = encoder.features(images)
    return features if features.dtype == torch.float64 else features.float()


def embed_split(encoder: Encoder, data: TrainingData, split: Use) -> Tensor:
    """Return raw embeddings (N, M) of a split without augmentation; none of them in processes other than the first.

    They are those of the finished run (`Predictor`): float32, whatever the precision of the training steps.
    """
    predictor = create_uncertainty("norm").bind(encoder, seed=data.seed)
    parts = represented(predictor, partial(data.plain_batches, split), data.processes)
    rows = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat([torch.empty(0, encoder.dim), *rows]).to(data.device)


def represented(predictor: Predictor, read: Callable[..., Iterator[Tensor]], processes: Processes) -> list[Part]:
    """Return `predictor.represent` of all batches of `read(first=, step=)`, of which each process takes its share.

    All of them, in order and on the CPU, are in the first process, none in the others: `predictor.describe` makes them
    the record that one process alone would make, to the bit where the encoder is deterministic.
    """
    parts = predictor.represent(read(first=processes.rank, step=processes.count))
    return processes.in_turn([part.to("cpu") for part in parts])


@torch.no_grad()
def embed_as_trained(encoder: Encoder, data: TrainingData, precision: torch.dtype) -> Tensor:
    """Return embeddings (N, M) of the training split as a training step makes them, but without augmentation.

    In training mode: a batch normalisation that trains normalises by its batch, whose images are random ones (of one
    class they would lose what sets the class apart); a frozen one by what it has stored. Running statistics and mode
    are left as they were. Each process computes its share of every batch.
    """
    embeddings = torch.zeros(len(data.labels), encoder.dim, device=data.device)
    with _as_training(encoder):
        torch.manual_seed(derive_seed(data.seed, "layers as trained", data.processes.rank))
        for positions, images in data.own_images_shuffled():
            embeddings[positions.to(data.device)] = embed(encoder, images, precision)
    return data.processes.added(embeddings)


@contextlib.contextmanager
def _as_training(encoder: Encoder) -> Iterator[None]:
    """Set training mode for the block, after which mode and buffers are what they were."""
    was_training, kept = encoder.training, [(buffer, buffer.clone()) for buffer in encoder.buffers()]
    encoder.train()
    try:
        yield
    finally:
        encoder.train(was_training)
        for buffer, value in kept:
            buffer.copy_(value)
