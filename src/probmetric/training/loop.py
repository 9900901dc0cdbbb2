"""The training loop.

One optimiser step: batch -> embeddings -> loss -> gradients -> (clip) -> update. A step whose gradients are not
finite is skipped and counted. A loss that is not finite ends the run with a diagnosis, before any update. After
every `validate_every` epochs the selection metric is measured on the validation split. The weights with the best
metric are kept, the latest of equals.

A checkpoint holds `Progress`, the parameters and the optimiser, which together decide the following steps; random
numbers are derived from the step (`seeds.py`). On the CPU a run that was killed and resumed ends in the same bits as an
uninterrupted one with the same number of threads (sums are split by thread).

Several processes may share the work (`processes.py`). Each computes the embeddings of its images; all evaluate the loss
of the whole batch and hold the same weights. Only the first process validates, records and writes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from probmetric.config import ConfigError
from probmetric.losses import Loss
from probmetric.losses._base import point_at_class_means
from probmetric.models import Encoder
from probmetric.training.assemble import Weights, weights_of
from probmetric.training.backend import compiled
from probmetric.training.batch_norm import BatchNorm, GlobalBatchNorm
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData
from probmetric.training.diagnosis import TrainingError, non_finite_gradients, non_finite_loss
from probmetric.training.forward import Network, embed_as_trained, resolve_precision
from probmetric.training.low_rank import add_low_rank, merge
from probmetric.training.optimizer import create_optimizer, gradient_norm, learning_rate_factor, set_learning_rates
from probmetric.training.progress import HISTORY_COLUMNS, Progress
from probmetric.training.seeds import generator_for, seed_layers
from probmetric.training.validation import check_selection, validate

log = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 20
SECONDS_BETWEEN_CHECKPOINTS = 120.0
SECONDS_BETWEEN_LINES = 30.0  # in the log of a training without a visible progress bar


class TrainingStoppedError(TrainingError):
    """Training was asked to stop and has saved its state."""


@dataclass(frozen=True)
class Conduct:
    """How a training is run; none of this changes the result.

    Attributes:
        checkpoints: where to keep the state.
        identity: digest of everything that decides the result; a checkpoint of another identity is ignored.
        checkpoint_steps: checkpoint after this many steps too; None: whenever two minutes have passed.
        progress_bar: show a bar on stderr; None shows it on a terminal only.
        on_epoch: called with every row of the history.
        should_stop: called after every step; if it returns true, the state is saved and `TrainingStoppedError` raised.
    """

    checkpoints: Checkpoints
    identity: str
    checkpoint_steps: int | None = None
    progress_bar: bool | None = None
    on_epoch: Callable[[dict[str, Any]], None] | None = None
    should_stop: Callable[[], bool] = bool


class Trainer:
    """Trains one encoder with one loss; `fit` runs, or continues, to the end."""

    def __init__(
        self, encoder: Encoder, loss: Loss, data: TrainingData, conduct: Conduct, *, first: Progress | None = None
    ) -> None:
        """Prepare training.

        Args:
            encoder: the encoder, on the device of `data`.
            loss: the loss, on the same device.
            data: training and validation images, settings, seed and device; knows this process's share of the images.
            conduct: where the state is kept, what is shown, when to stop.
            first: a finished training; this one repeats it on more images, up to its best epoch and at its rates.
        """
        self.settings, self.encoder, self.loss, self.data = data.settings, encoder, loss, data
        self.seed, self.device, self.processes = data.seed, data.device, data.processes
        self.conduct, self.first = conduct, first
        check_selection(data, self.settings.selection_metric)
        self.precision = resolve_precision(self.settings.precision, self.device)
        if self.settings.lora is not None:
            add_low_rank(encoder, self.settings.lora, generator_for("cpu", self.seed, "low rank"))
        self.optimizer = create_optimizer(self.settings, encoder, loss)
        self.progress = Progress()
        self.best: Weights = {}
        self.last: Weights = {}
        held = self.settings.gradient_cache
        self.plain = Network(encoder, self.precision, stop_before_head=loss.wants_features, held_at_once=held)
        if held is not None:
            _require_fixed_batch_norm(encoder)
        self._average = None
        if self.settings.ema is not None:
            both = nn.ModuleDict({"encoder": encoder, "loss": loss})
            self._average = AveragedModel(both, multi_avg_fn=moving_average(self.settings.ema), use_buffers=True)
        self._pretrained = [parameter for parameter in encoder.pretrained_parameters() if parameter.requires_grad]
        self.network: nn.Module = self.plain
        self._parameters = [*encoder.parameters(), *loss.parameters()]  # kept: walking the modules costs like the norm
        self._frozen: bool | None = None
        self._saved_at = self._told_at = time.monotonic()

    @property
    def _measured(self) -> tuple[Encoder, Loss]:
        """Return the encoder and loss to measure and write: those after the last step, or their moving average."""
        if self._average is None:
            return self.encoder, self.loss
        both: Any = self._average.module
        return both["encoder"], both["loss"]

    def fit(self) -> Progress:
        """Train to the end or until patience runs out; then `best` holds the selected weights, `last` the last ones."""
        try:
            if not self._restore():
                self._warm_start()
            self._train()
            if warning := self.progress.warning:
                log.warning("%s; choose another training.selection_metric or more validation images", warning)
            self.last = weights_of(*self._measured)  # before `merge`, after which an average cannot be read
        finally:
            merge(self.encoder)
        return self.progress

    def _train(self) -> None:
        """Train the remaining epochs."""
        wanted, largest = self.settings.batch_size, max(map(len, self.data.batches(0)), default=0)
        if largest < wanted:
            reason = "a batch has every training class or image then; more images_per_class make larger ones"
            log.warning("training.batch_size %d is cut to %d: %s", wanted, largest, reason)
        with self._progress_bar() as bar:
            while not self.progress.finished:
                self.train_epoch(bar)
                self.end_epoch(bar)

    def train_epoch(self, bar: tqdm) -> None:
        """Take the remaining steps of an epoch."""
        self.loss.set_epoch(self.progress.epoch)
        self._freeze_pretrained(frozen=self.progress.epoch < self.settings.warmup_epochs)
        self.encoder.train()
        self.loss.train()
        progress, steps = self.progress, self.data.steps_per_epoch
        started = time.perf_counter()
        for positions, images, labels in self.data.epoch_batches(progress.epoch, progress.step_in_epoch):
            stop, due = self._step(positions, images, labels)
            progress.step_in_epoch += 1
            progress.step += 1
            progress.images += len(labels)
            now = time.perf_counter()
            progress.seconds += now - started
            started = now
            bar.update()
            if stop:
                self._save()
                raise TrainingStoppedError(
                    f"stopped by request in epoch {progress.epoch} after step {progress.step}; the state is saved, the "
                    "same command goes on."
                )
            if progress.step_in_epoch < steps and due:
                self._save()

    def _step(self, positions: Tensor, images: Tensor, labels: Tensor) -> tuple[bool, bool]:
        """Take one optimiser step; return whether any process was asked to stop, and whether any has a checkpoint due.

        Args:
            positions: places of the whole batch's images in the training split (B,).
            images: augmented images of this process (b, C, H, W).
            labels: classes of the whole batch (B,).
        """
        progress, processes = self.progress, self.processes
        set_learning_rates(self.optimizer, self._rate_factor())
        seed_layers(self.device, self.seed, progress.step, *processes.seed_words)

        outputs = processes.gathered(self.network(images), len(labels))
        value = self._loss_of(outputs, labels)
        value.backward()
        value = value.detach()  # lets go of the graph
        processes.average_gradients(self.loss.parameters())
        norm = gradient_norm(self._parameters)
        state = processes.averaged(self._scalars(value, norm, self.conduct.should_stop(), self._is_due(1)))
        loss, length, stop, due = state.tolist()  # the only synchronisation
        self._update(loss, length, state[1], positions, outputs)
        return bool(stop), bool(due)

    def _update(self, loss: float, norm: float, measured: Tensor, positions: Tensor, outputs: Tensor) -> None:
        """Record a step's `loss` and gradients' `norm`, and update the weights if all gradients are finite.

        Args:
            loss: the batch's loss.
            norm: norm of all gradients.
            measured: the same norm as a scalar tensor on the device.
            positions: places of the batch's images in the training split (B,).
            outputs: the network's outputs (B, ...).

        Raises:
            TrainingError: the loss is not finite, or the gradients were not finite in too many steps in a row.
        """
        progress, clip = self.progress, self.settings.gradient_clip
        if not math.isfinite(loss):
            self._give_up(non_finite_loss, loss=loss, index=self.data.index[positions], embeddings=outputs)
        progress.count(loss, norm)
        if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            self._give_up(non_finite_gradients, skipped=progress.skipped_in_a_row)
        if math.isfinite(norm):
            if clip is not None:
                torch.nn.utils.clip_grads_with_norm_(self._parameters, clip, measured)
            self.optimizer.step()
            if self._average is not None:
                self._average.update_parameters(nn.ModuleDict({"encoder": self.encoder, "loss": self.loss}))
        self.optimizer.zero_grad()

    def _rate_factor(self) -> float:
        """Return the factor on the base learning rates at this step."""
        progress = self.progress
        passed = progress.step_in_epoch / self.data.steps_per_epoch
        metrics = self.first.metrics_before(progress.epoch) if self.first else progress.metrics
        return learning_rate_factor(self.settings, progress.epoch, passed, metrics)

    def _loss_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the whole batch's loss from outputs (B, M) or (B, D) and labels (B,)."""
        generator = generator_for(self.device, self.seed, "loss", self.progress.step)
        if not self.loss.wants_features:
            value: Tensor = self.loss(outputs, labels, generator=generator)
            return value
        if self.encoder.head is None:
            raise TrainingError("an objective perturbs the last layer, but the encoder has none; use another backbone.")
        return self.loss.from_features(outputs, self.encoder.head, labels, generator=generator)

    def _scalars(self, *values: Tensor | bool) -> Tensor:
        """Return the values as one float32 tensor on the device, without waiting for it."""
        made = [v.float() if isinstance(v, Tensor) else torch.full((), float(v), device=self.device) for v in values]
        return torch.stack(made)

    def _give_up(self, diagnose: Callable[..., Exception], **facts: Any) -> NoReturn:
        """End the run with the error that `diagnose` makes from the modules."""
        progress, modules = self.progress, {"encoder": self.encoder, "loss": self.loss}
        raise diagnose(epoch=progress.epoch, step=progress.step, modules=modules, **facts)

    def end_epoch(self, bar: tqdm) -> None:
        """Validate, write the epoch's row, select weights, decide whether to go on, checkpoint."""
        progress, settings = self.progress, self.settings
        last = progress.epoch == (self.first.best_epoch if self.first else settings.epochs - 1)
        self._record(self._select(last=last), bar)
        stopped = 0 < settings.patience <= progress.waited
        progress.finished = last or stopped
        progress.epoch += 1
        progress.step_in_epoch = progress.skipped = progress.images = 0
        progress.loss_sum = progress.norm_sum = progress.seconds = 0.0
        if progress.finished or progress.epoch % settings.checkpoint_every == 0 or self.processes.once(self._is_due):
            self._save()

    def _select(self, *, last: bool) -> float | None:
        """Validate if this epoch is due, keep the weights if they are the best, and return the metric."""
        progress, settings, metric = self.progress, self.settings, None
        if self.data.has_validation and (last or (progress.epoch + 1) % settings.validate_every == 0):
            metric = validate(*self._measured, self.data, settings.selection_metric)
            progress.metrics.append(metric)
        best = metric is not None and metric == max(progress.metrics)  # the latest of equals
        if best or not self.data.has_validation:
            self.best, progress.best_epoch = weights_of(*self._measured), progress.epoch
        return metric

    def _record(self, metric: float | None, bar: tqdm) -> None:
        progress = self.progress
        steps = max(progress.step_in_epoch, 1)
        values = (
            *(progress.epoch, progress.step, progress.loss_sum / steps),
            *(float(self.optimizer.param_groups[0]["lr"]), metric, progress.seconds),
            progress.images / max(progress.seconds, 1e-9),
            _peak_memory_mb(self.device),
            progress.norm_sum / max(steps - progress.skipped, 1),
            progress.skipped,
        )
        row = dict(zip(HISTORY_COLUMNS, values, strict=True)) | self.loss.diagnostics()
        progress.history.append(row)
        bar.set_postfix(epoch=progress.epoch, loss=f"{row['train_loss']:.4g}", val=metric)
        if bar.disable and self.processes.first and time.monotonic() - self._told_at >= SECONDS_BETWEEN_LINES:
            self._told_at = time.monotonic()
            measured = "" if metric is None else f", validation {self.settings.selection_metric} {metric:.3f}"
            log.info("epoch %d of %d%s", progress.epoch + 1, self.settings.epochs, measured)
        if self.conduct.on_epoch and self.processes.first:
            self.conduct.on_epoch(row)

    def _freeze_pretrained(self, *, frozen: bool) -> None:
        """Freeze or train pretrained weights, and prepare the network again for processes and compiler."""
        if frozen == self._frozen:
            return
        for parameter in self._pretrained:
            parameter.requires_grad_(not frozen)
        self._frozen, self.network = frozen, self.processes.spread(self.plain)
        if self.settings.compile:
            self.network = compiled(self.network, self.device)

    def _warm_start(self) -> None:
        """Initialise the loss from the training images' embeddings, made by the network in training mode."""
        at_means = self.settings.proxy_init == "class_means"
        if at_means or self.loss.wants_warm_start:
            embeddings = embed_as_trained(self.encoder, self.data, self.precision)
            labels = self.data.labels.to(self.device)
            with torch.no_grad():
                if at_means:
                    point_at_class_means(self.loss, embeddings, labels)
                if self.loss.wants_warm_start:
                    self.loss.warm_start(embeddings, labels)
        self.processes.align(self.loss)

    def _is_due(self, steps: int = 0) -> bool:
        """Return whether a checkpoint is due in this process after `steps` more steps."""
        if self.conduct.checkpoint_steps is not None:
            return (self.progress.step + steps) % self.conduct.checkpoint_steps == 0
        return time.monotonic() - self._saved_at > SECONDS_BETWEEN_CHECKPOINTS

    def _save(self) -> None:
        """Write a checkpoint; all processes call this after the same step."""
        self._saved_at = time.monotonic()
        if not self.processes.first:
            return
        state = {
            "identity": self.conduct.identity,
            "progress": dataclasses.asdict(self.progress),
            "encoder": self.encoder.state_dict(),
            "loss": self.loss.state_dict(),
            "loss_buffers": dict(self.loss.named_buffers()),  # also those that no weights file holds
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "average": None if self._average is None else self._average.state_dict(),
        }
        self.conduct.checkpoints.save(self.progress.step, state)

    def _restore(self) -> bool:
        state = self.processes.once(lambda: self.conduct.checkpoints.load(self.conduct.identity))
        if state is None:
            return False
        self.progress = Progress(**state["progress"])
        self.encoder.load_state_dict(state["encoder"])
        self.loss.load_state_dict(state["loss"])
        for name, buffer in self.loss.named_buffers():
            buffer.copy_(state["loss_buffers"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best = state["best"]
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        if self.processes.first:
            log.info("resumed at epoch %d, step %d", self.progress.epoch, self.progress.step)
        return True

    def _progress_bar(self) -> tqdm:
        """Return a bar over all steps, on stderr."""
        shown = self.conduct.progress_bar if self.processes.first else False
        total = self.settings.epochs * self.data.steps_per_epoch
        disable = None if shown is None else not shown
        return tqdm(total=total, initial=self.progress.step, unit="step", file=sys.stderr, disable=disable)


def moving_average(decay: float) -> Callable[..., None]:
    """Return a function that moves averages (...) towards new values (...); it copies integers, such as indices."""
    move = get_ema_multi_avg_fn(decay)

    def update(averages: list[Tensor], values: list[Tensor], count: Tensor) -> None:
        if averages[0].is_floating_point():
            move(averages, values, count)
        else:
            for average, value in zip(averages, values, strict=True):
                average.copy_(value)

    return update


def _require_fixed_batch_norm(encoder: Encoder) -> None:
    """Refuse a gradient cache if batch normalisation trains, because the cache computes a batch in parts.

    Raises:
        ConfigError: a batch normalisation trains.
    """
    batch_norm = BatchNorm | GlobalBatchNorm | nn.SyncBatchNorm
    was_training = encoder.training
    training = any(isinstance(module, batch_norm) and module.training for module in encoder.train().modules())
    encoder.train(was_training)
    if training:
        raise ConfigError(
            "training.gradient_cache computes a batch in parts, which batch normalisation would normalise each by "
            "itself; set training.batch_norm to frozen, or leave gradient_cache out."
        )


def _peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory of the process so far: of the CUDA device, or resident memory on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
