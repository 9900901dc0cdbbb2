"""Losses that see more than the embedding: how an uncertainty shapes training.

An objective wraps the run's loss and receives the features h (B, D) and the head (z = Wh + b) instead of z, so that
it can perturb the last layer or attach its own heads to h. It is a `Loss`: the trainer optimises, checkpoints and
restores it like one, and evaluation asks it for class probabilities. The only thing the trainer does differently is
to call `from_features` where `wants_features` is set.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from probmetric.losses import Loss


class Objective(Loss):
    """A loss on features and head, around the run's own loss `inner`."""

    wants_features = True

    def __init__(self, inner: Loss) -> None:
        super().__init__(num_classes=inner.num_classes, dim=inner.dim)
        self.inner = inner
        self.wants_groups = inner.wants_groups
        self.wants_warm_start = inner.wants_warm_start

    def from_features(
        self,
        features: Tensor,  # (B, D) input of the head
        head: nn.Linear,
        labels: Tensor,  # (B,) int64 in 0..C-1
        *,
        generator: torch.Generator,
    ) -> Tensor:  # ()
        """Training loss of one batch; may update buffers in training mode."""
        raise NotImplementedError

    def forward(self, embeddings: Tensor, labels: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The inner loss of embeddings (B, M): what is reported where no features are at hand."""
        return self.inner(embeddings, labels, generator=generator)

    def logits(self, embeddings: Tensor) -> Tensor | None:
        """Class logits (B, C) of the inner loss."""
        return self.inner.logits(embeddings)

    def probabilities(self, embeddings: Tensor, *, generator: torch.Generator | None = None) -> Tensor | None:
        """Class probabilities (B, C) of the inner loss."""
        return self.inner.probabilities(embeddings, generator=generator)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """The inner loss's groups and one for the objective's own parameters."""
        own = [parameter for name, parameter in self.named_parameters() if not name.startswith("inner.")]
        extra = [{"params": own, "lr_multiplier": 1.0, "weight_decay": 0.0}] if own else []
        return self.inner.optimizer_groups() + extra

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> float | None:
        """Warm start of the inner loss."""
        return self.inner.warm_start(embeddings, labels)

    def set_epoch(self, epoch: int) -> None:
        """Tell the inner loss which epoch begins."""
        self.inner.set_epoch(epoch)

    def diagnostics(self) -> dict[str, float]:
        """Numbers of the inner loss for the training history."""
        return self.inner.diagnostics()

    def posterior(self) -> dict[str, Tensor]:
        """The tensors `embed` needs, as learnt during training."""
        raise TypeError(f"{type(self).__name__} learns no posterior.")
