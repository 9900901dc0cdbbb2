"""Parameter groups, their rates and decay, and the norm of all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from probmetric.config import Training
from probmetric.losses import create_loss
from probmetric.losses._base import Loss
from probmetric.models import create_encoder
from probmetric.training.optimizer import _CLASSES, create_optimizer, gradient_norm, set_learning_rates


class TwoRates(Loss):
    """A loss with a proxy at 100 times the base rate and a temperature at an absolute one, without momentum."""

    def __init__(self) -> None:
        super().__init__(num_classes=2, dim=4)
        self.proxies, self.temperature = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(()))

    def optimizer_groups(self) -> list[dict[str, object]]:
        return [
            {"params": [self.proxies], "lr_multiplier": 100.0},
            {"params": [self.temperature], "lr": 0.5, "weight_decay": 0.25, "momentum": 0.0, "nesterov": False},
        ]


def test_groups_have_their_own_rates_and_decay() -> None:
    encoder = create_encoder("compact", dim=4, in_channels=1, width=4)
    settings = Training(optimizer="sgd", learning_rate=1e-2, weight_decay=1e-3, momentum=0.9, nesterov=True)
    optimizer = create_optimizer(settings, encoder, TwoRates())
    found = [(g["lr"], g["weight_decay"], g["momentum"], g["nesterov"]) for g in optimizer.param_groups]
    assert found == [(1e-2, 1e-3, 0.9, True), (1.0, 0.0, 0.9, True), (0.5, 0.25, 0.0, False)]
    set_learning_rates(optimizer, 0.1)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([1e-3, 0.1, 0.05])
    trained = sum(p.numel() for g in optimizer.param_groups for p in g["params"])
    assert trained == sum(p.numel() for p in encoder.parameters()) + 9


def test_gradient_norm_is_the_norm_of_everything() -> None:
    encoder, loss = create_encoder("lam_cifar", dim=4, in_channels=1), TwoRates()
    (encoder(torch.randn(2, 1, 32, 32)).sum() * loss.proxies.sum()).backward()
    gradients = [p.grad.double().flatten() for m in (encoder, loss) for p in m.parameters() if p.grad is not None]
    parameters = [*encoder.parameters(), *loss.parameters()]
    assert float(gradient_norm(parameters)) == pytest.approx(float(torch.cat(gradients).norm()), rel=1e-5)
    loss.proxies.grad[0, 0] = float("nan")
    assert not torch.isfinite(gradient_norm(parameters))


def test_nothing_to_train_is_an_error() -> None:
    encoder = create_encoder("pixels", dim=4, in_channels=1)
    loss = create_loss("contrastive", num_classes=3, dim=encoder.dim)
    with pytest.raises(ValueError, match="set epochs to 0"):
        create_optimizer(Training(), encoder, loss)


def test_decay_on_matrices_leaves_biases_norms_and_scales_alone() -> None:
    """Every weight keeps its rate; the loss's own decay is not touched."""
    encoder, loss = create_encoder("compact", dim=4, in_channels=1, width=4, pool="gem"), TwoRates()
    settings = Training(learning_rate=1e-2, weight_decay=1e-3, weight_decay_on="matrices", optimizer="sgd")
    optimizer = create_optimizer(settings, encoder, loss)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    named = dict(encoder.named_parameters())
    decayed = {name for name, p in named.items() if decay[id(p)] > 0}
    assert decayed == {"layers.0.weight", "layers.4.weight", "layers.8.weight", "head.weight"}
    assert {decay[id(named[name])] for name in decayed} == {1e-3}
    assert decay[id(loss.temperature)] == 0.25
    assert len(decay) == len(named) + 2
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2, 1.0, 0.5}


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop"])
def test_every_step_is_that_of_pytorchs_own_class(name: str) -> None:
    def trained(kind: type[torch.optim.Optimizer]) -> tuple[torch.Tensor, dict[str, Any]]:
        weight = nn.Parameter(torch.linspace(-1, 1, 6))
        optimizer = kind([weight], lr=0.1, weight_decay=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            (weight**3).sum().backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        return weight.detach(), optimizer.state_dict()

    ours = _CLASSES[name]
    theirs = ours.__mro__[1]
    torch.testing.assert_close(trained(ours), trained(theirs), rtol=0, atol=0)
