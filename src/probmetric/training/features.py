"""Features of a trunk that does not train: computed once per (weights, view, images), shared by all that read them.

    state/features/<digest of weights and view>/<digest of images>.safetensors

Heads of any seed and loss, posteriors and embeddings then cost what a matrix product costs. Features are float32, in
evaluation mode, computed in batches of `data.images.BATCH`: they equal those of a training step in float32 to rounding.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from probmetric.config import ConfigError, EncoderSettings
from probmetric.data.choosing import Use
from probmetric.data.images import Eye, ImageSource, batches
from probmetric.data.views._base import RawTensors
from probmetric.io import FileError, digest_of, read_tensors, sha256_file, tensors_digest, try_lock, write_tensors
from probmetric.models import Encoder
from probmetric.models._wrapped import HeadOnly
from probmetric.training.data import TrainingData, TrainingImages
from probmetric.training.head_init import initialise_head
from probmetric.uncertainty._base import evaluating

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def keeps_trunk(settings: EncoderSettings, encoder: Encoder) -> bool:
    """Say whether the trunk of a run's encoder stays as it starts, and gives the same features whenever it is asked."""
    if not isinstance(encoder, Encoder):
        return False
    training = settings.training
    untrained = settings.pretrained and (settings.loss is None or training.epochs == 0)
    drops = any(isinstance(module, DROPOUT) and module.p > 0 for module in encoder.modules())
    has_trunk = any(not name.startswith("head.") for name, _ in encoder.named_parameters())
    return bool((training.freeze == "trunk" or untrained) and has_trunk and not drops)


class Features(NamedTuple):
    """Features of images, and what computing them took."""

    rows: Tensor  # (N, D)
    seconds: float


@dataclass(frozen=True)
class FeatureStore:
    """Files of the features that one trunk gives for images seen by one eye.

    Attributes:
        encoder: the encoder with the trunk.
        eye: how it sees images.
        folder: where the files lie.
    """

    encoder: Encoder
    eye: Eye
    folder: Path

    @classmethod
    def of(cls, settings: EncoderSettings, encoder: Encoder, eye: Eye, root: Path) -> FeatureStore:
        """Return the store of `encoder` below `root`; encoders that differ in their heads share one."""
        trunk = {name: value for name, value in encoder.state_dict().items() if not name.startswith("head.")}
        options = {name: value for name, value in settings.backbone.options.items() if not name.startswith("head")}
        code = [sha256_file(inspect.getfile(type(encoder))), torch.__version__]
        view = [type(eye.view).__name__, repr(eye.view), list(eye.shape)]
        return cls(encoder, eye, root / digest_of([tensors_digest(trunk), options, code, view])[:24])

    def read(self, source: ImageSource, images_digest: str, device: torch.device) -> Features:
        """Return the features of `source` from their file, which one process computes if it is missing.

        Args:
            source: the images.
            images_digest: digest of the dataset they are of.
            device: where to compute.
        """
        rows = digest_of([images_digest, tensors_digest({"rows": np.asarray(source.index)})])[:24]
        file = self.folder / f"{rows}.safetensors"
        while (features := _read(file)) is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with try_lock(self.folder / f"{rows}.lock") as held:
                if held and _read(file) is None:
                    computed = self._computed(source, device)
                    write_tensors(file, {"features": computed.rows}, {"seconds": str(computed.seconds)})
            if not held:
                time.sleep(0.2)
        return features

    def _computed(self, source: ImageSource, device: torch.device) -> Features:
        started = time.perf_counter()
        with evaluating(self.encoder):
            parts = [self.encoder.features(each).cpu() for each in batches(source, self.eye, device)]
        rows = torch.cat([torch.empty(0, self.encoder.num_features), *parts])
        return Features(rows, round(time.perf_counter() - started, 2))


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
        """Class of every image (N,)."""
        return self.source.labels

    @property
    def index(self) -> np.ndarray:
        """Number of every image (N,)."""
        return self.source.index

    def __len__(self) -> int:
        return len(self.source)

    def load(self, rows: np.ndarray) -> Tensor:
        """Return the features (B, D) at the positions `rows` (B,)."""
        return self.features[torch.from_numpy(rows)]


def on_features(
    settings: EncoderSettings, encoder: Encoder, images: TrainingImages, data: TrainingData, root: Path | None
) -> tuple[Encoder, TrainingData]:
    """Return the encoder's head and the data as features, where the trunk's are shared; else both as they are.

    Args:
        settings: the run's settings.
        encoder: the encoder.
        images: what `data` was made of.
        data: the training data.
        root: folder of the shared features; None shares none.
    """
    augments = images.view != images.view.evaluation()
    if root is None or augments or not keeps_trunk(settings, encoder):
        return encoder, data
    store = FeatureStore.of(settings, encoder, data.eye, root)
    sources: dict[Use, ImageSource] = {
        use: FeatureSource(source, store.read(source, images.digest, data.device).rows)
        for use, source in images.sources.items()
    }
    seen = replace(images, sources=sources, view=RawTensors(shape=(encoder.num_features,)))
    features = TrainingData(seen, data.settings, seed=data.seed, device=data.device, processes=data.processes)
    return HeadOnly(encoder).to(data.device), features


def start_head(encoder: Encoder, data: TrainingData, store: FeatureStore | None = None) -> None:
    """Initialise the head as `training.head_init` asks, from the features of the training images.

    Args:
        encoder: the encoder.
        data: the training data.
        store: where these features are kept; None computes them.

    Raises:
        ConfigError: the encoder has no linear head.
    """
    kind = data.settings.head_init
    if kind == "random":
        return
    head = encoder.head
    if not isinstance(head, nn.Linear):
        raise ConfigError(f"training.head_init is {kind!r}, but the encoder has no linear head; set it to random.")
    if store is not None:
        features = store.read(data.sources["train"], data.digest, data.device).rows
    else:
        with evaluating(encoder):
            features = torch.cat([encoder.features(images) for images in data.plain_batches("train")])
    data.processes.once(lambda: initialise_head(head, features, data.labels, kind))
    data.processes.align(head)
