"""Where a training run stands, and the columns of its history."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from probmetric.metrics.selection import selection_warning

HISTORY_COLUMNS = (
    *("epoch", "step", "train_loss", "lr", "val_metric", "seconds", "images_per_second"),
    *("peak_memory_mb", "grad_norm", "skipped_steps"),
)


@dataclass
class Progress:
    """Where a run stands; plain values only, so that it can be checkpointed."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
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
        """Add up a step's loss and, unless it is skipped because of it, its gradients' norm."""
        self.loss_sum += loss
        if math.isfinite(norm):
            self.norm_sum += norm
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1

    @property
    def waited(self) -> int:
        """Validations since the metric last improved."""
        best = max(range(len(self.metrics)), key=lambda k: self.metrics[k], default=-1)
        return len(self.metrics) - 1 - best

    @property
    def warning(self) -> str:
        """What speaks against the choice of the epoch."""
        values = [row["val_metric"] for row in self.history]
        return selection_warning(values, self.best_epoch) if self.metrics else ""
