"""Large matrices of a loss, such as proxies (K C, M), of which each process keeps only its own rows.

Between steps process r of W holds the r-th of W blocks of rows as a parameter, with the optimiser's moments of it. For
the loss the matrix is put together; every process evaluates the loss of the whole batch (`processes.py`), so
afterwards it has its own rows' gradient already and nothing is sent back. The loss meets an ordinary parameter and
knows of none of this; with one process, or without a large matrix, everything here is the identity.

Not PyTorch's `fully_shard`: it refuses scalar parameters (temperatures), lacks the fused SGD, does not clip plain and
sharded gradients together, and whole matrices would be seen by `forward` only, not by warm start or validation.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from probmetric.training.processes import Processes

SMALLEST = {"always": 1, "auto": 1 << 24, "never": sys.maxsize}
"""Entries from which on a matrix is sharded, by `training.shard_proxies`."""


@dataclass(frozen=True)
class _Matrix:
    rows: nn.Parameter  # (n, M), this process's
    length: int
    places: list[tuple[nn.Module, str]]

    def put(self, parameter: nn.Parameter) -> None:
        """Let the loss see `parameter`."""
        for module, name in self.places:
            setattr(module, name, parameter)


class Shards:
    """The sharded matrices of `loss`: its parameters of two dimensions with at least `smallest` entries."""

    def __init__(self, loss: nn.Module, processes: Processes, smallest: int) -> None:
        self.processes = processes
        self._whole = False
        self._matrices = [
            _Matrix(nn.Parameter(self._own(p.detach()), p.requires_grad), len(p), _places(loss, p))
            for p in loss.parameters()
            if processes.several and p.ndim == 2 and p.numel() >= smallest
        ]
        self._put([matrix.rows for matrix in self._matrices])

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return any(parameter is matrix.rows for matrix in self._matrices)

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """The loss with whole matrices, and gradients if there are any, for the block.

        All processes enter together. At the end each keeps its own rows of values and gradients.
        """
        if self._whole or not self._matrices:
            yield
            return
        wholes = [self._gathered(matrix) for matrix in self._matrices]
        self._put(wholes)
        self._whole = True
        try:
            yield
        finally:
            for matrix, whole in zip(self._matrices, wholes, strict=True):
                matrix.rows.data.copy_(self.processes.own_block(whole.data))
                matrix.rows.grad = None if whole.grad is None else self._own(whole.grad)
            self._put([matrix.rows for matrix in self._matrices])
            self._whole = False

    def dissolve(self) -> None:
        """Give the loss its whole matrices back for good; all processes call this together."""
        self._put([self._gathered(matrix) for matrix in self._matrices])
        self._matrices = []

    def norm(self, others: Tensor) -> Tensor:
        """Norm of all gradients, a scalar tensor, every row counted once; `others` is that of the unsharded ones."""
        if not self._matrices:
            return others
        gradients = [matrix.rows.grad for matrix in self._matrices if matrix.rows.grad is not None]
        square = torch.nn.utils.get_total_norm(gradients).double().square()
        return torch.hypot(others.to(square), self.processes.added(square).sqrt())

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """State of `optimizer` as a single process has it; in the first process, which alone has to store it.

        All processes call this together.
        """

        def gathered(moment: Tensor, matrix: _Matrix) -> Tensor:
            whole = self.processes.assembled(moment, matrix.length)
            return whole.cpu() if self.processes.first else moment

        return self._with_moments(optimizer, optimizer.state_dict(), gathered)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load the `state` that `optimizer_state`, or a single process, has stored."""
        optimizer.load_state_dict(self._with_moments(optimizer, state, lambda whole, _: self._own(whole)))

    def _with_moments(
        self, optimizer: torch.optim.Optimizer, state: dict[str, Any], change: Callable[[Tensor, _Matrix], Tensor]
    ) -> dict[str, Any]:
        """`state` with the sharded matrices' moments, its tensors of two dimensions, replaced."""
        moments = dict(state["state"])
        numbers = {p: number for number, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
        for matrix in self._matrices:
            number = numbers.get(matrix.rows)
            if number in moments:
                moments[number] = {
                    name: change(value, matrix) if isinstance(value, Tensor) and value.ndim == 2 else value
                    for name, value in moments[number].items()
                }
        return state | {"state": moments}

    def _gathered(self, matrix: _Matrix) -> nn.Parameter:
        rows = matrix.rows
        whole = nn.Parameter(self.processes.assembled(rows.detach(), matrix.length), rows.requires_grad)
        if rows.grad is not None:
            whole.grad = self.processes.assembled(rows.grad, matrix.length)
        return whole

    def _own(self, whole: Tensor) -> Tensor:
        """Copy of this process's rows, so that the others can be freed."""
        return self.processes.own_block(whole).clone()

    def _put(self, parameters: list[nn.Parameter]) -> None:
        for matrix, parameter in zip(self._matrices, parameters, strict=True):
            matrix.put(parameter)


def _places(module: nn.Module, parameter: nn.Parameter) -> list[tuple[nn.Module, str]]:
    """Where `parameter` stands in `module`: (submodule, name)."""
    return [
        (part, name)
        for part in module.modules()
        for name, found in part.named_parameters(recurse=False)
        if found is parameter
    ]
