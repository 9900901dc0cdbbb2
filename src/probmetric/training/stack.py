"""Several runs that differ in their seed only, trained as one stacked model.

The step of a small net is bound by the launches of its kernels, not by their work. Here K runs share them: parameters,
buffers and moments of the optimiser stand in tensors (K, ...), the encoders run as one under `torch.vmap`, and so do
the losses that can (`Loss.vectorises`); the others are evaluated one after the other on their run's slice. Each run has
its own data order, augmentation, draws, normalisation, early selection, checkpoints and files: `Trainer`s keep them,
lend their weights to a `_Stack` for an epoch and take them back where one of them validates, saves or fails.

A run that is trained so equals the one trained alone to rounding: a batched product sums in another order. What is
drawn (batches, augmentation, samples, initial weights) is equal to the bit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from tqdm import tqdm

from probmetric.config import EncoderSettings
from probmetric.losses import Loss
from probmetric.training.diagnosis import TrainingError
from probmetric.training.loop import Trainer, TrainingStoppedError, progress_bar
from probmetric.training.optimizer import create_optimizer, set_learning_rates, update_parameters

log = logging.getLogger(__name__)

Batch = tuple[Tensor, Tensor, Tensor]
Named = dict[str, Tensor]


class _CannotStackError(Exception):
    """The network or the memory does not allow it; nothing was changed."""


def obstacle(settings: EncoderSettings) -> str:
    """Why runs with these settings cannot be stacked, in words; empty if nothing speaks against it."""
    training = settings.training
    reasons = {
        "there is nothing to train": settings.loss is None or training.epochs == 0,
        "the learning rates follow each run's metric (training.schedule: plateau)": training.schedule == "plateau",
        "the network is compiled (training.compile)": training.compile,
        "an objective of an uncertainty shapes the loss": settings.objective is not None,
    }
    return next((words for words, holds in reasons.items() if holds), "")


def fit_stacked(trainers: Sequence[Trainer]) -> list[Trainer]:
    """Train all `trainers`, whose runs differ in their seed only, to the end; returns those that got there.

    One that fails (its loss is not finite, say) stops only itself. Where the network cannot be stacked the trainers
    train one after the other, and a message says why.

    Raises:
        TrainingStoppedError: they were asked to stop; their states are saved.
    """
    for trainer in trainers:
        trainer.begin()
    running, failed, alone = list(trainers), list[Trainer](), len(trainers) == 1
    with progress_bar(trainers) as bar:
        while running := [t for t in running if t not in failed and not t.progress.finished]:
            group = next(_in_step(running))[: 1 if alone else None]
            try:
                failed += train_epoch(group, bar)
            except _CannotStackError as error:
                log.warning("%d seeds are trained one after the other: %s", len(trainers), error)
                alone = True
            for trainer in group:
                if trainer not in failed and trainer.progress.step_in_epoch == trainer.data.steps_per_epoch:
                    failed += _attempt(trainer, lambda t: t.end_epoch(bar))
    finished = [trainer for trainer in trainers if trainer not in failed]
    for trainer in finished:
        trainer.conclude()
    return finished


def _in_step(trainers: Sequence[Trainer]) -> Iterator[list[Trainer]]:
    """Trainers that stand at the same step, with as many updates behind them; those that are furthest behind first."""
    place = {id(t): (t.progress.epoch, t.progress.step_in_epoch, -_updates(t)) for t in trainers}
    for _, group in groupby(sorted(trainers, key=lambda t: place[id(t)]), key=lambda t: place[id(t)]):
        yield list(group)


def _updates(trainer: Trainer) -> int:
    """Steps that were not skipped."""
    return (
        trainer.progress.step - sum(row["skipped_steps"] for row in trainer.progress.history) - trainer.progress.skipped
    )


def train_epoch(group: list[Trainer], bar: tqdm) -> list[Trainer]:
    """Train `group` to the end of the epoch, or up to a step in which one of them leaves it; returns who failed."""
    epoch = group[0].progress.epoch
    if len(group) == 1 or len({tuple(map(len, t.data.batches(epoch))) for t in group}) > 1:
        return [gone for trainer in group for gone in _attempt(trainer, lambda t: t.train_epoch(bar))]
    for trainer in group:
        trainer.start_epoch()
    stack = _Stack(group)
    batches = [t.data.epoch_batches(epoch, t.progress.step_in_epoch) for t in group]
    started = time.perf_counter()
    for step in zip(*batches, strict=True):
        failed, together = stack.step(step)
        now = time.perf_counter()
        for trainer in group:
            trainer.progress.step_in_epoch += 1
            trainer.progress.step += 1
            trainer.progress.seconds += (now - started) / len(group)
        started = now
        bar.update(len(group))
        if not together:
            return failed
        _save_if_asked(stack)
    stack.give_back()
    return []


def _save_if_asked(stack: _Stack) -> None:
    """Save all runs of the stack where one of them is asked to stop, or has not been saved for long."""
    group, progress = stack.trainers, stack.first.progress
    stop = any(trainer.should_stop() for trainer in group)
    inside = progress.step_in_epoch < stack.first.data.steps_per_epoch
    if stop or (inside and any(trainer.is_due() for trainer in group)):
        stack.give_back()
        for trainer in group:
            trainer.save()
    if stop:
        raise TrainingStoppedError(progress.epoch, progress.step)


def _attempt(trainer: Trainer, act: Callable[[Trainer], None]) -> list[Trainer]:
    """`act` on the trainer; it alone, if that fails, which is said."""
    try:
        act(trainer)
    except TrainingStoppedError:
        raise
    except TrainingError as error:
        log.warning("seed %d leaves the stack: %s", trainer.seed, error)
        return [trainer]
    return []


class _Whole(nn.Module):
    """Network and loss of a run as one module; their parameters are named `network.*` and `loss.*`."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.network, self.loss = trainer.plain, trainer.loss

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, M) of the images (B, C, H, W), and their loss, zero where it does not vectorise."""
        outputs = self.network(images)
        return outputs, self.loss.value(outputs, labels) if self.loss.vectorises else outputs.new_zeros(())


class _Stack:
    """Weights and moments of `trainers` in tensors (K, ...), from when it is made until `give_back`."""

    def __init__(self, trainers: list[Trainer]) -> None:
        self.trainers, self.first = trainers, trainers[0]
        self.modules = [_Whole(trainer) for trainer in trainers]
        self.parameters: dict[str, nn.Parameter] = {}
        parts = [dict(module.named_parameters()) for module in self.modules]
        for name, parameter in parts[0].items():
            whole = _stacked([part[name].detach() for part in parts])
            self.parameters[name] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
        buffers = [dict(module.named_buffers()) for module in self.modules]
        self.buffers = {name: _stacked([part[name] for part in buffers]) for name in buffers[0]}
        self._whose = [{id(p): self.parameters[name] for name, p in part.items()} for part in parts]
        self.optimizer = self._stacked_optimizer()
        self._proven = False

    def _stacked_optimizer(self) -> torch.optim.Optimizer:
        """An optimiser over the stacked parameters, with the moments of all."""
        first = self.first
        optimizer = create_optimizer(first.settings, first.encoder, first.loss)
        for group in optimizer.param_groups:
            group["params"] = [self._whose[0][id(parameter)] for parameter in group["params"]]
        for wholes, own in self._matched(optimizer):
            states = [trainer.optimizer.state.get(p, {}) for trainer, p in zip(self.trainers, own, strict=True)]
            if states[0]:
                optimizer.state[wholes] = {
                    key: _stacked([state[key] for state in states]) if _is_moment(key, value) else _copied(value)
                    for key, value in states[0].items()
                }
        return optimizer

    def _matched(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[nn.Parameter, list[nn.Parameter]]]:
        """Each stacked parameter of `optimizer` with those of the trainers it is made of."""
        groups = zip(optimizer.param_groups, *(t.optimizer.param_groups for t in self.trainers), strict=True)
        for whole, *own in groups:
            yield from (
                (parameter, list(parts))
                for parameter, *parts in zip(whole["params"], *(group["params"] for group in own), strict=True)
            )

    def step(self, batches: Sequence[Batch]) -> tuple[list[Trainer], bool]:
        """One optimiser step of every run, on its own batch; returns who failed, and whether all took it together.

        If not, the trainers have their weights back, and the stack is worth nothing any more.
        """
        set_learning_rates(self.optimizer, self.first.rate_factor())
        outputs, values = self._gradients(batches)
        norms = self._norms()
        losses, lengths = torch.stack([values.float(), norms]).tolist()  # the only synchronisation
        if not all(map(math.isfinite, [*losses, *lengths])):
            return self._step_apart(losses, lengths, norms, batches, outputs), False
        for trainer, loss, length in zip(self.trainers, losses, lengths, strict=True):
            trainer.progress.count(loss, length)
        self._clip(norms)
        update_parameters(self.optimizer)
        self.optimizer.zero_grad()
        return [], True

    def _gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Outputs (K, B, M) and losses (K,) of a batch of every run, whose gradients the parameters then hold.

        Raises:
            _CannotStackError: the first step of this stack is not possible.
        """
        labels = torch.stack([batch[2] for batch in batches])
        try:
            outputs, values = self._forward(torch.stack([batch[1] for batch in batches]), labels)
            if not self.first.loss.vectorises:
                values = self._losses(outputs, labels)
            values.sum().backward()
        except (RuntimeError, NotImplementedError) as error:
            if self._proven:
                raise
            raise _CannotStackError(str(error).strip().splitlines()[0]) from error
        self._proven = True
        return outputs.detach(), values.detach()

    def _forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (K, B, M) and losses (K,) of images (K, B, C, H, W)."""

        def one(parameters: Named, buffers: Named, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            made: tuple[Tensor, Tensor] = functional_call(self.modules[0], (parameters, buffers), (images, labels))
            return made

        outputs, values = torch.vmap(one)(dict(self.parameters), self.buffers, images, labels)
        return outputs, values

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Losses (K,) of outputs (K, B, M), each by its run's own module on its slices of the weights."""
        prefix, named = "loss.", {**self.parameters, **self.buffers}
        slices = {name.removeprefix(prefix): whole.unbind() for name, whole in named.items() if name.startswith(prefix)}
        values = []
        for k, trainer in enumerate(self.trainers):
            mine = {name: parts[k] for name, parts in slices.items()}

            def value(*given: Any, loss: Loss = trainer.loss, mine: Named = mine, **options: Any) -> Tensor:
                made: Tensor = functional_call(loss, mine, given, options)
                return made

            values.append(trainer.loss_of(outputs[k], labels[k], value))
        return torch.stack(values)

    def _norms(self) -> Tensor:
        """Norm of all gradients of every run (K,)."""
        gradients = [p.grad.reshape(len(p), -1) for p in self.parameters.values() if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients])
        return torch.linalg.vector_norm(norms, dim=0).float()

    def _clip(self, norms: Tensor) -> None:
        """Scale the gradients of runs whose norm (K,) is too large, as `torch.nn.utils.clip_grad_norm_`."""
        largest = self.first.settings.gradient_clip
        if largest is None:
            return
        factors = (largest / (norms + 1e-6)).clamp(max=1.0)
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(factors.view(-1, *[1] * (parameter.ndim - 1)))

    def _step_apart(
        self, losses: list[float], lengths: list[float], norms: Tensor, batches: Sequence[Batch], outputs: Tensor
    ) -> list[Trainer]:
        """Finish a step in which not all runs can update: each by itself; returns who failed."""
        self.give_back()
        failed: list[Trainer] = []
        for k, trainer in enumerate(self.trainers):
            for parameter in [*trainer.encoder.parameters(), *trainer.loss.parameters()]:
                whole = self._whose[k][id(parameter)]
                parameter.grad = None if whole.grad is None else _like(whole.grad[k], parameter)
            given = losses[k], lengths[k], norms[k], batches[k][0], outputs[k]
            failed += _attempt(trainer, lambda t, given=given: t.update(*given))  # type: ignore[misc]
        return failed

    @torch.no_grad()
    def give_back(self) -> None:
        """Give the trainers their weights, buffers and moments as they are now."""
        for k, module in enumerate(self.modules):
            for name, own in module.named_parameters():
                own.copy_(self.parameters[name][k])
            for name, buffer in module.named_buffers():
                buffer.copy_(self.buffers[name][k])
        for whole, parts in self._matched(self.optimizer):
            state = self.optimizer.state.get(whole, {})
            for k, parameter in enumerate(parts if state else []):
                self.trainers[k].optimizer.state[parameter] = {
                    key: _like(value[k], parameter) if _is_moment(key, value) else _copied(value)
                    for key, value in state.items()
                }
        for trainer in self.trainers:
            for group, now in zip(trainer.optimizer.param_groups, self.optimizer.param_groups, strict=True):
                group["lr"] = now["lr"]


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).contiguous()


def _is_moment(key: str, value: Any) -> bool:
    """Whether an entry of an optimiser's state has a number for every weight; the count of its steps has not."""
    return isinstance(value, Tensor) and key != "step"


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _like(values: Tensor, parameter: Tensor) -> Tensor:
    """A copy of `values`, laid out in memory as `parameter`."""
    return torch.empty_like(parameter).copy_(values)
