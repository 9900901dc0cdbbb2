"""One optimiser step: gradients are clipped where that is asked for, and a loss that is not finite never passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import quick_settings

from probmetric.losses._base import Loss
from probmetric.models import create_encoder
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.diagnosis import NonFiniteLossError
from probmetric.training.loop import Conduct, Trainer

CPU = torch.device("cpu")


class Steep(Loss):
    """A large gradient of embeddings and of a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(num_classes=10, dim=4)
        self.bias = torch.nn.Parameter(torch.ones(4))

    def compute(self, embeddings: torch.Tensor, labels: torch.Tensor, generator: object) -> torch.Tensor:
        return 1e3 * (embeddings + self.bias).square().mean()


class Unnoticed(Steep):
    """Infinite, with finite gradients: only its value can tell."""

    def compute(self, embeddings: torch.Tensor, labels: torch.Tensor, generator: object) -> torch.Tensor:
        return embeddings.mean() + self.bias.sum() + math.inf


def trainer(digits: Path, folder: Path, loss: Loss, **changes: object) -> Trainer:
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "learning_rate": 0.5}
    settings = quick_settings(**{"epochs": 1, "steps_per_epoch": 1, **plain, **changes}).training
    torch.manual_seed(0)
    encoder = create_encoder("compact", dim=4, in_channels=1, width=4)
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU)
    return Trainer(encoder, loss, data, Conduct(Checkpoints(folder), "x"))


def step_length(digits: Path, folder: Path, clip: float | None) -> float:
    """Length of one step of plain gradient descent, over all parameters, per learning rate."""
    made = trainer(digits, folder, Steep(), gradient_clip=clip)
    parameters = [*made.encoder.parameters(), *made.loss.parameters()]
    before = [parameter.detach().clone() for parameter in parameters]
    made.fit()
    moved = [(parameter.detach() - old).norm() for parameter, old in zip(parameters, before, strict=True)]
    return float(torch.stack(moved).norm()) / 0.5


def test_a_clipped_step_has_the_length_asked_for(digits: Path, tmp_path: Path) -> None:
    free = step_length(digits, tmp_path / "free", None)
    assert free > 10
    assert step_length(digits, tmp_path / "clipped", 0.25) == pytest.approx(0.25, rel=1e-3)
    assert step_length(digits, tmp_path / "wide", 2 * free) == pytest.approx(free, rel=1e-3)


def test_a_batch_that_the_images_cannot_fill_is_said_once(digits: Path, tmp_path: Path, caplog: Any) -> None:
    """Of ten classes, four images each make 40."""
    done = trainer(digits, tmp_path / "large", Steep(), batch_size=400, epochs=2, learning_rate=1e-6).fit()
    for row, steps in zip(done.history, (done.history[0]["step"], done.step - done.history[0]["step"]), strict=True):
        assert row["images_per_second"] * row["seconds"] == pytest.approx(40 * steps)
    (warning,) = [record.message for record in caplog.records]
    assert warning.startswith("training.batch_size 400 is cut to 40: a batch has every training class or image then")
    caplog.clear()
    trainer(digits, tmp_path / "fits", Steep(), batch_size=40, learning_rate=1e-6).fit()
    assert not caplog.records


def test_an_infinite_loss_with_finite_gradients_is_noticed(digits: Path, tmp_path: Path) -> None:
    made = trainer(digits, tmp_path, Unnoticed())
    before = {name: tensor.clone() for name, tensor in made.encoder.state_dict().items() if "running" not in name}
    with pytest.raises(NonFiniteLossError, match=r"the loss is inf at epoch 0, step 0.*overflows by itself"):
        made.fit()
    after = made.encoder.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if tensor.is_floating_point())
