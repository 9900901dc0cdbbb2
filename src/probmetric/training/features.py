"""Features of a trunk that does not train: computed once per (weights, view, images), shared by all that read them.

    state/features/<digest of weights and view>/<digest of images>.safetensors

Heads of any seed and loss, posteriors and embeddings then cost what a matrix product costs. Features are float32, in
evaluation mode, computed in batches of `data.images.BATCH`: they equal those of a training step in float32 to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from probmetric.config import ConfigError, EncoderSettings
from probmetric.data.choosing import Use
from probmetric.data.images import Eye, ImageSource, batches
from probmetric.data.views import View
from probmetric.data.views._base import RawTensors
from probmetric.io import digest_of, tensors_digest, try_lock, write_tensors
from probmetric.models import Encoder
from probmetric.models._wrapped import HeadOnly
from probmetric.training.data import TrainingData, TrainingImages
from probmetric.training.head_init import initialise_head
from probmetric.uncertainty._base import evaluating

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def can_be_shared(settings: EncoderSettings, encoder: Encoder) -> bool:
    """Say whether the features of `encoder` are those of many runs: its trunk is frozen, and nothing in it is drawn."""
    training, head = settings.training, getattr(encoder, "head", None)
    last = {id(parameter) for parameter in (head.parameters() if head is not None else ())}
    untrained = settings.pretrained and (settings.loss is None or training.epochs == 0)
    drops = any(isinstance(module, DROPOUT) and module.p > 0 for module in encoder.modules())
    has_trunk = any(id(parameter) not in last for parameter in encoder.parameters())
    shared = training.freeze == "trunk" or untrained
    return bool(shared and has_trunk and not drops and isinstance(encoder, Encoder))


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
        """Return the store of `encoder` below `root`."""
        trunk = {name: value for name, value in encoder.state_dict().items() if not name.startswith("head.")}
        backbone = settings.backbone.model_dump(mode="json")
        view = [type(eye.view).__name__, repr(eye.view), list(eye.shape)]
        return cls(encoder, eye, root / digest_of([tensors_digest(trunk), backbone, view])[:24])

    def read(self, source: ImageSource, images_digest: str, device: torch.device) -> Tensor:
        """Return the features (N, D) of `source`, mapped from their file, which one process computes if it is missing.

        Args:
            source: the images.
            images_digest: digest of the dataset they are of.
            device: where to compute.
        """
        rows = digest_of([images_digest, tensors_digest({"rows": np.asarray(source.index)})])[:24]
        file = self.folder / f"{rows}.safetensors"
        while (features := _mapped(file)) is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with try_lock(self.folder / f"{rows}.lock") as held:
                if held and _mapped(file) is None:
                    write_tensors(file, {"features": self._computed(source, device)})
            if not held:
                time.sleep(0.2)
        return features

    def _computed(self, source: ImageSource, device: torch.device) -> Tensor:
        if not len(source):
            return torch.empty(0, self.encoder.num_features)
        with evaluating(self.encoder):
            return torch.cat([self.encoder.features(each).cpu() for each in batches(source, self.eye, device)])


def _mapped(file: Path) -> Tensor | None:
    """Return the features in `file`; None where it is missing or damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            features: Tensor = opened.get_tensor("features")
    except (OSError, SafetensorError):
        return None
    return features


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
    if root is None or not can_be_shared(settings, encoder) or _draws(images.view):
        return encoder, data
    store = FeatureStore.of(settings, encoder, data.eye, root)
    sources: dict[Use, ImageSource] = {
        use: FeatureSource(source, store.read(source, images.digest, data.device))
        for use, source in images.sources.items()
    }
    seen = replace(images, sources=sources, view=RawTensors(shape=(encoder.num_features,)))
    features = TrainingData(seen, data.settings, seed=data.seed, device=data.device, processes=data.processes)
    return HeadOnly(encoder).to(data.device), features


def _draws(view: View) -> bool:
    return view != view.evaluation()


def start_head(encoder: Encoder, data: TrainingData) -> None:
    """Initialise the head as `training.head_init` asks, from the features of the training images.

    Raises:
        ConfigError: the encoder has no linear head.
    """
    kind = data.settings.head_init
    if kind == "random":
        return
    head = encoder.head
    if not isinstance(head, nn.Linear):
        raise ConfigError(f"training.head_init is {kind!r}, but the encoder has no linear head; set it to random.")
    features = torch.cat(list(_plain_features(encoder, data)))
    data.processes.once(lambda: initialise_head(head, features, data.labels, kind))
    data.processes.align(head)


def _plain_features(encoder: Encoder, data: TrainingData) -> Iterator[Tensor]:
    with evaluating(encoder):
        for images in data.plain_batches("train"):
            yield encoder.features(images)
