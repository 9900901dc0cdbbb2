"""State of a training run, the columns of its history, and a warning if its metric could not choose an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HISTORY_COLUMNS = (
    *("epoch", "step", "train_loss", "lr", "val_metric", "seconds", "images_per_second"),
    *("peak_memory_mb", "grad_norm", "skipped_steps"),
)
CEILING = 1.0 - 1e-9
EARLY = 0.2


@dataclass
class Progress:
    """State of a run; plain values only, so that it can be checkpointed.

    Sums, skipped steps, seconds and images count the epoch so far.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    images: int = 0
    loss_sum: float = 0.0
    norm_sum: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    seconds: float = 0.0
    metrics: list[float] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = -1
    finished: bool = False

    def count(self, loss: float, norm: float) -> None:
        """Add a step's loss and its gradients' norm; a step whose norm is not finite counts as skipped."""
        self.loss_sum += loss
        if math.isfinite(norm):
            self.norm_sum += norm
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1

    def metrics_before(self, epoch: int) -> list[float]:
        """Return the validation metrics of the epochs before this one, in order."""
        return [row["val_metric"] for row in self.history[:epoch] if row["val_metric"] is not None]

    @property
    def waited(self) -> int:
        """Validations since the metric last improved."""
        best = max(range(len(self.metrics)), key=lambda k: self.metrics[k], default=-1)
        return len(self.metrics) - 1 - best

    @property
    def warning(self) -> str:
        """Return a warning about the choice of the epoch, or an empty text."""
        values = [row["val_metric"] for row in self.history]
        return selection_warning(values, self.best_epoch) if self.metrics else ""


def selection_warning(values: Sequence[float | None], selected: int) -> str:
    """Return a warning if the choice of an epoch is doubtful, else an empty text.

    A metric at its largest possible value cannot tell later epochs apart. Weights of the first fifth of training belong
    to a network that has hardly been trained: luck chose them, or a metric that does not see what later epochs gain.

    Args:
        values: validation metric (at most 1) of every epoch planned, None where it was not measured.
        selected: epoch whose weights were kept, from 0.

    Examples:
        >>> selection_warning([0.9, 1.0, 1.0, 1.0, 1.0], 4)
        'the validation metric is saturated: 1 since epoch 2 of 5'
        >>> selection_warning([0.6, 0.9, 0.8, 0.8, 0.8, 0.7, 0.7, 0.7, 0.7, 0.7], 1)
        'the weights are of epoch 2 of 10, the first fifth of training'
        >>> selection_warning([0.6, 0.7, 0.8], 2)
        ''
    """
    reached = [epoch for epoch, value in enumerate(values) if value is not None and value >= CEILING]
    if reached:
        return f"the validation metric is saturated: 1 since epoch {reached[0] + 1} of {len(values)}"
    if len(values) * EARLY >= 1 and selected + 1 <= EARLY * len(values):
        return f"the weights are of epoch {selected + 1} of {len(values)}, the first fifth of training"
    return ""
