"""What the training loop asks of the processes that share a run: to share outputs, gradients and decisions.

`Alone` is the answer of a single process, and does nothing. `Team` is that of one of several: it puts the batch's
outputs together, lets the loss see whole matrices of which it keeps rows, and has all processes decide alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from probmetric.training.optimizer import gradient_norm
from probmetric.training.processes import Processes, losing_nobody
from probmetric.training.shards import SMALLEST, Shards

T = TypeVar("T")


class Alone:
    """One process that trains a run by itself."""

    first = True
    """Whether this process writes, records and shows progress."""
    seed_words: tuple[int, ...] = ()
    """What tells this process's random layers from those of the others."""

    def __init__(self, encoder: nn.Module, loss: nn.Module) -> None:
        self.encoder, self.loss = encoder, loss
        self._parameters = [*encoder.parameters(), *loss.parameters()]  # walking the modules takes as long as the norm

    def watched(self) -> AbstractContextManager[None]:
        """The block ends with a clear error if another process is lost."""
        return nullcontext()

    def network(self, plain: nn.Module) -> nn.Module:
        """`plain` with gradients that are the run's."""
        return plain

    def outputs(self, rows: Tensor, total: int) -> Tensor:
        """The network's outputs for all `total` images of the batch, from this process's `rows` (b, ...)."""
        return rows

    def whole_loss(self) -> AbstractContextManager[None]:
        """The loss with all its parameters for the block."""
        return nullcontext()

    def gradient_norm(self) -> Tensor:
        """Norm of all gradients, a scalar tensor, once they are the same in all processes."""
        return gradient_norm(self._parameters)

    def agreed(self, values: Tensor) -> Tensor:
        """Mean of the processes' `values` (...): the same bits everywhere."""
        return values

    def once(self, compute: Callable[[], T]) -> T:
        """What `compute` gives in the first process, in all of them."""
        return compute()

    def align_loss(self) -> None:
        """Give all processes the first one's loss."""

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """State of `optimizer` as a single process has it, for a checkpoint."""
        return optimizer.state_dict()

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load what `optimizer_state` has stored, with any number of processes."""
        optimizer.load_state_dict(state)

    def dissolve(self) -> None:
        """Give the loss all its parameters back for good."""


class Team(Alone):
    """One of several processes that train a run together; all of them call every method together."""

    def __init__(self, encoder: nn.Module, loss: nn.Module, processes: Processes, smallest: int) -> None:
        super().__init__(encoder, loss)
        self.processes, self.shards = processes, Shards(loss, processes, smallest)
        self.first = processes.first
        self.seed_words = () if processes.first else (processes.rank,)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """The block ends with a clear error if another process is lost."""
        with losing_nobody():
            yield

    def network(self, plain: nn.Module) -> nn.Module:
        """`plain` with gradients that are the run's."""
        if not any(parameter.requires_grad for parameter in self.encoder.parameters()):
            return plain
        return DistributedDataParallel(plain, gradient_as_bucket_view=True)

    def outputs(self, rows: Tensor, total: int) -> Tensor:
        """The network's outputs for all `total` images of the batch, from this process's `rows` (b, ...)."""
        return self.processes.gathered(rows, total)

    def whole_loss(self) -> AbstractContextManager[None]:
        """The loss with all its parameters for the block."""
        return self.shards.whole()

    def gradient_norm(self) -> Tensor:
        """Norm of all gradients, a scalar tensor, once they are the same in all processes."""
        replicated = [parameter for parameter in self.loss.parameters() if parameter not in self.shards]
        self.processes.average_gradients(replicated)
        return self.shards.norm(gradient_norm([*self.encoder.parameters(), *replicated]))

    def agreed(self, values: Tensor) -> Tensor:
        """Mean of the processes' `values` (...): the same bits everywhere."""
        return self.processes.averaged(values)

    def once(self, compute: Callable[[], T]) -> T:
        """What `compute` gives in the first process, in all of them."""
        return self.processes.once(compute)

    def align_loss(self) -> None:
        """Give all processes the first one's loss."""
        with self.shards.whole():
            self.processes.align(self.loss)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """State of `optimizer` as a single process has it, for a checkpoint; in the first process."""
        return self.shards.optimizer_state(optimizer)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load what `optimizer_state` has stored, with any number of processes."""
        self.shards.load_optimizer(optimizer, state)

    def dissolve(self) -> None:
        """Give the loss all its parameters back for good."""
        self.shards.dissolve()


def team_of(
    processes: Processes, encoder: nn.Module, loss: nn.Module, shard_proxies: Literal["auto", "always", "never"]
) -> Alone:
    """How the processes share the training of `encoder` with `loss`.

    Args:
        processes: those of the run.
        encoder: the encoder.
        loss: the loss; of its large matrices each process keeps its own rows.
        shard_proxies: which matrices are large, see `shards.SMALLEST`.
    """
    if not processes.several:
        return Alone(encoder, loss)
    return Team(encoder, loss, processes, SMALLEST[shard_proxies])
