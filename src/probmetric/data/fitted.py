"""Images of one dataset as input of an encoder trained on another: OOD sets differ in channels and size.

    grey, the encoder reads colour    the channel is repeated
    colour, the encoder reads grey    ITU-R 601 luma, 0.299 R + 0.587 G + 0.114 B, rounded
    another size                      photographs: the encoder's own evaluation view, which ends at its size;
                                      small images: shorter side resized (bilinear, antialiased), central crop

This is what preparing the dataset for that encoder would have given, up to rounding. It can make a set easier to tell
apart (enlarged images are smooth): results name the sets they used.
"""

from __future__ import annotations

import numpy as np
import torch

from probmetric.data.store import ImageStore
from probmetric.data.views import View, create_view

LUMA = (0.299, 0.587, 0.114)


def load_fitted(store: ImageStore, rows: np.ndarray, transform: View, *, shape: tuple[int, int]) -> torch.Tensor:
    """Evaluation views of stored images.

    Args:
        store: the images.
        rows: manifest rows (B,).
        transform: evaluation view of the dataset the encoder was trained on.
        shape: channels C and side S of the encoder's input.

    Returns:
        (B, C, S, S) uint8, on the CPU.
    """
    channels, side = shape
    if not len(rows):
        return torch.empty((0, channels, side, side), dtype=torch.uint8)
    if transform.side is None and (store.shape is None or store.shape[:2] != (side, side)):
        views = create_view("photos", size=side, resize=side).load_plain(store, rows)
    else:
        views = transform.load_plain(store, rows)
    return with_channels(views, channels)


def with_channels(images: torch.Tensor, channels: int) -> torch.Tensor:
    """Images (B, 1 or 3, H, W) uint8 with the number of channels asked for, 1 or 3."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    weights = torch.tensor(LUMA).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True).round_().to(torch.uint8)
