"""Features: output of a network's frozen part, computed once per (weights, view, images) and shared by all runs.

    state/features/<digest of weights and view>/<digest of images>.safetensors

With stored features, a head on a frozen trunk, its posterior and its embeddings cost only a matrix product, for every
seed and loss. Networks that train from a part on (`train_from`) start at that part's input. Features are float32,
computed in evaluation mode in batches of `data.images.BATCH`; they equal those of a float32 training step to rounding.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from probmetric.config import ConfigError, EncoderSettings
from probmetric.data.choosing import Use
from probmetric.data.images import Eye, ImageSource, batches
from probmetric.data.views._base import RawTensors
from probmetric.io import FileError, alone, digest_of, read_tensors, tensors_digest, write_tensors
from probmetric.models import REGISTRY, Encoder
from probmetric.models._wrapped import HeadOnly, drops, input_of, rest_of
from probmetric.runs.source import module_digests
from probmetric.training.data import TrainingData, TrainingImages
from probmetric.training.head_init import initialise_head
from probmetric.uncertainty._base import evaluating
from probmetric.uncertainty.ensemble import EncoderEnsemble


class Features(NamedTuple):
    """Features of images by the frozen part of a network, and the seconds to compute them."""

    rows: Tensor  # (N, D), or (N, ...) where the network trains from a part on
    seconds: float


@dataclass(frozen=True)
class FeatureStore:
    """Files of the features that the frozen part of a network makes from images seen by one eye.

    Attributes:
        encoder: the whole encoder.
        eye: how it sees images.
        folder: folder of the files.
        part: the part whose input is stored; None: the head.
    """

    encoder: Encoder
    eye: Eye
    folder: Path
    part: str | None = None

    @classmethod
    def of(
        cls, settings: EncoderSettings, encoder: Encoder, eye: Eye, root: Path, part: str | None = None
    ) -> FeatureStore:
        """Return the store of `encoder` below `root`; encoders with the same frozen part share one.

        The store's name depends on the code of the network, of the view and of image reading, with all they import.
        """
        state, frozen = encoder.state_dict(), encoder.trunk_names(part)
        trunk = {name: value for name, value in state.items() if name in frozen}
        options = {name: value for name, value in settings.backbone.options.items() if not name.startswith("head")}
        modules = {type(encoder).__module__, type(eye.view).__module__, ImageSource.__module__}
        code = [module_digests(*sorted(modules), REGISTRY.module(settings.backbone.name)), torch.__version__]
        view = [type(eye.view).__name__, repr(eye.view), list(eye.shape)]
        return cls(encoder, eye, root / digest_of([tensors_digest(trunk), options, code, view, part])[:24], part)

    def read(self, source: ImageSource, images_digest: str, device: torch.device) -> Features:
        """Return the features of `source` from their file; one process computes the file if it is missing.

        Args:
            source: the images.
            images_digest: digest of their dataset.
            device: where to compute.
        """
        rows = digest_of([images_digest, tensors_digest({"rows": np.asarray(source.index)})])[:24]
        file = self.folder / f"{rows}.safetensors"
        features = _read(file)
        if features is not None:
            return features
        with alone(file, "computes the same features"):
            features = _read(file)
            if features is None:
                features = self._computed(source, device)
                write_tensors(file, {"features": features.rows}, {"seconds": str(features.seconds)})
            return features

    def _computed(self, source: ImageSource, device: torch.device) -> Features:
        started = time.perf_counter()
        with evaluating(self.encoder):
            parts = [self._of(images).cpu() for images in batches(source, self.eye, device)]
        return Features(torch.cat(parts).contiguous(), round(time.perf_counter() - started, 2))

    def _of(self, images: Tensor) -> Tensor:
        return self.encoder.features(images) if self.part is None else input_of(self.encoder, self.part, images)[0]


class Shared(NamedTuple):
    """A network with a frozen first part: the store of that part's features, and the network after it."""

    store: FeatureStore
    rest: Encoder


def shared(settings: EncoderSettings, encoder: Encoder, eye: Eye, root: Path | None) -> Shared | None:
    """Return the frozen part of a run's encoder and the rest; None if no part is frozen or can be shared.

    Members of an ensemble share their frozen part.

    Args:
        settings: the run's settings.
        encoder: its encoder, whose weights the rest shares.
        eye: how it sees images.
        root: folder of the shared features; None shares none.
    """
    if isinstance(encoder, EncoderEnsemble):
        parts = [part for member in encoder.members if (part := shared(settings, cast("Encoder", member), eye, root))]
        if len(parts) < len(encoder.members) or len({part.store.folder for part in parts}) > 1:
            return None
        return Shared(parts[0].store, cast("Encoder", EncoderEnsemble([part.rest for part in parts])))
    training = settings.training
    if root is None or not isinstance(encoder, Encoder) or not encoder.trunk_names():
        return None
    untrained = settings.pretrained and (settings.loss is None or training.epochs == 0)
    if untrained or training.freeze == "trunk":
        if any(drops(module) for module in encoder.modules()):
            return None
        rest = HeadOnly(encoder)
        return Shared(FeatureStore.of(settings, encoder, eye, root), rest.train(encoder.training))
    if training.train_from is None:
        return None
    with evaluating(encoder):
        cut = rest_of(encoder, training.train_from, eye.shape)
    if cut is None:
        return None
    return Shared(FeatureStore.of(settings, encoder, eye, root, training.train_from), cut)


def _read(file: Path) -> Features | None:
    """Return the features in `file`; None where it is missing or damaged."""
    try:
        tensors, metadata = read_tensors(file, framework="torch")
    except FileError:
        return None
    return Features(tensors["features"], float(metadata["seconds"]))


@dataclass(frozen=True)
class FeatureSource:
    """Features (N, D) in place of the images of `source`."""

    source: ImageSource
    features: Tensor

    @property
    def labels(self) -> np.ndarray:
        """Return the class of every image (N,)."""
        return self.source.labels

    @property
    def index(self) -> np.ndarray:
        """Return the number of every image (N,)."""
        return self.source.index

    def __len__(self) -> int:
        return len(self.source)

    def load(self, rows: np.ndarray) -> Tensor:
        """Return the features (B, D) at the positions `rows` (B,)."""
        return self.features[torch.from_numpy(rows)]


def on_features(
    settings: EncoderSettings, encoder: Encoder, images: TrainingImages, data: TrainingData, root: Path | None
) -> tuple[Encoder, TrainingData]:
    """Return the part of the encoder that trains, and its data; both unchanged if no features are shared.

    Args:
        settings: the run's settings.
        encoder: the encoder.
        images: the images of `data`.
        data: the training data.
        root: folder of the shared features; None shares none.
    """
    augments = images.view != images.view.evaluation()
    parts = None if augments or not len(images.sources["train"]) else shared(settings, encoder, data.eye, root)
    if parts is None:
        return encoder, data
    sources: dict[Use, ImageSource] = {
        use: FeatureSource(source, parts.store.read(source, images.digest, data.device).rows)
        for use, source in images.sources.items()
    }
    seen = replace(images, sources=sources, view=RawTensors(shape=(parts.store.encoder.num_features,)))
    features = TrainingData(seen, data.settings, seed=data.seed, device=data.device, processes=data.processes)
    return parts.rest.to(data.device), features


def start_head(encoder: Encoder, data: TrainingData, store: FeatureStore | None = None) -> None:
    """Initialise the head as `training.head_init` asks, from the features of the training images.

    Args:
        encoder: the encoder.
        data: the training data.
        store: store of these features; None computes them.

    Raises:
        ConfigError: the encoder has no linear head, or one without the bias that the map needs.
    """
    kind = data.settings.head_init
    if kind == "random":
        return
    head = encoder.head
    if not isinstance(head, nn.Linear):
        raise ConfigError(f"training.head_init is {kind!r}, but the encoder has no linear head; set it to random.")
    if head.bias is None and kind != "pca":
        raise ConfigError(f"training.head_init {kind!r} centres the features, but the head has no bias; use pca.")
    if store is not None:
        features = store.read(data.sources["train"], data.digest, data.device).rows
    else:
        with evaluating(encoder):
            features = torch.cat([encoder.features(images) for images in data.plain_batches("train")])
    data.processes.once(lambda: initialise_head(head, features, data.labels, kind))
    data.processes.align(head)
