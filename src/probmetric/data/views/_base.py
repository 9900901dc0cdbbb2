"""What a view is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from probmetric.data.store import ImageStore


@dataclass(frozen=True, kw_only=True)
class View:
    """From stored images to network input; a frozen dataclass whose fields are its options.

    `load` and `load_plain` run on the CPU, in threads, uint8 to uint8; calling the view does what is left to the
    device. What is drawn is a function of (seed, epoch, image) alone: `probmetric.data.counter.uniforms`.
    """

    def __post_init__(self) -> None:
        """Lists, as YAML gives them, become tuples."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))

    @property
    def side(self) -> int | None:
        """Side S of the network's input; None where that is the side of the stored images, which are then square."""
        return None

    def evaluation(self) -> View:
        """The same view without augmentation."""
        raise NotImplementedError

    def for_backbone(self, statistics: tuple[Sequence[float], Sequence[float]] | None) -> View:
        """The view normalised by the (mean, standard deviation) a backbone was trained with, if that is left open."""
        return self

    def load(self, store: ImageStore, rows: np.ndarray, *, seed: int, epoch: int) -> torch.Tensor:
        """Training images (B, C, H, W) uint8 of the manifest rows (B,), on the CPU."""
        return self.load_plain(store, rows)

    def load_plain(self, store: ImageStore, rows: np.ndarray) -> torch.Tensor:
        """Images without augmentation (B, C, H, W) uint8 of the manifest rows (B,), on the CPU."""
        return store.batch(rows)

    def __call__(
        self, images: torch.Tensor, indices: np.ndarray | torch.Tensor, *, seed: int, epoch: int
    ) -> torch.Tensor:
        """Augment and normalise loaded training images (B, C, H, W) uint8, of manifest rows (B,), to float32."""
        return self.normalise(images)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) with values 0..255 to float32 in the network's terms; no randomness."""
        raise NotImplementedError
