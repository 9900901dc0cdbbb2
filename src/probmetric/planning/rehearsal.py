"""Find before any job whether a training would fail before its first step, by running the first lines of the job.

Data, network, loss, optimiser and trainer are made as the job makes them, on the CPU. If the sampler accepts any data,
or the data are not prepared yet, blank images that fit every sampler replace them, and only the network is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric import models
from probmetric.config import EncoderSettings
from probmetric.errors import ProbMetricError
from probmetric.io import FileError

if TYPE_CHECKING:
    from probmetric.training.data import TrainingImages

SIDE = 32  # side of the blank images, if no view sets it
PARTICULAR = ("episodic", "pairs")  # samplers that can have too few images
# Settings that decide, with backbone, view, weights and (for these samplers) data, whether a training can begin.
DECIDING = {
    *("sampler", "batch_size", "images_per_class", "selection", "selection_metric", "augment"),
    *("batch_norm", "freeze", "train_from", "lora", "layer_decay", "gradient_cache"),
}


def kind_of(settings: EncoderSettings) -> str:
    """Return a key for trainings of which all or none can begin; "" if planning knows that this one can."""
    training, backbone = settings.training, settings.backbone
    headless = not models.REGISTRY.holds(backbone.name, "has_head", backbone.options)
    weights = settings.pretrained and backbone.name != "timm"  # for timm's networks `models._weights` answers faster
    changed = training.lora or training.layer_decay is not None or training.gradient_cache
    drawn = training.sampler in PARTICULAR
    if not (weights or training.train_from or (settings.learns and (changed or drawn or headless))):
        return ""
    include: Any = dict.fromkeys(("backbone", "view", "pretrained", *(("dataset", "noise") if drawn else ())), True)
    include |= {"training": DECIDING} | ({"loss": True, "objective": True} if headless else {})
    return f"{settings.learns} {settings.model_dump_json(include=include)}"


def refusal(settings: EncoderSettings, *, data: bool, weights: bool) -> str:
    """Return why a training cannot begin; "" if it can.

    Args:
        settings: the run's settings.
        data: whether the dataset, if it is prepared, stays unchanged.
        weights: whether the weight file `pretrained` exists; published weights of a backbone are not checked.
    """
    import torch

    from probmetric.models import Encoder
    from probmetric.training.assemble import assemble
    from probmetric.training.checkpoint import Checkpoints
    from probmetric.training.data import TrainingData
    from probmetric.training.loop import Conduct, Trainer

    network: Any = models.REGISTRY.get(settings.backbone.name)
    if settings.pretrained is True:
        weights = network.load_pretrained is Encoder.load_pretrained  # raises the error that there are none
    if not weights or settings.backbone.name == "timm":
        settings = settings.model_copy(update={"pretrained": None})
    try:
        opened = _images(settings) if data and settings.training.sampler in PARTICULAR else None
        images = opened or _blank(settings)
        with torch.random.fork_rng(devices=[]):
            trained_on = TrainingData(images, settings.training, seed=settings.seed, device=torch.device("cpu"))
            encoder, loss, _ = assemble(settings, trained_on.sizes)
            if loss is not None and settings.learns:
                Trainer(encoder, loss, trained_on, Conduct(Checkpoints("state"), ""))
    except (ProbMetricError, ValueError) as error:
        return str(error)
    return ""


def _images(settings: EncoderSettings) -> TrainingImages | None:
    """Return the images that the job would open; None if they are missing or damaged."""
    from probmetric.training.data import training_images, training_view
    from probmetric.training.run import TRAINED_AS

    folder, training = settings.data_folder, settings.training
    try:
        view = training_view(settings, folder)
        return training_images(folder, training, view=view, role=TRAINED_AS[training.selection])
    except FileError:
        return None


def _blank(settings: EncoderSettings) -> TrainingImages:
    """Return blank images in place of the dataset: enough classes, and images of each, for every sampler."""
    from probmetric.data.views import create_view
    from probmetric.training.data import TrainingImages

    view = create_view(settings.view.name, **settings.view.options) if settings.view else create_view("small")
    size, per_class = settings.training.batch_size, settings.training.images_per_class
    images = Blank(np.arange(2 + size // per_class).repeat(per_class + 1), view.side or SIDE)
    return TrainingImages({"train": images, "val": images}, view, digest="")


@dataclass(frozen=True)
class Blank:
    """Black images in place of a dataset: `labels` (N,), `side` of each."""

    labels: np.ndarray
    side: int

    @property
    def index(self) -> np.ndarray:
        """Number of every image (N,)."""
        return np.arange(len(self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, rows: np.ndarray) -> np.ndarray:
        """Return black images (B, S, S, 3)."""
        return np.zeros((len(rows), self.side, self.side, 3), dtype=np.uint8)
