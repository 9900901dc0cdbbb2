"""Learning-rate schedules as plain functions of the epoch, so that a resumed run needs no hidden state.

Each gives a factor on the base learning rate of every parameter group:

    constant      1
    cosine        (1 + cos(pi * progress)) / 2, progress in [0, 1) over all epochs, updated every step
    multistep     gamma^(number of milestones passed); milestones are epochs (papers 000, 001)
    exponential   gamma^epoch (paper 003: gamma = exp(-0.01))
    plateau       gamma^(number of plateaus), a plateau being `plateau_patience` validations in a row without a
                  better metric (paper 002: gamma 0.5, 15 validations)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probmetric.config import Training


def count_plateaus(metrics: list[float], patience: int) -> int:
    """Return how often `patience` further validations in a row have passed without a better metric.

    Args:
        metrics: the validation metric of every validation so far, in order.
        patience: length of a plateau.
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
