"""Training and validation images of a prepared dataset; test images cannot be opened through it.

Up to two gigabytes of training pixels are held in memory, on the device. Larger sets are read, decoded and augmented
by threads a few batches ahead of the training step; what a batch contains depends on the seed, the epoch and the image
only, so neither the threads nor a resumed run change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from probmetric.config import ConfigError, EncoderSettings, Training
from probmetric.data import DataError, ImageStore, verify_digest
from probmetric.data.ahead import ahead_of, loading_threads, sent
from probmetric.data.choosing import Opened, Role, open_for_choosing
from probmetric.data.manifest import read_table, values_of
from probmetric.data.places import COLUMNS
from probmetric.data.reader import Reader
from probmetric.data.sampling import Sampler, create_sampler
from probmetric.data.views import View, view_of
from probmetric.io import sha256_file
from probmetric.models import input_statistics
from probmetric.training.processes import ALONE, Processes
from probmetric.training.seeds import generator_for

IN_MEMORY_BYTES = 2 * 2**30
VALUES_AT_ONCE = 2**19  # two megabytes of float32

Split = Literal["train", "val"]
AFTER_TRAINING: dict[str, Role] = {"validation": "validation", "refit": "pooled", "as_published": "pooled"}


class TrainingData:
    """Batches of a prepared dataset's training split, and its validation split in order.

    Attributes:
        index: manifest rows of the training images (N,).
        labels: their classes, re-mapped to 0..C-1 (N,).
        val_labels: classes of the validation images (V,), re-mapped likewise in a closed-set dataset.
        closed_set: whether the validation classes are training classes.
        num_classes: C.
        in_channels: channels of the images.
        image_size: their height and width.
        digest: SHA-256 of the prepared folder's digest file.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: Training,
        *,
        seed: int,
        device: torch.device,
        processes: Processes = ALONE,
        view: View | None = None,
        role: Role | None = None,
    ) -> None:
        """Open the prepared `folder`; batches depend on `seed` and the epoch only, of each `processes` loads its share.

        `view` is the training view of its images, by default the one its source declares. `role` says which splits may
        be seen (`data.choosing`); None: those whose images the finished weights know.
        """
        folder = Path(folder)
        verify_digest(folder)
        self.digest = sha256_file(folder / "digest")
        self.settings, self.seed, self.device, self.processes = settings, seed, device, processes
        opened = open_for_choosing(folder, role or AFTER_TRAINING[settings.selection])
        self._read_labels(folder, opened)
        self._augment = view or view_of(folder, augment=settings.augment)
        self._plain = self._augment.evaluation()
        self._read_images(folder, opened)
        self._sampler = self._create_sampler(folder)

    def _read_labels(self, folder: Path, opened: Opened) -> None:
        labels, rows = opened.labels, opened.rows
        classes = np.unique(labels["train"])
        if len(classes) < 2:
            raise DataError(f"{folder} has {len(classes)} training class(es); training needs at least 2.")
        self.num_classes, self.has_validation = len(classes), len(rows["val"]) > 0
        self.index = torch.from_numpy(rows["train"])
        self.labels = torch.from_numpy(np.searchsorted(classes, labels["train"]))
        validation = labels["val"]
        self.closed_set = bool(np.isin(validation, classes).all())
        self.val_labels = torch.from_numpy(np.searchsorted(classes, validation) if self.closed_set else validation)

    def _read_images(self, folder: Path, opened: Opened) -> None:
        self._store, self._rows = opened.store, opened.rows
        rows = opened.rows
        self._held: Tensor | None = None
        if self._augment.side is not None:
            self.image_size = self._augment.side
            self.in_channels = int(self._store[int(rows["train"][0])].shape[2])
            return
        height, width, self.in_channels = _uniform_shape(self._store, folder)
        self.image_size = height
        if len(rows["train"]) * height * width * self.in_channels <= IN_MEMORY_BYTES:
            self._held = self._store.batch(rows["train"]).to(self.device)

    def share_images(self, other: TrainingData) -> None:
        """Hold no second copy of the images that `other`, of the same folder and role, holds in memory."""
        self._held = other._held

    def _create_sampler(self, folder: Path) -> Sampler:
        settings = self.settings
        table, _ = read_table(folder, ["index"], optional=COLUMNS)
        places = None
        if set(COLUMNS) <= set(table.column_names):
            places = {name: values_of(table, name)[self.index.numpy()] for name in COLUMNS}
        return create_sampler(
            settings.sampler,
            self.labels.numpy(),
            batch_size=settings.batch_size,
            per_class=settings.images_per_class,
            seed=self.seed,
            steps=settings.steps_per_epoch,
            places=places,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch."""
        return self.settings.steps_per_epoch or len(self._sampler)

    def batches(self, epoch: int) -> list[Tensor]:
        """Positions (B,) in the training split, for every batch of `epoch`."""
        passes = -(-self.steps_per_epoch // len(self._sampler))
        batches = chain.from_iterable(self._sampler.epoch(epoch * passes + k) for k in range(passes))
        return [torch.from_numpy(batch) for batch in islice(batches, self.steps_per_epoch)]

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of `epoch` from step `start` on: positions (B,), augmented images (b, C, H, W), labels (B,).

        b is B, or this process's share of it.
        """
        chosen = self.batches(epoch)[start:]
        smallest = min(map(len, chosen), default=self.processes.count)
        if smallest < self.processes.count:
            raise ConfigError(
                f"a batch has {smallest} image(s), but {self.processes.count} processes share it; "
                "start fewer processes or raise training.batch_size."
            )
        own = [self.processes.own(positions) for positions in chosen]
        for positions, images in zip(chosen, self._augmented(own, epoch), strict=True):
            yield positions, images, self.labels[positions].to(self.device)

    def _augmented(self, batches: list[Tensor], epoch: int) -> Iterator[Tensor]:
        """Augmented images of each of the `batches`; several small ones at once, in two thirds of the time."""
        if self._held is None:
            yield from self._ahead(lambda positions: self.batch(positions, epoch=epoch)[0], batches)
            return
        largest = max(map(len, batches), default=1) * self._held[0].numel()
        at_once = max(1, VALUES_AT_ONCE // largest)
        for start in range(0, len(batches), at_once):
            some = batches[start : start + at_once]
            yield from self.batch(torch.cat(some), epoch=epoch)[0].split([len(positions) for positions in some])

    def batch(self, positions: Tensor, *, epoch: int) -> tuple[Tensor, Tensor]:
        """Augmented images (B, C, H, W) and labels (B,) on the device, for `positions` (B,) in the training split."""
        index = self.index[positions]
        if self._augment.side is not None:
            stored = self._augment.load(self._store, index.numpy(), seed=self.seed, epoch=epoch)
            stored = sent(stored, self.device)
        else:
            stored = self._stored(positions)
        images = self._augment(stored, index, seed=self.seed, epoch=epoch)
        return self._laid_out(images), self.labels[positions].to(self.device)

    def reader(self, split: Split) -> Reader:
        """Images of a split in manifest order, without augmentation."""
        rows, shape = torch.from_numpy(self._rows[split]), (self.in_channels, self.image_size)
        return Reader(self._store, rows, self._plain, shape=shape, device=self.device)

    def own_images_shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every training image once, without augmentation, in random batches of about the size a step has.

        Positions (b,) in the training split and images (b, C, H, W): this process's share of each batch.
        """
        order = torch.randperm(len(self.labels), generator=generator_for("cpu", self.seed, "shuffled"))
        count = -(-len(order) // self.settings.batch_size)
        chosen = [self.processes.own(batch) for batch in order.tensor_split(count)]
        yield from zip(chosen, self._ahead(self._plain_images, chosen), strict=True)

    def _ahead(self, load: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """`map(load, batches)`, by threads unless the images are in memory."""
        return ahead_of(load, batches, 0 if self._held is not None else loading_threads(self.device), self.device)

    def _plain_images(self, positions: Tensor) -> Tensor:
        if self._plain.side is not None:
            stored = sent(self._plain.load_plain(self._store, self.index[positions].numpy()), self.device)
        else:
            stored = self._stored(positions)
        return self._laid_out(self._plain.normalise(stored))

    def _stored(self, positions: Tensor) -> Tensor:
        """Stored training images (B, C, H, W) uint8 on the device."""
        if self._held is not None:
            # `index_select` copies whole rows, indexing pixel by pixel; both leave channels last
            pixels = self._held.permute(0, 2, 3, 1).index_select(0, positions.to(self.device))
            return pixels.permute(0, 3, 1, 2)
        return sent(self._store.batch(self.index[positions].numpy()), self.device)

    def _laid_out(self, images: Tensor) -> Tensor:
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)


def training_view(settings: EncoderSettings, folder: str | Path) -> View:
    """The view a run trains with on the prepared `folder`, normalised as its backbone expects.

    Its `evaluation()` is what validation and every later step must use.
    """
    backbone = settings.backbone
    return view_of(
        folder,
        augment=settings.training.augment,
        chosen=None if settings.view is None else settings.view.model_dump(),
        statistics=input_statistics(backbone.name, **backbone.options),
    )


def _uniform_shape(store: ImageStore, folder: Path) -> tuple[int, int, int]:
    if store.shape is None or store.shape[0] != store.shape[1]:
        found = "of different sizes" if store.shape is None else f"{store.shape[0]}x{store.shape[1]}"
        raise DataError(f"{folder}: images are {found}; training needs square images of one size.")
    return store.shape
