"""Random numbers by address instead of by turn: a function of (seed, epoch, image index, draw), never of a state.

An augmentation drawn this way is the same whichever process, batch or order asks for it, so the number of workers, the
batch composition and a resumed run never change the data. The hash is SplitMix64's finaliser (Steele, Lea & Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014), applied to each address part in turn.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(value: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's finaliser to uint64 values, modulo 2^64."""
    value = (value ^ (value >> np.uint64(30))) * _M1
    value = (value ^ (value >> np.uint64(27))) * _M2
    return value ^ (value >> np.uint64(31))


def uniforms(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw independent uniform numbers for each image.

    Args:
        seed: seed of the run.
        epoch: epoch the images are drawn for.
        indices: the images' own numbers (B,), for example manifest rows.
        count: numbers per image.

    Returns:
        (B, count) float64 in [0, 1).
    """
    address = np.zeros((len(indices), 1), dtype=np.uint64)
    for part in (seed, epoch, np.asarray(indices)[:, None]):
        address = _mix(address + _GOLDEN + np.asarray(part).astype(np.uint64))
    draws = _mix(address + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53
