"""Datasets of one's own as what the training loop reads, and as a model's eye.

Images that are tensors are the network's input as they are; all others are decoded as everywhere and seen through a
view.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from probmetric.config import Component, Training
from probmetric.data.choosing import Opened
from probmetric.data.manifest import DataError
from probmetric.data.sampling import create_sampler
from probmetric.data.store import ImageStore
from probmetric.data.views import View, create_view
from probmetric.errors import ServingError
from probmetric.io import digest_of
from probmetric.models import input_statistics
from probmetric.serving._images import Eye, pixels_of
from probmetric.serving._sets import image_of, is_set, names_of
from probmetric.training.data import TrainingData
from probmetric.training.processes import ALONE


@dataclass(frozen=True, kw_only=True)
class AsGiven(View):
    """Tensors as they are; their last axis has `size`."""

    size: int

    @property
    def side(self) -> int:
        """Size of the last axis."""
        return self.size

    def evaluation(self) -> AsGiven:
        """The same; nothing is drawn."""
        return self

    def load_plain(self, store: Any, rows: np.ndarray) -> Tensor:
        """Inputs (B, ...) of the rows (B,)."""
        return torch.cat([store.input(int(row)) for row in rows])

    def normalise(self, images: Tensor) -> Tensor:
        """The same."""
        return images


@dataclass(frozen=True)
class TensorEye(Eye):
    """The eye of a model that was trained on tensors.

    Attributes:
        expects: shape of one input.
    """

    expects: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        """Axes of one input."""
        return len(self.expects)

    def load(self, image: Any) -> Tensor:
        """One input as a batch (1, ...) of float32.

        Raises:
            DataError: it is no tensor or array of the shape the model was trained with.
        """
        shape = tuple(getattr(image, "shape", ()))
        if shape != self.expects:
            found = f"shape {shape}" if shape else f"type {type(image).__name__}"
            raise DataError(f"an input of {found}; the model was trained on tensors of shape {self.expects}.")
        return torch.as_tensor(image).detach().cpu().float()[None]


@dataclass(frozen=True)
class _Store:
    """Images of datasets, one after the other, as the store that views read."""

    sets: tuple[Any, ...]
    eye: Eye
    shape = None

    def _image(self, row: int) -> Any:
        for each in self.sets:
            if row < len(each):
                return image_of(each[row])
            row -= len(each)
        raise IndexError(row)

    def __getitem__(self, row: int) -> np.ndarray:
        return pixels_of(self._image(row), self.eye.mode)

    def input(self, row: int) -> Tensor:
        """Input (1, ...) where the images are tensors."""
        return self.eye.load(self._image(row))


class SetData(TrainingData):
    """Training and validation images of datasets of one's own.

    Attributes:
        classes: names of the training classes, in the order of their numbers.
        eye: how the model sees an image.
    """

    def __init__(
        self,
        dataset: Any,
        validation: Any,
        settings: Training,
        *,
        view: View,
        eye: Eye,
        seed: int,
        device: torch.device,
    ) -> None:
        """Read the labels of both; `view` is the training view."""
        sets = (dataset,) if validation is None else (dataset, validation)
        names = [np.array(_labelled(each), dtype=str) for each in sets]
        every, numbers = np.unique(np.concatenate(names), return_inverse=True)
        labels = np.split(numbers, np.cumsum([len(part) for part in names])[:-1])
        ends = np.cumsum([0, *map(len, names)])
        rows = [np.arange(start, end) for start, end in itertools.pairwise(ends)]
        none = np.empty(0, dtype=np.int64)
        opened = Opened(
            {"train": rows[0], "val": rows[1] if validation is not None else none},
            {"train": labels[0], "val": labels[1] if validation is not None else none},
            cast("ImageStore", _Store(sets, eye)),
        )
        self.digest = digest_of([part.tolist() for part in names])
        self.settings, self.seed, self.device, self.processes = settings, seed, device, ALONE
        self.eye, self.classes = eye, tuple(every[np.unique(labels[0])].tolist())
        self._augment, self._plain = view, eye.view
        self._store, self._rows, self._held = opened.store, opened.rows, None
        self.in_channels, self.image_size = eye.shape
        self._read_labels(Path("the dataset"), opened)
        self._sampler = create_sampler(
            settings.sampler,
            self.labels.numpy(),
            batch_size=_batch(settings, len(self.labels)),
            per_class=settings.images_per_class,
            seed=seed,
            steps=settings.steps_per_epoch,
        )


def _batch(settings: Training, count: int) -> int:
    """The batch size, or where there are fewer images the largest they make."""
    per_class = settings.images_per_class
    return settings.batch_size if count >= settings.batch_size else max(per_class, count // per_class * per_class)


def _labelled(dataset: Any) -> list[str]:
    if not is_set(dataset) or not len(dataset):
        raise ServingError(
            f"{type(dataset).__name__} is no dataset to train on; expected a torch.utils.data.Dataset with a length, "
            "of (image, label)."
        )
    names = names_of(dataset)
    if "" in names:
        raise ServingError("the dataset's items have no label; each must be (image, label).")
    return names


def set_data(
    dataset: Any,
    validation: Any,
    settings: Training,
    *,
    backbone: Component | None,
    view: Component,
    seed: int,
    device: torch.device,
) -> SetData:
    """The data to train on, seen as the kind of the first image asks for.

    Args:
        dataset: to train on.
        validation: to choose the epoch on, or None.
        settings: how to train.
        backbone: name and options, where it is one of ours: its statistics normalise.
        view: name and options of the view of images that are no tensors.
        seed: of the batches.
        device: where they go.
    """
    _labelled(dataset)
    first = image_of(dataset[0])
    if isinstance(first, Tensor):
        shape = tuple(first.shape)
        if not shape:
            raise DataError("the dataset's images are single numbers; expected tensors (C, H, W), or vectors (D,).")
        training: View = AsGiven(size=shape[-1])
        eye: Eye = TensorEye(training, (shape[0], shape[-1]), expects=shape)
        if len(shape) != 3:
            settings = settings.model_copy(update={"channels_last": False})
    else:
        statistics = None if backbone is None else input_statistics(backbone.name, **backbone.options)
        training = create_view(view.name, **view.options).for_backbone(statistics)
        if training.side is None:
            raise ServingError(f"view {view.name!r} has no size of its own; use 'photos' for images of any size.")
        eye = Eye(training.evaluation(), (3, training.side))
    return SetData(dataset, validation, settings, view=training, eye=eye, seed=seed, device=device)
