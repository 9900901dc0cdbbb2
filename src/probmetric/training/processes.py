"""One run on several processes, each with its share of every batch.

Process r of W computes the embeddings of positions r, r + W, ... of the batch. These are gathered, and every process
evaluates the loss of the *whole* batch, with the same random numbers. DistributedDataParallel averages the encoder's
gradients over the processes, but the gradient is their sum,

    dL/dtheta = sum_r dL/dz_r dz_r/dtheta.

The gradient that flows back into a process's own rows is therefore multiplied by W. The gradients of the loss's
parameters are the same in all processes up to rounding; they are averaged, which keeps the parameters equal to the bit.

With one process every operation here is the identity, so the training loop has no second path.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from probmetric.errors import ProbMetricError
from probmetric.launch import Place
from probmetric.training.diagnosis import TrainingError

T = TypeVar("T")


class ProcessLostError(TrainingError):
    """Another process of the run ended; this one cannot go on alone."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run: this one is number `rank` of `count`. All of them call every method together."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files, tracks and shows progress."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.count > 1

    @property
    def seed_words(self) -> tuple[int, ...]:
        """Return the words that seed this process's random layers; the first process has those of a single one."""
        return () if self.first else (self.rank,)

    def own(self, items: T) -> T:
        """Return this process's share of a sequence or of a tensor's rows: every `count`-th, from `rank` on."""
        share: T = items[self.rank :: self.count]  # type: ignore[index]
        return share

    def spread(self, network: nn.Module) -> nn.Module:
        """Return `network` with gradients that are summed over the processes, if any of its parameters train."""
        if not self.several or not any(parameter.requires_grad for parameter in network.parameters()):
            return network
        return DistributedDataParallel(network, gradient_as_bucket_view=True)

    def gathered(self, rows: Tensor, total: int) -> Tensor:
        """Return all processes' shares (b, ...) of `total` rows, in their order, (total, ...); gradients reach `rows`.

        Row i of the result is row i // W of process i % W.
        """
        if not self.several:
            return rows
        whole: Tensor = _Gather.apply(rows, self, total)
        return whole

    def added(self, values: Tensor) -> Tensor:
        """Sum the processes' `values` (...), in place."""
        if self.several:
            dist.all_reduce(values)
        return values

    def averaged(self, values: Tensor) -> Tensor:
        """Average the processes' `values` (...), in place: the same bits everywhere."""
        return self.added(values).div_(self.count) if self.several else values

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients of `parameters` by their mean over the processes."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not self.several or not gradients:
            return
        flat = self.averaged(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def align(self, module: nn.Module) -> None:
        """Give all processes the first one's parameters and buffers of `module`."""
        if self.several:
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, src=0)

    def once(self, compute: Callable[[], T]) -> T:
        """Run `compute` in the first process and return its result in all; a `ProbMetricError` is raised in all."""
        if not self.several:
            return compute()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = compute()
            except ProbMetricError as error:
                answer[1] = error
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise answer[1]
        value: T = answer[0]
        return value

    def collected(self, value: T) -> list[T]:
        """Return the processes' `value`s in the first process, in order of rank; an empty list in the others."""
        if not self.several:
            return [value]
        values: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(value, values, dst=0)
        return values or []

    def in_turn(self, items: Sequence[T]) -> list[T]:
        """Return all processes' items in the order of a single process; in processes but the first, none."""
        shares = self.collected(items)
        longest = max(map(len, shares), default=0)
        return [share[turn] for turn in range(longest) for share in shares if turn < len(share)]

    def require_own_devices(self, device: torch.device) -> None:
        """Check that no two processes compute on the same CUDA device, which NCCL cannot do."""
        if not self.several or device.type != "cuda":
            return
        places: list[Any] = [None] * self.count
        dist.all_gather_object(places, (socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid)))
        if len(set(places)) < self.count:
            raise TrainingError(
                f"{self.count} processes share {len(set(places))} CUDA device(s); each needs its own. "
                "Start as many processes as there are devices, or ask for more devices."
            )


ALONE = Processes()


@contextlib.contextmanager
def joined(place: Place) -> Iterator[Processes]:
    """Join the other processes at MASTER_ADDR:MASTER_PORT for the block; a single process joins none.

    NCCL sends tensors on CUDA devices, Gloo those on the CPU.
    """
    if place.count == 1:
        yield ALONE
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with _losing_nobody():
        dist.init_process_group(backend, rank=place.rank, world_size=place.count)
    try:
        with _losing_nobody():
            yield Processes(place.rank, place.count)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _losing_nobody() -> Iterator[None]:
    """Turn the errors of Gloo and NCCL for a lost process into a `ProcessLostError`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            cause = str(error).strip().splitlines()[0]
            raise ProcessLostError(
                "another process of this run ended or cannot be reached; its own message, if it could leave one, says "
                f"why. The last checkpoint stands: run the same command to go on. ({cause})"
            ) from error
        raise


class _Gather(torch.autograd.Function):
    """See `Processes.gathered`. The backward pass sends no data: every process has the gradient of all rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: Processes, total: int) -> Tensor:
        ctx.processes = processes
        most = -(-total // processes.count)
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(processes.count)]
        dist.all_gather(parts, padded)
        return torch.stack(parts, dim=1).flatten(0, 1)[:total]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.processes.own(gradients[0]) * ctx.processes.count, None, None
