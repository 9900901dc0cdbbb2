"""Optimisers: one parameter group per learning rate and weight decay, encoder and loss together.

`weight_decay_on: matrices` decays only weights of two and more dimensions (paper 002: not biases, norms and scales).

Learning-rate schedules are plain functions of the epoch, so a resumed run needs no hidden state. Each schedule gives a
factor on the base learning rate of every parameter group:

    constant      1
    cosine        (1 + cos(pi * progress)) / 2, progress in [0, 1) over all epochs, updated every step
    multistep     gamma^(number of milestones passed); milestones are epochs (papers 000, 001)
    exponential   gamma^epoch (paper 003: gamma = exp(-0.01))
    plateau       gamma^(number of plateaus); a plateau is more than `plateau_patience` validations in a row
                  without a better metric, as in PyTorch (paper 002: gamma 0.5, 15 validations)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probmetric.config import ConfigError
from probmetric.lazy import uncompiled

if TYPE_CHECKING:
    from probmetric.config import Training
    from probmetric.losses import Loss
    from probmetric.models import Encoder


def create_optimizer(settings: Training, encoder: Encoder, loss: Loss) -> torch.optim.Optimizer:
    """Create the optimiser over the encoder's groups (base rate, weight decay) and the loss's (own rates, no decay).

    A group may have `lr` (absolute), `lr_multiplier` (on the base rate), `weight_decay`, and further options of the
    optimiser (paper 002: momentum 0 for the temperature); options that the optimiser lacks are left out. Every group
    keeps its unscheduled rate as `base_lr`.

    Raises:
        ConfigError: no parameter trains, or the network declares no layers for `layer_decay`.
    """
    options, groups = _options(settings), []
    factors = _rate_factors(settings, encoder)
    encoder_groups = [{"weight_decay": settings.weight_decay, **group} for group in encoder.optimizer_groups()]
    encoder_groups = [part for group in encoder_groups for part in _by_factor(group, factors)]
    if settings.weight_decay_on == "matrices":
        encoder_groups = [part for group in encoder_groups for part in _by_dimensions(group)]
    for group in itertools.chain(encoder_groups, loss.optimizer_groups()):
        base = group.get("lr", settings.learning_rate * group.get("lr_multiplier", 1.0))
        accepted = {key: value for key, value in group.items() if key in options}
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        groups.append({"weight_decay": 0.0, **accepted, "params": parameters, "lr": base, "base_lr": base})
    if not any(group["params"] for group in groups):
        raise ConfigError(
            "neither the encoder nor the loss has parameters that train (requires_grad): set epochs to 0, unfreeze a "
            "layer, add a head (dim), or choose a loss with proxies."
        )
    return _CLASSES[settings.optimizer](groups, **options)


def _rate_factors(settings: Training, encoder: Encoder) -> dict[int, float]:
    """Return the factor on the base learning rate of every encoder parameter, by the parameter's id."""
    rates, head = settings.learning_rates, encoder.head
    last = {id(parameter) for parameter in (head.parameters() if head is not None else ())}
    trunk = [id(parameter) for parameter in encoder.parameters() if id(parameter) not in last]
    factors = dict.fromkeys(last, (rates.head or settings.learning_rate) / settings.learning_rate)
    factors |= dict.fromkeys(trunk, (rates.trunk or settings.learning_rate) / settings.learning_rate)
    trains = any(p.requires_grad and id(p) not in last for p in encoder.layered.parameters())
    if settings.layer_decay is not None and trains:
        from timm.optim import param_groups_layer_decay

        layers = param_groups_layer_decay(encoder.layered, layer_decay=settings.layer_decay)
        if settings.layer_decay < 1 and all(layer["lr_scale"] == 1 for layer in layers):
            raise ConfigError(
                "training.layer_decay changes nothing: the network does not say which its layers are, as those of the "
                "backbone timm do. Leave it out, or set learning_rates.trunk."
            )
        for layer in layers:
            factors |= {id(p): factors[id(p)] * layer["lr_scale"] for p in layer["params"] if id(p) not in last}
    return factors


def _by_factor(group: dict[str, Any], factors: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return the group, split by the factors (parameter's id -> factor) on its learning rate."""
    parts: dict[float, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(factors[id(parameter)], []).append(parameter)
    rate = group.get("lr_multiplier", 1.0)
    return [group | {"params": part, "lr_multiplier": rate * factor} for factor, part in parts.items()]


def _by_dimensions(group: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the group in two parts: weights of two and more dimensions, and the others without weight decay."""
    parameters = list(group["params"])
    parts = [
        group | {"params": [p for p in parameters if p.ndim > 1]},
        group | {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [part for part in parts if part["params"]]


_CLASSES: dict[str, Any] = {
    "adam": uncompiled(torch.optim.Adam),
    "adamw": uncompiled(torch.optim.AdamW),
    "sgd": uncompiled(torch.optim.SGD),
    "rmsprop": uncompiled(torch.optim.RMSprop),
}


def _options(settings: Training) -> dict[str, Any]:
    """Return the constructor options, with one fused kernel per step if the optimiser has one."""
    options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "rmsprop":
        return options | {"momentum": settings.momentum}
    if settings.optimizer == "sgd":
        return options | {"momentum": settings.momentum, "nesterov": settings.nesterov, "fused": True}
    return options | {"fused": True}


def count_plateaus(metrics: list[float], patience: int) -> int:
    """Return how often more than `patience` validations in a row have passed without a better metric.

    Args:
        metrics: the validation metric of every validation so far, in order.
        patience: number of validations without a better metric that are no plateau yet.
    """
    best, waited, plateaus = -math.inf, 0, 0
    for metric in metrics:
        waited = 0 if metric > best else waited + 1
        best = max(best, metric)
        if waited > patience:
            plateaus, waited = plateaus + 1, 0
    return plateaus


def learning_rate_factor(settings: Training, epoch: int, fraction: float, metrics: list[float]) -> float:
    """Return the factor on the base learning rates.

    Args:
        settings: schedule, milestones, gamma, epochs.
        epoch: current epoch, from 0.
        fraction: share of the epoch's steps already taken, in [0, 1).
        metrics: validation metrics so far.
    """
    if settings.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * (epoch + fraction) / settings.epochs))
    if settings.schedule == "multistep":
        return settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones)
    if settings.schedule == "exponential":
        return settings.gamma**epoch
    if settings.schedule == "plateau":
        return settings.gamma ** count_plateaus(metrics, settings.plateau_patience)
    return 1.0


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's rate to `factor` times its base rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the norm, a scalar tensor, of the gradients of `parameters`; not finite if any gradient is not."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
