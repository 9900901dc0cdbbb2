"""Losses whose matrices are kept in rows: twenty steps of each, a stop, a continuation, and two runs that go wrong.

Run by several processes at once: prepared folder and output folder as arguments, the meeting point in the environment.
"""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from process_worker import FirstGradients, facts, own_place, train
from torch import Tensor

from probmetric.io import write_tensors, write_text
from probmetric.training.diagnosis import TrainingError
from probmetric.training.processes import Processes, joined

STOPPED_AFTER = 7
BATCH = {"batch_size": 15, "images_per_class": 3}
RUNS: dict[str, dict[str, Any]] = {
    "proxy_anchor": {"optimizer": "sgd", "gradient_clip": 1.0},
    "soft_triple": {
        "options": {"proxies_per_class": 3, "proxy_lr": 0.001},
        "optimizer": "rmsprop",
        "learning_rate": 1e-6,
    },
    "el_nivmf": {"options": {"guidance": "proxy_anchor"}, "optimizer": "adamw"},
    "nir": {"options": {"blocks": 1, "width": 8, "depth": 2}},
    "potential_field": {"options": {"proxies_per_class": 3}},
    "laplace_online": {},
}
"""Three classes: 3 or 9 proxies, never the same number on two processes. RMSprop divides rounding by rounding where a
weight has no gradient, hence the small steps."""


class Watched(FirstGradients):
    """Notes what this process holds of the loss's matrices after the first update."""

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.held: dict[str, Tensor] = {}
        self.used: list[weakref.ref[Tensor]] = []

    def loss_of(self, outputs: Tensor, labels: Tensor, loss: Any = None) -> Tensor:
        self.used = [weakref.ref(parameter) for parameter in self.loss.parameters() if parameter.ndim == 2]
        return super().loss_of(outputs, labels, loss)

    def _step(self, positions: Tensor, images: Tensor, labels: Tensor) -> tuple[bool, bool]:
        asked = super()._step(positions, images, labels)
        if self.progress.step == 0:
            self._look()
        return asked

    def _look(self) -> None:
        self.held["wholes"] = torch.tensor(sum(whole() is not None for whole in self.used))
        for name, parameter in self.loss.named_parameters():
            if parameter.ndim == 2:
                tensors = [parameter, *(value for value in self.optimizer.state[parameter].values() if value.ndim == 2)]
                self.held[name] = torch.tensor([(len(part), part.untyped_storage().nbytes()) for part in tensors])


class Impatient(FirstGradients):
    """Process 1 alone wants a checkpoint, after the fifth step."""

    def is_due(self, steps: int = 0) -> bool:
        return self.data.processes.rank == 1 and self.progress.step + steps == 5


class Poisoned(FirstGradients):
    """In the third step process 1 finds one of its proxies to be NaN."""

    def loss_of(self, outputs: Tensor, labels: Tensor, loss: Any = None) -> Tensor:
        if self.progress.step == 2 and self.data.processes.rank == 1:
            self.loss.proxies.data[-1] = float("nan")
        return super().loss_of(outputs, labels, loss)


class Exploding(FirstGradients):
    """Process 1 always gets an infinite gradient of one of its proxies."""

    def loss_of(self, outputs: Tensor, labels: Tensor, loss: Any = None) -> Tensor:
        if self.data.processes.rank == 1:
            last = torch.arange(len(self.loss.proxies)) == len(self.loss.proxies) - 1
            self.loss.proxies.register_hook(lambda gradient: gradient.masked_fill(last[:, None], float("inf")))
        return super().loss_of(outputs, labels, loss)


def train_sharded(name: str, prepared: Path, folder: Path, processes: Processes, **given: Any) -> Watched:
    """Train with the matrices of loss `name` in rows."""
    options = {"kind": Watched, "shard_proxies": "always"} | BATCH | RUNS[name] | given
    trainer: Watched = train(name, prepared, folder, processes, **options)
    return trainer


def complaint(kind: type[FirstGradients], prepared: Path, folder: Path, processes: Processes) -> str:
    """What a run that goes wrong says."""
    try:
        train_sharded("proxy_anchor", prepared, folder, processes, kind=kind)
    except TrainingError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main(prepared: Path, output: Path) -> None:
    torch.set_num_threads(1)
    with joined(own_place()) as processes:
        for name in RUNS:
            trainer = train_sharded(name, prepared, output / name, processes)
            write_tensors(output / f"{name}.{processes.rank}.safetensors", facts(trainer))
            write_tensors(output / f"held-{name}.{processes.rank}.safetensors", trainer.held)
        resumed = train_sharded("potential_field", prepared, output / "resumed", processes)
        write_tensors(output / f"resumed.{processes.rank}.safetensors", facts(resumed))
        for choice in ("always", "never"):
            place = output / f"stopped-{choice}"
            train_sharded("potential_field", prepared, place, processes, stop_after=STOPPED_AFTER, shard_proxies=choice)
        train_sharded("nir", prepared, output / "impatient", processes, stop_after=STOPPED_AFTER, kind=Impatient)
        for kind in (Poisoned, Exploding):
            said = complaint(kind, prepared, output / kind.__name__, processes)
            write_text(output / f"{kind.__name__}.{processes.rank}.txt", said)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
