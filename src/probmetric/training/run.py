"""Training as a step of the workflow: settings and a prepared dataset in, a run folder out.

    run_folder/    selected and last weights, history, record (`probmetric.runs.folder`)
    state_folder/  checkpoints and a lock; removed when the run is finished

Outputs appear whole or not at all, and only when training is finished.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from probmetric.config import ConfigError, EncoderSettings
from probmetric.data.choosing import Role
from probmetric.io import FileError, atomic_path, digest_of, try_lock
from probmetric.losses import Loss
from probmetric.models import Encoder
from probmetric.runs.folder import RunFolder
from probmetric.training.allocator import keep_freed_memory
from probmetric.training.backend import backend
from probmetric.training.batch_norm import synchronise_batch_norm
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_view
from probmetric.training.device import claim_device
from probmetric.training.loop import Trainer
from probmetric.training.network import Weights, create_network, weights_of
from probmetric.training.processes import ALONE, Processes
from probmetric.training.progress import HISTORY_COLUMNS, Progress
from probmetric.training.provenance import hardware, versions
from probmetric.training.signals import stop_requests
from probmetric.training.stack import fit_stacked, obstacle

TRAINED_AS: dict[str, Role] = {"validation": "validation", "refit": "validation", "as_published": "leaking"}
CHOSEN_ON = {
    "validation": "validation images",
    "refit": "validation images, then trained again on training and validation images",
    "as_published": "TEST images (leaks, as published)",
}


def train_run(
    settings: EncoderSettings,
    *,
    prepared_folder: str | Path,
    run_folder: str | Path,
    state_folder: str | Path,
    progress: bool | None = None,
    device: str = "auto",
    threads: int | None = None,
    checkpoint_steps: int | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    processes: Processes = ALONE,
    code: Mapping[str, str] | None = None,
) -> None:
    """Train an encoder, or go on with an interrupted training, and write the run folder.

    Without a loss or with 0 epochs the untrained encoder is written.

    Args:
        settings: the run's settings.
        prepared_folder: the prepared dataset.
        run_folder: where the outputs go.
        state_folder: where checkpoints are kept meanwhile; outside the workflow's declared outputs.
        progress: show a progress bar on stderr; None shows it on a terminal only.
        device: "auto", "cpu", "cuda" or "cuda:1".
        threads: CPU threads; None leaves PyTorch's setting. Results are bit-equal for equal thread counts.
        checkpoint_steps: also checkpoint every so many steps; None: whenever two minutes have passed.
        on_epoch: called with every row of the history, for instance to show live curves.
        processes: those that train this run together (`processes.joined`); how many there are changes the result by
            rounding only, and the first one alone writes.
        code: module -> digest of the components' code; a checkpoint of other code is not continued.

    Raises:
        FileError: bad data or folder, or another process is training this run.
        NonFiniteLossError: the loss became NaN or infinite; no output is written.
        TrainingStoppedError: SIGTERM arrived (a scheduler's time limit, a cancelled workflow); the state is saved.
    """
    run = Ordered(settings, Path(prepared_folder), Path(run_folder), Path(state_folder), on_epoch, code)
    options = {"checkpoint_steps": checkpoint_steps, "progress_bar": progress}
    with _workplace([run], device, threads, processes) as (chosen, should_stop):
        job = _Job(run, chosen, processes, options | {"should_stop": should_stop})
        first = job.fit(TRAINED_AS[settings.training.selection], run.state_folder)
        final = first
        if epochs := _epochs_of_refit(settings, first.done):
            final = job.fit("pooled", run.state_folder / "refit", stop_after=epochs)
        job.write(first, final)


def train_together(
    runs: Sequence[Ordered], *, device: str = "auto", threads: int | None = None, progress: bool | None = None
) -> list[int]:
    """Train runs that differ in their seed or in numbers only as one stacked model (`stack`), or go on with it.

    Args:
        runs: what to train, and where to.
        device: as for `train_run`.
        threads: CPU threads; None leaves PyTorch's setting.
        progress: show a progress bar on stderr; None shows it on a terminal only.

    Returns:
        Numbers of the runs that are trained and written. The others failed; `train_run` says why.

    Raises:
        ConfigError: the runs differ in more than that, or cannot be stacked.
        FileError: bad data or folder, or another process is training one of the runs.
        TrainingStoppedError: SIGTERM arrived; the states are saved.
    """
    settings = runs[0].settings
    several = len({run.settings.stackable for run in runs}) > 1
    if reason := "they differ in more than their seed and numbers" if several else obstacle(settings):
        raise ConfigError(f"{len(runs)} runs cannot be trained as one: {reason}; train them one after the other.")
    role = TRAINED_AS[settings.training.selection]
    with _workplace(runs, device, threads, ALONE) as (chosen, should_stop):
        options = {"progress_bar": progress, "should_stop": should_stop}
        jobs = [_Job(run, chosen, ALONE, options) for run in runs]
        fit = functools.partial(_fit_stacked, same_loss=all(run.settings.loss == settings.loss for run in runs))
        first = fit({n: job.opens(role, job.run.state_folder) for n, job in enumerate(jobs)})
        again = {n: epochs for n, fitted in first.items() if (epochs := _epochs_of_refit(settings, fitted.done))}
        final = {n: fitted for n, fitted in first.items() if n not in again}
        final |= fit(
            {
                n: jobs[n].opens("pooled", jobs[n].run.state_folder / "refit", stop_after=epochs)
                for n, epochs in again.items()
            }
        )
        for n, fitted in final.items():
            jobs[n].write(first[n], fitted)
    return sorted(final)


def _fit_stacked(passes: dict[int, Callable[[], _Pass]], *, same_loss: bool) -> dict[int, _Fitted]:
    """Open the passes of runs, by number, and train them as one; of those that got to the end, what came out."""
    opened: dict[int, _Pass] = {}
    for n, opens in passes.items():
        opened[n] = opens()
        opened[n].data.share_images(next(iter(opened.values())).data)
    trainers = {n: each.trainer for n, each in opened.items() if each.trainer}
    finished = fit_stacked(list(trainers.values()), same_loss=same_loss) if trainers else []
    return {n: opened[n].fitted(trainer.progress) for n, trainer in trainers.items() if trainer in finished}


def _epochs_of_refit(settings: EncoderSettings, done: Progress) -> int:
    """Epochs to train for again on training and validation images; 0: not at all."""
    return done.best_epoch + 1 if settings.training.selection == "refit" and done.history else 0


@contextlib.contextmanager
def _workplace(
    runs: Sequence[Ordered], device: str, threads: int | None, processes: Processes
) -> Iterator[tuple[torch.device, Callable[[], bool]]]:
    """Folders and device for training `runs`: the device, and what tells whether to stop."""
    if threads is not None:
        torch.set_num_threads(threads)
    deterministic = runs[0].settings.training.deterministic
    with contextlib.ExitStack() as held:
        for run in runs if processes.first else ():
            held.enter_context(_only_one(run.state_folder))
        chosen = held.enter_context(claim_device(device))
        held.enter_context(torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []))
        held.enter_context(backend(deterministic=deterministic))
        should_stop = held.enter_context(stop_requests())
        for run in runs if processes.first else ():
            _check_writable(run.run_folder)
        processes.require_own_devices(chosen)
        if chosen.type == "cpu":
            keep_freed_memory()
        yield chosen, should_stop
    for run in runs if processes.first else ():
        for folder in (run.state_folder / "refit", run.state_folder):
            with contextlib.suppress(OSError):
                folder.rmdir()


@dataclass(frozen=True)
class Ordered:
    """A run to be trained: settings, prepared dataset, where outputs and checkpoints go.

    `on_epoch` is called with every row of the history; `code` is module -> digest of the components' code.
    """

    settings: EncoderSettings
    prepared_folder: Path
    run_folder: Path
    state_folder: Path
    on_epoch: Callable[[dict[str, Any]], None] | None = None
    code: Mapping[str, str] | None = None


@dataclass(frozen=True)
class _Fitted:
    """An encoder and its loss after training; `done` is empty where there was nothing to train."""

    data: TrainingData
    encoder: Encoder
    selected: Weights
    last: Weights
    done: Progress
    checkpoints: Checkpoints


@dataclass(frozen=True)
class _Pass:
    """Data, encoder and loss with initial weights, and what trains them; None where there is nothing to train."""

    data: TrainingData
    encoder: Encoder
    loss: Loss | None
    checkpoints: Checkpoints
    trainer: Trainer | None

    def fitted(self, done: Progress) -> _Fitted:
        """What came out, once the trainer is `done`."""
        last = weights_of(self.encoder, self.loss)
        return _Fitted(
            self.data, self.encoder, self.trainer.best if self.trainer else last, last, done, self.checkpoints
        )


@dataclass(frozen=True)
class _Job:
    """What the passes of one run share."""

    run: Ordered
    device: torch.device
    processes: Processes
    options: dict[str, Any]

    def fit(self, role: Role, state_folder: Path, *, stop_after: int | None = None) -> _Fitted:
        """Train from the run's initial weights on the splits `role` may see."""
        opened = self.open(role, state_folder, stop_after=stop_after)
        return opened.fitted(opened.trainer.fit() if opened.trainer else Progress())

    def open(self, role: Role, state_folder: Path, *, stop_after: int | None = None) -> _Pass:
        """Data of the splits `role` may see, initial weights and a trainer that has not begun."""
        settings, training = self.run.settings, self.run.settings.training
        given: dict[str, Any] = {"seed": settings.seed, "device": self.device, "processes": self.processes}
        view = training_view(settings, self.run.prepared_folder)
        data = TrainingData(self.run.prepared_folder, training, view=view, role=role, **given)
        sizes = data.in_channels, data.image_size, data.num_classes, len(data.labels)
        encoder, loss = create_network(settings, *sizes, self.device)
        checkpoints = Checkpoints(state_folder)
        if loss is None or training.epochs == 0:
            return _Pass(data, encoder, loss, checkpoints, None)
        if self.processes.several and training.batch_norm == "train":
            synchronise_batch_norm(encoder, self.device)
        trainer = Trainer(
            training,
            encoder,
            loss,
            data,
            seed=settings.seed,
            device=self.device,
            checkpoints=checkpoints,
            identity=_identity(settings, data, encoder, self.run.code),
            stop_after=stop_after,
            on_epoch=self.run.on_epoch,
            **self.options,
        )
        return _Pass(data, encoder, loss, checkpoints, trainer)

    def opens(self, role: Role, state_folder: Path, *, stop_after: int | None = None) -> Callable[[], _Pass]:
        """Function that does `open`."""
        return functools.partial(self.open, role, state_folder, stop_after=stop_after)

    def write(self, first: _Fitted, final: _Fitted) -> None:
        """Write the run folder, with the history and choice of the `first` pass and the weights of the `final` one."""
        if not self.processes.first:
            return
        machine = hardware(self.device) | {"processes": self.processes.count}
        record = _record(self.run.settings, first, final) | {"versions": versions(), "hardware": machine}
        folder = RunFolder(self.run.run_folder)
        folder.write_training(final.selected, final.last, first.done.history, record, HISTORY_COLUMNS)
        for fitted in (final, first):
            fitted.checkpoints.remove()


def _record(settings: EncoderSettings, first: _Fitted, final: _Fitted) -> dict[str, Any]:
    """What `encoder.yaml` says about the run itself: how the epoch was chosen, and what the weights are."""
    data, encoder, done = final.data, final.encoder, first.done
    return {
        "settings": settings.plain(),
        "encoder": {
            "dim": encoder.dim,
            "in_channels": data.in_channels,
            "image_size": data.image_size,
            "num_classes": data.num_classes,
            "num_images": len(data.labels),
            "pretrained_sha256": encoder.pretrained_digest,
        },
        "training": {
            "epochs": done.epoch,
            "steps": done.step,
            "selected_epoch": done.best_epoch if done.history else None,
            "selection": CHOSEN_ON[settings.training.selection],
            "selection_metric": settings.training.selection_metric,
            "selected_value": max(done.metrics, default=None),
            "selection_warning": done.warning,
            "seconds": round(sum(row["seconds"] for row in done.history), 2),
        },
        "data_digest": data.digest,
    }


def _identity(
    settings: EncoderSettings, data: TrainingData, encoder: Encoder, code: Mapping[str, str] | None = None
) -> str:
    """Digest of everything that decides the weights; a checkpoint of another identity is not continued."""
    decisive = settings.plain()
    decisive.pop("prepared")
    for aside in ("shard_proxies", "stack"):
        decisive["training"].pop(aside, None)
    facts: dict[str, Any] = {"data": data.digest, "pretrained": encoder.pretrained_digest, "torch": torch.__version__}
    facts["code"] = sorted(set((code or {}).values()))
    return digest_of({"settings": decisive, **facts})


@contextlib.contextmanager
def _only_one(state_folder: Path) -> Iterator[None]:
    """Keep a second process from training the same run at the same time."""
    try:
        state_folder.mkdir(parents=True, exist_ok=True)
        lock = state_folder / "lock"
        lock.touch()
    except OSError as error:
        raise FileError(f"cannot write {state_folder}: {error.strerror}; make the folder writable.") from error
    with try_lock(lock) as held:
        if not held:
            raise FileError(
                f"another process is training this run (it holds {lock}); wait for it to end, or stop it, and "
                "run again: training goes on from its last checkpoint."
            )
        yield
        lock.unlink(missing_ok=True)


def _check_writable(folder: Path) -> None:
    """Fail before training, not after it, where results cannot be written."""
    probe = folder / ".writable"
    with atomic_path(probe):
        pass
    probe.unlink(missing_ok=True)
