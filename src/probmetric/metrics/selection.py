"""Whether a validation metric could choose between epochs at all."""

from __future__ import annotations

from collections.abc import Sequence

CEILING = 1.0 - 1e-9
EARLY = 0.2


def selection_warning(values: Sequence[float | None], selected: int) -> str:
    """Say why the choice of an epoch says little; empty where nothing speaks against it.

    A metric that has reached its largest possible value tells later epochs no longer apart; weights of the first fifth
    of training are those of a network that has hardly been trained, chosen by luck or by a metric that does not see
    what later epochs gain.

    Args:
        values: validation metric of every epoch planned, None where it was not measured; at most 1.
        selected: epoch whose weights were kept, from 0.

    Examples:
        >>> selection_warning([0.9, 1.0, 1.0, 1.0, 1.0], 4)
        'the validation metric is saturated: 1 since epoch 2 of 5'
        >>> selection_warning([0.6, 0.9, 0.8, 0.8, 0.8, 0.7, 0.7, 0.7, 0.7, 0.7], 1)
        'the weights are of epoch 2 of 10, the first fifth of training'
        >>> selection_warning([0.6, 0.7, 0.8], 2)
        ''
    """
    reached = [epoch for epoch, value in enumerate(values) if value is not None and value >= CEILING]
    if reached:
        return f"the validation metric is saturated: 1 since epoch {reached[0] + 1} of {len(values)}"
    if len(values) * EARLY >= 1 and selected + 1 <= EARLY * len(values):
        return f"the weights are of epoch {selected + 1} of {len(values)}, the first fifth of training"
    return ""
