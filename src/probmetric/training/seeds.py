"""Random numbers that depend on where they are used, not on what ran before.

Every use draws from its own stream, seeded by the run's seed and its place (purpose, epoch, step). A run resumed at
step 1,000 therefore continues exactly as if it had never stopped, without any generator state in the checkpoint.
"""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, purpose: str, *place: int) -> int:
    """Seed in [0, 2^63) for one use: `purpose` names it, `place` numbers it (epoch, step)."""
    text = "/".join(map(str, (seed, purpose, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(device: torch.device | str, seed: int, purpose: str, *place: int) -> torch.Generator:
    """Generator on `device` for one use."""
    return torch.Generator(device).manual_seed(derive_seed(seed, purpose, *place))
