"""Passes over a prepared dataset for what is fitted after training: read as they go, repeatable, never held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from probmetric.data.reader import BATCH
from probmetric.training.data import TrainingData


@dataclass(frozen=True)
class TrainingPass:
    """The training split as training saw it first: augmented, in the sampler's batches; every pass is the same."""

    data: TrainingData

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of images (B, C, H, W) and labels (B,) in 0..C-1."""
        for _, images, labels in self.data.epoch_batches(0):
            yield images, labels


@dataclass(frozen=True)
class ValidationPass:
    """The validation split in manifest order, without augmentation.

    Labels are the training classes' numbers 0..C-1 in a closed-set dataset. Unseen classes are numbered from C on, so
    that they cannot be mistaken for classes a loss knows.
    """

    data: TrainingData

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of images (B, C, H, W) and labels (B,)."""
        labels = self.data.val_labels
        if not self.data.closed_set:
            labels = torch.unique(labels, return_inverse=True)[1] + self.data.num_classes
        yield from zip(self.data.reader("val").batches(), labels.split(BATCH), strict=True)
