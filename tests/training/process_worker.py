"""Twenty steps of a smooth net, alone or as one of several processes; what it computed goes into one file.

A net without kinks, because a ReLU whose input is zero up to rounding may open in one computation and not in another.
As a program: RANK, WORLD_SIZE and the meeting point in the environment, prepared folder and output folder as arguments.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probmetric.config import Training
from probmetric.io import read_tensors, write_tensors
from probmetric.launch import Place
from probmetric.losses import create_loss
from probmetric.models._base import Encoder
from probmetric.training.assemble import weights_of
from probmetric.training.batch_norm import synchronise_batch_norm
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.loop import Conduct, Trainer, TrainingStoppedError
from probmetric.training.processes import ALONE, Processes, joined
from probmetric.uncertainty import create_uncertainty

LOSSES = ("proxy_anchor", "contrastive", "vmf", "potential_field", "laplace_online")
CPU = torch.device("cpu")
SETTINGS = Training(
    epochs=2, steps_per_epoch=10, batch_size=21, images_per_class=3, learning_rate=1e-4, schedule="constant"
)


class Smooth(Encoder):
    """Two convolutions with batch normalisation and tanh; the first one's weights stand for pretrained ones."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        first = [nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.Tanh()]
        second = [nn.Conv2d(4, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten()]
        self.layers = nn.Sequential(*first, *second, nn.BatchNorm1d(6 * 49))
        self._attach_head(6 * 49, dim)
        self._loaded_names = frozenset({"layers.0.weight"})

    def features(self, images: Tensor) -> Tensor:
        return self.layers(images)


class FirstGradients(Trainer):
    """Keeps the gradients of the first step, and finds their norm to be that of all of them together."""

    gradients: dict[str, Tensor] = {}  # noqa: RUF012

    def _scalars(self, *values: Tensor | bool) -> Tensor:
        made = super()._scalars(*values)
        if self.progress.step == 0:
            parts = {"encoder": self.encoder, "loss": self.loss}
            named = {f"{part}.{name}": p for part, module in parts.items() for name, p in module.named_parameters()}
            self.gradients = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
            everything = torch.cat([gradient.flatten() for gradient in self.gradients.values()])
            torch.testing.assert_close(made[1], everything.norm(), rtol=1e-5, atol=0)
        return made


def train(
    name: str,
    prepared: Path,
    folder: Path,
    processes: Processes = ALONE,
    stop_after: int | None = None,
    **changes: Any,
) -> FirstGradients:
    """Train with loss `name`; `stop_after` so many steps asks for a stop, which leaves a checkpoint.

    `changes` are those of the training settings.
    """
    settings = SETTINGS.model_copy(update=changes)
    data = TrainingData(training_images(prepared, settings), settings, seed=0, device=CPU, processes=processes)
    torch.manual_seed(0)
    encoder = Smooth(8)
    chosen = "contrastive" if name == "laplace_online" else name
    loss = create_loss(chosen, num_classes=data.num_classes, dim=8)
    if name == "laplace_online":
        shaping = create_uncertainty(name, initial_curvature=1.0, scale=1.0)
        loss = shaping.objective(encoder, loss, num_images=len(data.labels))
    if processes.several:
        synchronise_batch_norm(encoder, CPU)
    steps = itertools.count(1)
    conduct = Conduct(
        Checkpoints(folder / "state"), name, progress_bar=False, should_stop=lambda: next(steps) == stop_after
    )
    trainer = FirstGradients(encoder, loss, data, conduct)
    with contextlib.suppress(TrainingStoppedError):
        trainer.fit()
    return trainer


def facts(trainer: FirstGradients) -> dict[str, Tensor]:
    """Gradients of the first step, weights after the last, and the mean loss and validation metric of each epoch."""
    weights = weights_of(trainer.encoder, trainer.loss)
    found = {f"gradient/{name}": value for name, value in trainer.gradients.items()}
    found |= {f"weight/{name}": value.float() for name, value in weights.items()}
    for column in ("train_loss", "val_metric"):
        found[f"history/{column}"] = torch.tensor([row[column] for row in trainer.progress.history])
    return found


def result(folder: Path, name: str, rank: int) -> dict[str, Tensor]:
    """What process `rank` wrote about `name`."""
    return read_tensors(folder / f"{name}.{rank}.safetensors", framework="torch")[0]


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """To 1e-5 of the steepest gradient for gradients, of the largest entry or of 1 for the rest; weights to 1e-4.

    Adam divides a gradient by its own size: where that is next to nothing, its rounding moves the weight visibly.
    """
    steepest = max(
        (float(value.abs().max()) for key, value in expected.items() if key.startswith("gradient/")), default=1
    )
    for key, value in expected.items():
        scale = steepest if key.startswith("gradient/") else max(1.0, float(value.abs().max()))
        close = (1e-4 if key.startswith("weight/") else 1e-5) * scale
        torch.testing.assert_close(found[key], value, rtol=0, atol=close, msg=lambda m, k=key: f"{k}: {m}")


def own_place() -> Place:
    """This program's, as its environment says."""
    return Place(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def main(prepared: Path, output: Path) -> None:
    torch.set_num_threads(1)
    with joined(own_place()) as processes:
        resumed = train("contrastive", prepared, output / "resumed", processes)
        write_tensors(output / f"resumed.{processes.rank}.safetensors", facts(resumed))
        for name in LOSSES:
            trainer = train(name, prepared, output / name, processes, warmup_epochs=int(name == "vmf"))
            write_tensors(output / f"{name}.{processes.rank}.safetensors", facts(trainer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
