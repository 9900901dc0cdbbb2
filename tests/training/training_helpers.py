"""Settings of runs that last a second."""

from __future__ import annotations

from probmetric.config import EncoderSettings


def quick_settings(**changes: object) -> EncoderSettings:
    """Settings of a run of a few steps; training options and settings may be given together."""
    training = {"epochs": 3, "batch_size": 20, "images_per_class": 4, "steps_per_epoch": 6}
    own = {key: changes.pop(key) for key in list(changes) if key not in EncoderSettings.model_fields}
    fields: dict[str, object] = {"dataset": "digits", "method": "quick", "loss": "cosine", "dim": 8} | changes
    fields.setdefault("backbone", {"name": "compact", "width": 4})
    return EncoderSettings(**fields, training=training | own)
