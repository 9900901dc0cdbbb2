"""Draw eight test images; their embeddings are stored with a model folder and with a gallery, to notice changes.

Another library, precision or processor may change embeddings. A stored gallery and its certificates then no longer fit
them. The images are waves of rising frequency; they pass the last step of decoding, resizing and the view.
"""

from __future__ import annotations

import logging

import numpy as np

from probmetric.metrics.arrays import normalized

log = logging.getLogger(__name__)
IMAGES, FILE = 8, "canary.safetensors"
CHECKED = 3  # are embedded when a model or gallery is opened; all eight would take too long
MOVED = 1e-6  # 1 - cosine; the order of a sum in float32 changes less


def canaries(shape: tuple[int, int], tensor: tuple[int, ...]) -> list[np.ndarray]:
    """Return the images for a network's input: uint8 (H, W[, C]), or float32 of the shape `tensor`.

    Args:
        shape: channels and side of the input.
        tensor: shape of inputs that are no images; () for images.
    """
    channels, side = shape
    size = tensor or ((side + side // 2, side * 2) if channels == 1 else (side + side // 2, side * 2, 3))
    place = np.arange(np.prod(size)).reshape(size)
    waves = [np.sin((1 + number) / IMAGES * place) for number in range(IMAGES)]
    return [wave.astype(np.float32) if tensor else np.round(127.5 + 127 * wave).astype(np.uint8) for wave in waves]


def warn_if_moved(before: np.ndarray | None, now: np.ndarray | None, what: str) -> float:
    """Warn if embeddings (k, M) of the first k images differ from those (8, M) of `what`; return by how much."""
    if before is None or now is None or (before := before[: len(now)]).shape != now.shape:
        return 0.0
    first, second = (normalized(rows).astype(np.float64) for rows in (before, now))
    distance = ((first - second) ** 2).sum(axis=1) / 2
    if (distance <= MOVED).all():
        return 0.0
    log.warning(
        "the embeddings of %d of %d test images have moved since %s was made, by %.2g in cosine, because of another "
        "library, precision or processor. Scores shift as much; make galleries and certificates again here",
        *((~(distance <= MOVED)).sum(), len(now), what, distance.max()),
    )
    return float(distance.max())


def sound(rows: np.ndarray) -> bool:
    """Say whether stored rows can be embeddings of the eight images."""
    return rows.ndim == 2 and len(rows) == IMAGES and rows.dtype == np.float32 and bool(np.isfinite(rows).all())
