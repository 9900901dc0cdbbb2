"""Several runs that differ in their seed or in numbers only, trained as one stacked model.

The step of a small net is bound by the launches of its kernels, not by their work. Here K runs share them: parameters
and buffers stand in tensors (K, ...), the encoders run as one under `torch.vmap`, and so do losses that can
(`Loss.vectorises`) and have the same options; others are evaluated one after the other on their run's slice. One
optimiser updates all slices, each at its run's rates. Each run has its own data order, augmentation, draws,
normalisation, early selection, checkpoints and files: `Trainer`s keep them, lend their weights to a `_Stack` for an
epoch and take them back where one of them validates, saves or fails.

A run that is trained so equals the one trained alone to rounding: a batched product sums in another order. What is
drawn (batches, augmentation, samples, initial weights) is equal to the bit.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from probmetric.training.optimizer import create_optimizer, set_learning_rates
from probmetric.uncompiled import update_parameters

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


def fit_stacked(trainers: Sequence[Trainer], *, same_loss: bool = True) -> list[Trainer]:
    """Train all `trainers`, whose runs have `EncoderSettings.stackable` in common; returns those that got to the end.

    One that fails (its loss is not finite, say) stops only itself. Where the network cannot be stacked the trainers
    train one after the other, and a message says why.

    Args:
        trainers: what to train.
        same_loss: whether their losses have the same options; others are evaluated one after the other.

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
                failed += train_epoch(group, bar, same_loss=same_loss)
            except _CannotStackError as error:
                log.warning("%d runs are trained one after the other: %s", len(trainers), error)
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


def train_epoch(group: list[Trainer], bar: tqdm, *, same_loss: bool = True) -> list[Trainer]:
    """Train `group` to the end of the epoch, or up to a step in which one of them leaves it; returns who failed."""
    epoch = group[0].progress.epoch
    if len(group) == 1 or len({tuple(map(len, t.data.batches(epoch))) for t in group}) > 1:
        return [gone for trainer in group for gone in _attempt(trainer, lambda t: t.train_epoch(bar))]
    for trainer in group:
        trainer.start_epoch()
    stack = _Stack(group, same_loss=same_loss)
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

    def __init__(self, trainer: Trainer, *, with_loss: bool) -> None:
        super().__init__()
        self.network, self.loss, self.with_loss = trainer.plain, trainer.loss, with_loss

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, M) of the images (B, C, H, W), and their loss, or zero."""
        outputs = self.network(images)
        return outputs, self.loss.value(outputs, labels) if self.with_loss else outputs.new_zeros(())


class _Stack:
    """Weights of `trainers` in tensors (K, ...), with one optimiser for all, from when it is made until `give_back`."""

    def __init__(self, trainers: list[Trainer], *, same_loss: bool) -> None:
        self.trainers, self.first = trainers, trainers[0]
        with_loss = same_loss and self.first.loss.vectorises
        self.modules = [_Whole(trainer, with_loss=with_loss) for trainer in trainers]
        parts = [dict(module.named_parameters()) for module in self.modules]
        if len({tuple((name, own.shape) for name, own in part.items()) for part in parts}) > 1:
            raise _CannotStackError("they have other parameters")
        self.parameters = {
            name: nn.Parameter(_stacked([part[name].detach() for part in parts]), requires_grad=own.requires_grad)
            for name, own in parts[0].items()
        }
        slices = {name: whole.detach().unbind() for name, whole in self.parameters.items()}
        self._slices = [{name: nn.Parameter(found[k]) for name, found in slices.items()} for k in range(len(parts))]
        self._slice_of = {id(own): self._slices[k][name] for k, part in enumerate(parts) for name, own in part.items()}
        buffers = [dict(module.named_buffers()) for module in self.modules]
        self.buffers = {name: _stacked([part[name] for part in buffers]) for name in buffers[0]}
        self.optimizer = self._optimizer_of_all()
        self._rate_factor = self.first.rate_factor()
        self._proven = False

    def _optimizer_of_all(self) -> torch.optim.Optimizer:
        """An optimiser over the slices, with the moments and rates of their runs; equal rates are one group."""
        optimizer = create_optimizer(self.first.settings, self.first.encoder, self.first.loss)
        merged: dict[str, dict[str, Any]] = {}
        for trainer in self.trainers:
            for group in trainer.optimizer.param_groups:
                options = {name: value for name, value in group.items() if name != "params"}
                whole = merged.setdefault(repr(sorted(options.items())), options | {"params": []})
                whole["params"] += [self._slice_of[id(parameter)] for parameter in group["params"]]
            for parameter, state in trainer.optimizer.state.items():
                own = self._slice_of[id(parameter)]
                optimizer.state[own] = _laid_out(state, own)
        optimizer.param_groups = list(merged.values())
        return optimizer

    def step(self, batches: Sequence[Batch]) -> tuple[list[Trainer], bool]:
        """One optimiser step of every run, on its own batch; returns who failed, and whether all took it together.

        If not, the trainers have their weights back, and the stack is worth nothing any more.
        """
        self._rate_factor = self.first.rate_factor()
        set_learning_rates(self.optimizer, self._rate_factor)
        outputs, values = self._gradients(batches)
        norms = self._norms()
        losses, lengths = torch.stack([values.float(), norms]).tolist()  # the only synchronisation
        if not all(map(math.isfinite, [*losses, *lengths])):
            return self._step_apart(losses, lengths, norms, batches, outputs), False
        for trainer, loss, length in zip(self.trainers, losses, lengths, strict=True):
            trainer.progress.count(loss, length)
        self._clip(norms)
        self._lend_gradients()
        update_parameters(self.optimizer)
        for parameter in self.parameters.values():
            parameter.grad = None
        return [], True

    def _lend_gradients(self) -> None:
        """Let the slices have their parts of the gradients."""
        for name, whole in self.parameters.items():
            parts = [None] * len(self._slices) if whole.grad is None else whole.grad.unbind()
            for slices, part in zip(self._slices, parts, strict=True):
                slices[name].grad = part

    def _gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Outputs (K, B, M) and losses (K,) of a batch of every run, whose gradients the parameters then hold.

        Raises:
            _CannotStackError: the first step of this stack is not possible.
        """
        labels = torch.stack([batch[2] for batch in batches])
        try:
            outputs, values = self._forward(torch.stack([batch[1] for batch in batches]), labels)
            if not self.modules[0].with_loss:
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
        limits = [trainer.settings.gradient_clip for trainer in self.trainers]
        if limits == [None] * len(limits):
            return
        largest = norms.new_tensor([math.inf if limit is None else limit for limit in limits])
        factors = (largest / (norms + 1e-6)).clamp(max=1.0)
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(factors.view(-1, *[1] * (parameter.ndim - 1)))

    def _step_apart(
        self, losses: list[float], lengths: list[float], norms: Tensor, batches: Sequence[Batch], outputs: Tensor
    ) -> list[Trainer]:
        """Finish a step in which not all runs can update: each by itself; returns who failed."""
        self.give_back()
        self._lend_gradients()
        failed: list[Trainer] = []
        for k, trainer in enumerate(self.trainers):
            for parameter in [*trainer.encoder.parameters(), *trainer.loss.parameters()]:
                gradient = self._slice_of[id(parameter)].grad
                parameter.grad = None if gradient is None else _like(gradient, parameter)
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
        for trainer in self.trainers:
            for group in trainer.optimizer.param_groups:
                for parameter in group["params"]:
                    if state := self.optimizer.state.get(self._slice_of[id(parameter)]):
                        trainer.optimizer.state[parameter] = _laid_out(state, parameter)
            set_learning_rates(trainer.optimizer, self._rate_factor)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).contiguous()


def _is_moment(key: str, value: Any) -> bool:
    """Whether an entry of an optimiser's state has a number for every weight; the count of its steps has not."""
    return isinstance(value, Tensor) and key != "step"


def _laid_out(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """A copy of an optimiser's `state`, the moments laid out in memory as `parameter`."""
    moments = {key: _like(value, parameter) for key, value in state.items() if _is_moment(key, value)}
    return {key: moments[key] if key in moments else copy.deepcopy(value) for key, value in state.items()}


def _like(values: Tensor, parameter: Tensor) -> Tensor:
    """A copy of `values`, laid out in memory as `parameter`."""
    return torch.empty_like(parameter).copy_(values)
