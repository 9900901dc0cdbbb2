"""Learning-rate factors against PyTorch's schedulers, which are written independently."""

from __future__ import annotations

import math

import pytest
import torch

from probmetric.config import Training
from probmetric.training.optimizer import learning_rate_factor
from probmetric.training.seeds import derive_seed, seed_layers


def factors(settings: Training) -> list[float]:
    return [learning_rate_factor(settings, epoch, 0.0, []) for epoch in range(settings.epochs)]


def torch_rates(create: object, epochs: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = create(optimizer)  # type: ignore[operator]
    rates = []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("settings", "create"),
    [
        (Training(epochs=9, schedule="constant"), lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
        (Training(epochs=9, schedule="cosine"), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9)),
        (
            Training(epochs=9, schedule="multistep", milestones=(2, 5), gamma=0.3),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.3),
        ),
        (
            Training(epochs=9, schedule="exponential", gamma=math.exp(-0.01)),
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, math.exp(-0.01)),
        ),
    ],
)
def test_schedules_match_pytorch(settings: Training, create: object) -> None:
    assert factors(settings) == pytest.approx(torch_rates(create, settings.epochs), abs=1e-12)


def test_plateau_matches_pytorch() -> None:
    settings = Training(epochs=200, schedule="plateau", gamma=0.5, plateau_patience=7)
    rng = torch.Generator().manual_seed(0)
    metrics = torch.rand(120, generator=rng).tolist()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=7, threshold=0.0)
    for count in range(1, len(metrics) + 1):
        scheduler.step(metrics[count - 1])
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate_factor(settings, count, 0.0, metrics[:count]) == pytest.approx(expected)
    assert expected < 0.1


def test_cosine_moves_within_an_epoch() -> None:
    settings = Training(epochs=4, schedule="cosine")
    assert learning_rate_factor(settings, 1, 0.5, []) == pytest.approx(0.5 * (1 + math.cos(math.pi * 1.5 / 4)))


def test_layers_draw_what_the_step_says_and_nothing_is_piled_up() -> None:
    """As after `torch.manual_seed`, which notes a call for every accelerator that is not in use, at every step anew."""
    seed_layers(torch.device("cpu"), 3, 7)
    found = torch.rand(4)
    torch.manual_seed(derive_seed(3, "layers", 7))
    assert torch.equal(found, torch.rand(4))
    before = len(torch.cuda._queued_calls)
    for step in range(5):
        seed_layers(torch.device("cpu"), 3, step)
    assert len(torch.cuda._queued_calls) == before
