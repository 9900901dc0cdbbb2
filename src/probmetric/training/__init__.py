"""Training: one loop for every loss and encoder, resumable to the bit, and the step that runs it on folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.training.assemble import load_encoder
    from probmetric.training.device import claim_device, pick_device
    from probmetric.training.diagnosis import TrainingError
    from probmetric.training.run import train_run

__all__ = ["TrainingError", "claim_device", "load_encoder", "pick_device", "train_run"]

__getattr__ = exported(
    __name__,
    {
        "claim_device": "device",
        "pick_device": "device",
        "TrainingError": "diagnosis",
        "load_encoder": "assemble",
        "train_run": "run",
    },
)
