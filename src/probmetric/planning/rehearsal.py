"""What a training would refuse before its first step, found before any job: the job's own first lines are run.

Data, network, loss, optimiser and trainer are made as the job makes them, on the CPU. Where the sampler takes any data,
or they are not prepared yet, images that fit every sampler stand in for them, and only the network is judged.
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

SIDE = 32  # of the images that stand in, where no view says
PARTICULAR = ("episodic", "pairs")  # samplers for which images may be too few
# What decides, besides backbone, view, weights and (for these samplers) data, whether a training can begin.
DECIDING = {
    *("sampler", "batch_size", "images_per_class", "selection", "selection_metric", "augment"),
    *("batch_norm", "freeze", "train_from", "lora", "layer_decay", "gradient_cache"),
}


def kind_of(settings: EncoderSettings) -> str:
    """Return what trainings that can begin, or cannot, alike have in common; "" where planning knows that it can."""
    training, backbone = settings.training, settings.backbone
    learns = settings.loss is not None and training.epochs > 0
    headless = not models.REGISTRY.holds(backbone.name, "has_head", backbone.options)
    weights = settings.pretrained and backbone.name != "timm"  # of timm's networks `models._weights` says it faster
    changed = training.lora or training.layer_decay is not None or training.gradient_cache
    drawn = training.sampler in PARTICULAR
    if not (weights or training.train_from or (learns and (changed or drawn or headless))):
        return ""
    include: Any = dict.fromkeys(("backbone", "view", "pretrained", *(("dataset", "noise") if drawn else ())), True)
    include |= {"training": DECIDING} | ({"loss": True, "objective": True} if headless else {})
    return f"{learns} {settings.model_dump_json(include=include)}"


def refusal(settings: EncoderSettings, *, data: bool, weights: bool) -> str:
    """Return why a training cannot begin; "" where it can.

    Args:
        settings: the run's settings.
        data: whether the dataset, where it is prepared, stays as it is.
        weights: whether the weight file `pretrained` is there; weights that a backbone publishes are not asked for.
    """
    import torch

    from probmetric.models import Encoder
    from probmetric.training.assemble import assemble
    from probmetric.training.checkpoint import Checkpoints
    from probmetric.training.data import TrainingData
    from probmetric.training.loop import Conduct, Trainer

    network: Any = models.REGISTRY.get(settings.backbone.name)
    if settings.pretrained is True:
        weights = network.load_pretrained is Encoder.load_pretrained  # which says that there are none
    if not weights or settings.backbone.name == "timm":
        settings = settings.model_copy(update={"pretrained": None})
    try:
        opened = _images(settings) if data and settings.training.sampler in PARTICULAR else None
        images = opened or _blank(settings)
        with torch.random.fork_rng(devices=[]):
            trained_on = TrainingData(images, settings.training, seed=settings.seed, device=torch.device("cpu"))
            encoder, loss, _ = assemble(settings, trained_on.sizes)
            if loss is not None and settings.training.epochs > 0:
                Trainer(encoder, loss, trained_on, Conduct(Checkpoints("state"), ""))
    except (ProbMetricError, ValueError) as error:
        return str(error)
    return ""


def _images(settings: EncoderSettings) -> TrainingImages | None:
    """Return what the job would open; None where it is not there, or damaged."""
    from probmetric.training.data import training_images, training_view
    from probmetric.training.run import TRAINED_AS

    folder, training = settings.data_folder, settings.training
    try:
        view = training_view(settings, folder)
        return training_images(folder, training, view=view, role=TRAINED_AS[training.selection])
    except FileError:
        return None


def _blank(settings: EncoderSettings) -> TrainingImages:
    """Return images that stand in for the dataset: enough classes, and images of each, for every sampler."""
    from probmetric.data.views import create_view
    from probmetric.training.data import TrainingImages

    view = create_view(settings.view.name, **settings.view.options) if settings.view else create_view("small")
    size, per_class = settings.training.batch_size, settings.training.images_per_class
    images = Blank(np.arange(2 + size // per_class).repeat(per_class + 1), view.side or SIDE)
    return TrainingImages({"train": images, "val": images}, view, digest="")


@dataclass(frozen=True)
class Blank:
    """Black images that stand in for a dataset: `labels` (N,), `side` of each."""

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
