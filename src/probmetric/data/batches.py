"""The images of one split, in manifest order, as the batches an encoder reads, loaded ahead by threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from probmetric.data.ahead import ahead_of, loading_threads, sent
from probmetric.data.digest import verify_digest
from probmetric.data.fitted import load_fitted
from probmetric.data.manifest import load_columns
from probmetric.data.recipes import Transform
from probmetric.data.store import open_images

BATCH = 256


class SplitImages:
    """Images of a split of a prepared folder, read as they are needed.

    Attributes:
        index: manifest rows (N,).
        labels: manifest labels (N,).
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        *,
        transform: Transform,
        shape: tuple[int, int],
        device: torch.device | str = "cpu",
    ) -> None:
        """Open `split` of the prepared `folder`, after checking that its files are the ones prepared.

        Args:
            folder: the prepared dataset.
            split: train, val or test.
            transform: training transform of the dataset the encoder was trained on; only its number format is used.
            shape: channels C and side S of the encoder's input; other images are converted, see `fitted`.
            device: where the batches go.
        """
        verify_digest(folder)
        columns = load_columns(folder, ["label", "split"])
        rows = np.flatnonzero(columns["split"] == split)
        self.index = torch.from_numpy(rows)
        self.labels = torch.from_numpy(columns["label"][rows])
        self._store, self._transform, self._shape = open_images(folder), transform, shape
        self._device = torch.device(device)

    def __len__(self) -> int:
        return len(self.index)

    def batches(self, size: int = BATCH, *, first: int = 0, step: int = 1) -> Iterator[torch.Tensor]:
        """Images (B, C, H, W) float32, scaled as in training and not augmented; every `step`-th batch from `first`."""
        chosen = self.index.split(size)[first::step]
        for views in ahead_of(self._load, chosen, loading_threads(self._device), self._device):
            yield self._transform.normalise(views)

    def _load(self, rows: torch.Tensor) -> torch.Tensor:
        return sent(load_fitted(self._store, rows.numpy(), self._transform, shape=self._shape), self._device)
