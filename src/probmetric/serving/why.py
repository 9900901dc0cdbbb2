"""Draw why two images match: both as the network sees them, bright where they make the cosine (`models._regions`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from probmetric.errors import ServingError
from probmetric.io.folders import new_folder
from probmetric.models._regions import cosine_regions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from probmetric.serving.model import Model
    from probmetric.serving.search import Answer

SIDE, GAP, DIMMED = 320, 8, 0.25
WHAT = "explanations of matches"


def explain(model: Model, answers: Sequence[Answer], folder: Path) -> list[Path]:
    """Write a picture `<number>.png` of every answer and its nearest image into `folder`; return their paths.

    Both images are files at the paths that the answer names. The region that counts most keeps its colours, one that
    counts nothing or against the match is dimmed.

    Raises:
        DataError: an image cannot be read.
        ServingError: the encoder has no feature maps, so no regions.
    """
    shown = [(answer.image, answer.matches[0].path) for answer in answers if answer.matches]
    with new_folder(folder, WHAT) as new:
        for number, pair in enumerate(shown, start=1):
            _explained(model, pair).save(new / f"{number}.png")
    return [folder / f"{number}.png" for number in range(1, len(shown) + 1)]


def _explained(model: Model, pair: tuple[str, str]) -> Image.Image:
    encoder, images = model.predictor.encoder, model.preprocess(list(pair))
    seen = images.to(next(encoder.parameters()).device)
    with torch.no_grad():
        units = F.normalize(encoder(seen), dim=1)
    regions = cosine_regions(encoder, seen, units.flip(0))
    if regions is None:
        raise ServingError(f"the encoder of {model.name} has no feature maps, so no regions: leave out --explain.")
    weights = F.interpolate(regions.shares.clamp_min(0)[:, None], size=images.shape[2:], mode="bicubic")[:, 0]
    weights = (weights / weights.amax((1, 2), keepdim=True).clamp_min(1e-12)).clamp(0, 1).cpu()
    return _beside([_lit(image, weight) for image, weight in zip(images.numpy(), weights.numpy(), strict=True)])


def _lit(pixels: NDArray[np.float32], weight: NDArray[np.float32]) -> Image.Image:
    """Return an image (C, S, S), normalised for the network, dimmed where `weight` (S, S) is low."""
    low, high = float(pixels.min()), float(pixels.max())
    picture = np.broadcast_to((pixels - low) / max(high - low, 1e-12), (3, *pixels.shape[1:])).transpose(1, 2, 0)
    lit = picture * (DIMMED + (1 - DIMMED) * weight[..., None])
    return Image.fromarray((255 * lit).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def _beside(images: Sequence[Image.Image]) -> Image.Image:
    picture = Image.new("RGB", (len(images) * (SIDE + GAP) - GAP, SIDE), "white")
    for place, image in enumerate(images):
        picture.paste(image, (place * (SIDE + GAP), 0))
    return picture
