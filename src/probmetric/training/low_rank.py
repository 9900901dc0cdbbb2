"""Low-rank adaptation (LoRA; Hu et al., ICLR 2022, section 4.1): a linear layer uses W + BA; W is fixed, B and A train.

A (R, columns) starts from Kaiming's uniform distribution, B (rows, R) from zero, so the first step starts from the
unchanged network. The scale of BA is 1 (the paper's alpha equals the rank). A trained model holds W + BA, not A and B.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from probmetric.config import ConfigError
from probmetric.models import Encoder


class LowRank(nn.Module):
    """Add a trained matrix of low rank to a weight."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        """Draw the first values.

        Args:
            weight: the weight (rows, columns) to change.
            rank: R.
            generator: draws the values, on the CPU.
        """
        super().__init__()
        rows, columns = weight.shape
        right = nn.init.kaiming_uniform_(torch.empty(rank, columns), a=math.sqrt(5), generator=generator)
        self.right = nn.Parameter(right.to(weight))
        self.left = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return W + BA, (rows, columns) -> (rows, columns)."""
        return torch.addmm(weight, self.left, self.right)


def add_low_rank(encoder: Encoder, rank: int, generator: torch.Generator) -> None:
    """Freeze the trunk and add a trained change of low rank to each of its linear layers; the head trains as before.

    Args:
        encoder: the encoder to change.
        rank: rank of the changes.
        generator: draws the changes' first values, on the CPU.

    Raises:
        ConfigError: the trunk has no linear layer.
    """
    layers = [
        module
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Linear) and name != "head" and not parametrize.is_parametrized(module)
    ]
    if not layers:
        raise ConfigError(
            "training.lora changes the linear layers of a transformer; this backbone has none before its head. Remove "
            "`lora`, or give `train_from` the part of the trunk that shall train."
        )
    encoder.freeze_trunk()
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank, generator))
    encoder.hold_still()


def merged(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of `module` by name, with W + BA in place of W, A and B."""
    state = module.state_dict()
    for name, layer in _changed(module):
        for key in [key for key in state if key.startswith(f"{name}.parametrizations.")]:
            del state[key]
        state[f"{name}.weight"] = layer.weight
    return state


def merge(encoder: Encoder) -> None:
    """Write W + BA into each layer, which becomes a plain linear layer again."""
    for _, layer in _changed(encoder):
        parametrize.remove_parametrizations(layer, "weight")


def _changed(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Return the layers with a change of low rank, by name."""
    changes = [name for name, part in module.named_modules() if isinstance(part, LowRank)]
    layers = [name.partition(".parametrizations.")[0] for name in changes]
    return [(name, cast("nn.Linear", module.get_submodule(name))) for name in layers]
