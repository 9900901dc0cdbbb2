"""Images without augmentation, in order, as the batches an encoder reads: for all that is not a training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from probmetric.data.ahead import ahead_of, loading_threads, sent
from probmetric.data.fitted import load_fitted
from probmetric.data.manifest import load_columns, verify_digest
from probmetric.data.store import ImageStore, open_images
from probmetric.data.views import View

BATCH = 256


class Reader:
    """Chosen images as an encoder's input, loaded ahead by threads, as often as they are asked for.

    Attributes:
        index: manifest rows (N,).
    """

    def __init__(
        self,
        store: ImageStore,
        index: Tensor | Sequence[int],
        view: View,
        *,
        shape: tuple[int, int],
        device: torch.device | str = "cpu",
    ) -> None:
        """Read the manifest rows `index` of `store`.

        Args:
            store: the images.
            index: which of them, in which order (N,).
            view: evaluation view of the dataset the encoder was trained on.
            shape: channels C and side S of the encoder's input; other images are converted, see `fitted`.
            device: where the batches go.
        """
        self.index = torch.as_tensor(index, dtype=torch.int64)
        self._store, self._view, self._shape, self._device = store, view, shape, torch.device(device)

    def __len__(self) -> int:
        return len(self.index)

    def batches(self, size: int = BATCH, *, first: int = 0, step: int = 1) -> Iterator[Tensor]:
        """Images (B, C, S, S) float32, scaled as in training; every `step`-th batch from the `first` on.

        A reader of no images gives one empty batch.
        """
        chosen = self.index.split(size)[first::step]
        for views in ahead_of(self._load, chosen, loading_threads(self._device), self._device):
            yield self._view.normalise(views)

    def _load(self, rows: Tensor) -> Tensor:
        return sent(load_fitted(self._store, rows.numpy(), self._view, shape=self._shape), self._device)


class SplitReader(Reader):
    """The images of a split of a prepared folder, in manifest order.

    Attributes:
        index: manifest rows (N,).
        labels: manifest labels (N,).
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        view: View,
        *,
        shape: tuple[int, int],
        device: torch.device | str = "cpu",
    ) -> None:
        """Open `split` (train, val or test) of `folder`, after checking that its files are the ones prepared."""
        verify_digest(folder)
        columns = load_columns(folder, ["label", "split"])
        rows = np.flatnonzero(columns["split"] == split)
        self.labels = torch.from_numpy(columns["label"][rows])
        super().__init__(open_images(folder), torch.from_numpy(rows), view, shape=shape, device=device)
