"""Conditional normalising flow of coupling blocks (Roth et al. 2022, NIR eq. 7; Kingma and Dhariwal 2018).

Every block permutes the coordinates and splits them into x1 and x2. With r the condition (the proxy), it computes

    [s, t] = net2(x2, r),   y1 = x1 * exp(g(s)) + t
    [s, t] = net1(y1, r),   y2 = x2 * exp(g(s)) + t,        g(s) = 0.636 clamp atan(s)

The log-determinant of dy/dx is the sum of both g(s). The soft clamp g comes from the paper's code, not from its text:
|g| < clamp, so no block scales by more than e^clamp.

Permutations are fixed buffers, drawn from a local generator; the released code reseeds numpy's global generator for
each. As in the release, the last layer of a sub-network is not zeroed, so the flow does not start as the identity.
"""

from __future__ import annotations

import itertools
from typing import Literal

import torch
from torch import Tensor, nn

SOFT_CLAMP, CLAMP = 0.636, 2.0
Condition = Literal["dense", "start", "mid", "end"]


class CouplingBlock(nn.Module):
    """One permutation and two affine couplings of vectors (M,); they read a condition (M,) if `sees_condition`."""

    order: Tensor
    inverse_order: Tensor

    def __init__(self, dim: int, *, sees_condition: bool, width: int, depth: int, seed: int) -> None:
        super().__init__()
        self.first, self.sees_condition = round(dim / 2), sees_condition
        second, condition_dim = dim - self.first, dim if sees_condition else 0
        self.net1 = _network(self.first + condition_dim, 2 * second, width, depth)
        self.net2 = _network(second + condition_dim, 2 * self.first, width, depth)
        order = torch.randperm(dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("order", order)
        self.register_buffer("inverse_order", order.argsort())

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, M) to y (B, M) and log|det dy/dx| (B,)."""
        x1, x2 = x[:, self.order].tensor_split([self.first], dim=1)
        scale1, shift1 = self._affine(self.net2, x2, condition)
        y1 = x1 * scale1.exp() + shift1
        scale2, shift2 = self._affine(self.net1, y1, condition)
        y2 = x2 * scale2.exp() + shift2
        return torch.cat([y1, y2], dim=1), scale1.sum(dim=1) + scale2.sum(dim=1)

    def inverse(self, y: Tensor, condition: Tensor) -> Tensor:
        """Map y (B, M) back to x (B, M)."""
        y1, y2 = y.tensor_split([self.first], dim=1)
        scale2, shift2 = self._affine(self.net1, y1, condition)
        x2 = (y2 - shift2) * (-scale2).exp()
        scale1, shift1 = self._affine(self.net2, x2, condition)
        x1 = (y1 - shift1) * (-scale1).exp()
        return torch.cat([x1, x2], dim=1)[:, self.inverse_order]

    def _affine(self, network: nn.Module, passive: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([passive, condition], dim=1) if self.sees_condition else passive
        scale, shift = network(inputs).chunk(2, dim=1)
        return SOFT_CLAMP * CLAMP * scale.atan(), shift


class ConditionalFlow(nn.Module):
    """`blocks` coupling blocks; `condition` says which of them see the condition (`dense`: all)."""

    def __init__(self, dim: int, *, blocks: int, width: int, depth: int, condition: Condition = "dense") -> None:
        super().__init__()
        seen = {"dense": range(blocks), "start": [0], "mid": [blocks // 2], "end": [blocks - 1]}[condition]
        self.blocks = nn.ModuleList(
            CouplingBlock(dim, sees_condition=index in seen, width=width, depth=depth, seed=index)
            for index in range(blocks)
        )

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return residuals (B, M) of x (B, M) given `condition` (B, M), and log|det| of the map (B,)."""
        total = x.new_zeros(len(x))
        for block in self.blocks:
            x, log_det = block(x, condition)
            total = total + log_det
        return x, total

    def inverse(self, residual: Tensor, condition: Tensor) -> Tensor:
        """Return the x (B, M) that `forward` maps to `residual` (B, M)."""
        for block in reversed(list(self.blocks)):
            residual = block.inverse(residual, condition)  # type: ignore[operator]
        return residual


def _network(inputs: int, outputs: int, width: int, depth: int) -> nn.Sequential:
    """Return `depth` linear layers of `width` hidden units with ReLU between them."""
    sizes = [inputs, *[width] * (depth - 1), outputs]
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
