"""Training and validation images as batches. Test images of a prepared dataset cannot be opened through this module.

Up to two gigabytes of training pixels are held in memory, on the device. For larger sets, threads read, decode and
augment a few batches ahead of the training step. The content of a batch depends only on the seed, the epoch and the
images, so neither threads nor a resumed run change it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from probmetric.config import Component, ConfigError, EncoderSettings, Training
from probmetric.data import DataError, verify_digest
from probmetric.data.choosing import AFTER_TRAINING, Role, Use, open_for_choosing
from probmetric.data.images import BATCH, Eye, ImageSource, ahead_of, batches, loading_threads, to_device
from probmetric.data.manifest import read_summary, read_table, values_of
from probmetric.data.places import COLUMNS
from probmetric.data.samplers import Batching, Sampler, create_sampler
from probmetric.data.views import View, view_of
from probmetric.data.views._base import Images, stacked
from probmetric.io import sha256_file
from probmetric.models import input_statistics
from probmetric.training.assemble import Assembly, Sizes
from probmetric.training.processes import ALONE, Processes
from probmetric.training.seeds import generator_for
from probmetric.uncertainty import Posterior, create_uncertainty

IN_MEMORY_BYTES = 2 * 2**30
VALUES_AT_ONCE = 2**19  # two megabytes of float32


@dataclass(frozen=True)
class TrainingImages:
    """The images that a training may see.

    Attributes:
        sources: images to train on and images to choose an epoch on; both number classes alike.
        view: the training view.
        digest: SHA-256 that identifies the images.
        name: name of the images in messages.
        places: manifest columns `places.COLUMNS` of the training images (N,), if they are street scenes.
        channels: channels of the dataset's images, 0 if unknown. If known, training images may be missing, for networks
            that do not train.
    """

    sources: Mapping[Use, ImageSource]
    view: View
    digest: str
    name: str = "the dataset"
    places: Mapping[str, np.ndarray] | None = None
    channels: int = 0


def training_images(
    folder: str | Path, settings: Training, *, view: View | None = None, role: Role | None = None
) -> TrainingImages:
    """Open the prepared `folder` for training.

    Args:
        folder: the prepared dataset.
        settings: how to train.
        view: the training view, by default the one its source declares.
        role: which splits may be seen (`data.choosing`); None: those that the finished weights were trained on.

    Raises:
        FileError: the folder's files are not the ones prepared.
    """
    folder = Path(folder)
    verify_digest(folder)
    sources = open_for_choosing(folder, role or AFTER_TRAINING[settings.selection])
    table, _ = read_table(folder, ["index"], optional=COLUMNS)
    places = None
    if set(COLUMNS) <= set(table.column_names):
        places = {name: values_of(table, name)[sources["train"].index] for name in COLUMNS}
    view = view or view_of(folder, augment=settings.augment)
    channels = max(read_summary(folder)["channels"])
    return TrainingImages(sources, view, sha256_file(folder / "digest"), str(folder), places, channels)


@dataclass(frozen=True)
class Pass:
    """Batches of images (B, C, H, W) and labels (B,), read again in every iteration."""

    read: Callable[[], Iterator[tuple[Tensor, Tensor]]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.read()


class TrainingData:
    """Batches of the images to train on, and the images to choose on in order.

    Attributes:
        sources: images to train on and images to choose on.
        index: numbers of the training images in their source (N,).
        labels: their classes, re-mapped to 0..C-1 (N,).
        val_labels: classes of the validation images (V,), re-mapped to 0..C-1 in a closed-set dataset.
        closed_set: whether the validation classes are training classes.
        num_classes: C.
        in_channels: channels of the images.
        image_size: height and width of the images.
        digest: SHA-256 that identifies the images.
    """

    def __init__(
        self,
        images: TrainingImages,
        settings: Training,
        *,
        seed: int,
        device: torch.device,
        processes: Processes = ALONE,
    ) -> None:
        """Batch `images`. Batches depend on `seed` and the epoch only; each of the `processes` loads its share of them.

        Raises:
            DataError: fewer than two classes, or images that do not fit the view.
            OptionError: the batches cannot be made from these images.
        """
        self.settings, self.seed, self.device, self.processes = settings, seed, device, processes
        self.sources, self.digest, self._view, self._name = images.sources, images.digest, images.view, images.name
        self._channels = images.channels
        self._read_labels()
        self.index = torch.from_numpy(self.sources["train"].index)
        self._held: Tensor | None = None
        self.in_channels, self.image_size = self._read_sizes()
        self.eye = Eye(self._view.evaluation(), (self.in_channels, self.image_size))
        batching = Batching(settings.sampler, settings.batch_size, settings.images_per_class)
        self._create_sampler = lambda steps: create_sampler(
            replace(batching, steps=steps), self.labels.numpy(), seed, images.places
        )
        if len(self.labels):
            _ = self._sampler  # what cannot be batched stops here

    @functools.cached_property
    def _sampler(self) -> Sampler:
        return self._create_sampler(self.settings.steps_per_epoch)

    def _read_labels(self) -> None:
        labels, validation = self.sources["train"].labels, self.sources["val"].labels
        classes = np.unique(labels)
        learns = self.settings.epochs > 0 or self.settings.head_init != "random"
        if len(classes) < 2 and (learns or not self._channels):
            raise DataError(f"{self._name} has {len(classes)} training class(es); training needs at least 2.")
        self.num_classes, self.has_validation = len(classes), len(validation) > 0
        self.labels = torch.from_numpy(np.searchsorted(classes, labels))
        self.closed_set = bool(np.isin(validation, classes).all())
        self.val_labels = torch.from_numpy(np.searchsorted(classes, validation) if self.closed_set else validation)

    def _read_sizes(self) -> tuple[int, int]:
        """Return channels and side of the network's input; keep the images in memory if they fit."""
        train, side = self.sources["train"], self._view.side
        if not len(train) and side is not None:
            return self._channels, side
        first = train.load(np.zeros(1, dtype=np.int64))
        if side is not None:
            return self._view.load_plain(first).shape[1], side
        if not isinstance(first, np.ndarray) or first.shape[1] != first.shape[2]:
            sizes = f"{first.shape[1]}x{first.shape[2]}" if isinstance(first, np.ndarray) else "of different sizes"
            raise DataError(f"{self._name}: images are {sizes}; training needs square images of one size.")
        if len(train) * first.size <= IN_MEMORY_BYTES:
            self._held = stacked(train.load(np.arange(len(train)))).to(self.device)
        return first.shape[3], first.shape[1]

    @property
    def sizes(self) -> Sizes:
        """Return the sizes of the data that decide the size of a network."""
        return Sizes(self.in_channels, self.image_size, self.num_classes, len(self.labels))

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch."""
        return self.settings.steps_per_epoch or len(self._sampler)

    def batches(self, epoch: int) -> list[Tensor]:
        """Return positions (B,) among the training images, for every batch of `epoch`."""
        passes = -(-self.steps_per_epoch // len(self._sampler))
        drawn = chain.from_iterable(self._sampler.epoch(epoch * passes + k) for k in range(passes))
        return [torch.from_numpy(batch) for batch in islice(drawn, self.steps_per_epoch)]

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the batches of `epoch` from step `start` on: positions (B,), augmented images (b, ...), labels (B,).

        b is B, or this process's share of it.
        """
        yield from self._drawn(self.batches(epoch)[start:], epoch)

    def _drawn(self, chosen: Sequence[Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the batches at the positions `chosen` as `epoch_batches` does."""
        smallest = min(map(len, chosen), default=self.processes.count)
        if smallest < self.processes.count:
            raise ConfigError(
                f"a batch has {smallest} image(s), but {self.processes.count} processes share it; "
                "start fewer processes or raise training.batch_size."
            )
        shares = [self.processes.own(positions) for positions in chosen]
        for positions, images in zip(chosen, self._augmented(shares, epoch), strict=True):
            yield positions, images, self.labels[positions].to(self.device)

    def _augmented(self, positions: list[Tensor], epoch: int) -> Iterator[Tensor]:
        """Yield augmented images of each batch of positions; several small ones at once take two thirds of the time."""
        if self._held is None:
            yield from self._ahead(lambda batch: self.batch(batch, epoch=epoch)[0], positions)
            return
        largest = max(map(len, positions), default=1) * self._held[0].numel()
        at_once = max(1, VALUES_AT_ONCE // largest)
        for start in range(0, len(positions), at_once):
            some = positions[start : start + at_once]
            yield from self.batch(torch.cat(some), epoch=epoch)[0].split([len(batch) for batch in some])

    def batch(self, positions: Tensor, *, epoch: int) -> tuple[Tensor, Tensor]:
        """Return augmented images (B, C, H, W) and labels (B,) on the device, for `positions` (B,)."""
        rows = self.index[positions].numpy()
        if self._held is None:
            images = self._view.load(self._load(positions), rows, seed=self.seed, epoch=epoch)
            images = to_device(images, self.device)
        else:  # `index_select` copies whole rows, and leaves channels last
            images = self._held.permute(0, 2, 3, 1).index_select(0, positions.to(self.device)).permute(0, 3, 1, 2)
        images = self._view(images, rows, seed=self.seed, epoch=epoch)
        return self._laid_out(images), self.labels[positions].to(self.device)

    def plain_batches(self, use: Use, *, first: int = 0, step: int = 1) -> Iterator[Tensor]:
        """Yield the images of one use in order, without augmentation; see `data.images.batches`."""
        return batches(self.sources[use], self.eye, self.device, first=first, step=step)

    def training_pass(self) -> Pass:
        """Return one pass over the training images as training sees them: augmented, in the sampler's batches."""
        chosen = [torch.from_numpy(batch) for batch in self._create_sampler(None).epoch(0)]
        return Pass(lambda: ((images, labels) for _, images, labels in self._drawn(chosen, 0)))

    def plain_pass(self) -> Pass:
        """Return one pass over the training images in order, without augmentation."""
        return self._in_order("train", self.labels)

    def validation_pass(self) -> Pass | None:
        """Return the validation images in order, without augmentation; None where there are none.

        Labels are the training classes' numbers 0..C-1 in a closed-set dataset. Unseen classes are numbered from C on,
        so that they cannot be mistaken for classes a loss knows.
        """
        labels = self.val_labels
        if not self.closed_set:
            labels = torch.unique(labels, return_inverse=True)[1] + self.num_classes
        return self._in_order("val", labels) if self.has_validation else None

    def fit_posterior(self, made: Assembly, uncertainty: Component) -> Posterior:
        """Fit the posterior of an uncertainty to an encoder and its loss.

        Raises:
            ValueError: the uncertainty cannot be fitted to these images, this encoder or this loss.
        """
        chosen = create_uncertainty(uncertainty.name, **uncertainty.options)
        return chosen.fit(
            made.encoder,
            self.plain_pass() if chosen.fits_each_image else self.training_pass(),
            loss=made.loss,
            generator=torch.Generator(device=self.device).manual_seed(self.seed),
            validation=self.validation_pass(),
        )

    def _in_order(self, use: Use, labels: Tensor) -> Pass:
        parts = labels.split(BATCH) if len(labels) else ()
        return Pass(lambda: zip(self.plain_batches(use), parts, strict=True))

    def own_images_shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every training image once, without augmentation, in random batches of about the size of a step's batch.

        Items are positions (b,) and images (b, C, H, W): this process's share of a batch, which has two images at least
        because batch normalisation cannot train on one.
        """
        order = torch.randperm(len(self.labels), generator=generator_for("cpu", self.seed, "shuffled"))
        count = max(1, min(-(-len(order) // self.settings.batch_size), len(order) // 2))
        chosen = [self.processes.own(batch) for batch in order.tensor_split(count)]
        yield from zip(chosen, self._ahead(self._plain_images, chosen), strict=True)

    def _ahead(self, load: Callable[[Tensor], Tensor], positions: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield `map(load, positions)`, computed a few ahead by threads."""
        return ahead_of(load, positions, loading_threads(self.device), self.device)

    def _plain_images(self, positions: Tensor) -> Tensor:
        images = to_device(self.eye.load(self._load(positions)), self.device)
        return self._laid_out(self.eye.view.normalise(images))

    def _load(self, positions: Tensor) -> Images:
        return self.sources["train"].load(positions.numpy())

    def _laid_out(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            return images
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)


def training_view(settings: EncoderSettings, folder: str | Path) -> View:
    """Return the view a run trains with on the prepared `folder`, normalised as its backbone expects.

    Validation and every later step must use the view's `evaluation()`.
    """
    backbone = settings.backbone
    return view_of(
        folder,
        augment=settings.training.augment,
        chosen=None if settings.view is None else settings.view.model_dump(),
        statistics=input_statistics(backbone.name, **backbone.options),
    )
