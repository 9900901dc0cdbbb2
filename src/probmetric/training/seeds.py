"""Random numbers that depend on where they are used, not on what ran before.

Every use draws from its own stream, seeded by the run's seed and the use's place (purpose, epoch, step). A run resumed
at step 1,000 therefore continues as if it had never stopped, without any generator state in the checkpoint.
"""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, purpose: str, *place: int) -> int:
    """Return a seed in [0, 2^63) for one use: `purpose` names the use, `place` numbers it (epoch, step)."""
    text = "/".join(map(str, (seed, purpose, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(device: torch.device | str, seed: int, purpose: str, *place: int) -> torch.Generator:
    """Return the generator on `device` for one use."""
    return torch.Generator(device).manual_seed(derive_seed(seed, purpose, *place))


def seed_layers(device: torch.device, seed: int, *place: int) -> None:
    """Seed the generators that random layers on `device` draw from, for the step at `place`.

    `torch.manual_seed` would also queue a call for every device that is not in use.
    """
    derived = derive_seed(seed, "layers", *place)
    torch.default_generator.manual_seed(derived)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(derived)
