"""Training as a step of the workflow: settings and a prepared dataset in, a run folder out.

    run folder      selected and last weights, history, record (`probmetric.runs.folder`)
    state folder    checkpoints, and a lock beside it; removed when the run is finished

Outputs appear whole or not at all, and only when training is finished.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from probmetric.config import EncoderSettings, Training
from probmetric.data.choosing import Role
from probmetric.io import alone, atomic_path, digest_of
from probmetric.models import Encoder
from probmetric.runs.folder import RunFolder
from probmetric.training.assemble import Weights, assemble, weights_of
from probmetric.training.backend import backend
from probmetric.training.batch_norm import synchronise_batch_norm
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images, training_view
from probmetric.training.device import claim_device, keep_freed_memory
from probmetric.training.features import FeatureStore, on_features, start_head
from probmetric.training.loop import Conduct, Trainer
from probmetric.training.processes import ALONE, Processes
from probmetric.training.progress import HISTORY_COLUMNS, Progress
from probmetric.training.provenance import hardware, versions

TRAINED_AS: dict[str, Role] = {"validation": "validation", "refit": "validation", "as_published": "leaking"}
CHOSEN_ON = {
    "validation": "validation images",
    "refit": "validation images, then trained again on training and validation images",
    "as_published": "TEST images (leaks, as published)",
}


class Watching(TypedDict, total=False):
    """Options of `train_run` that do not change its result; see there."""

    device: str
    threads: int | None
    checkpoint_steps: int | None
    on_epoch: Callable[[dict[str, Any]], None] | None
    processes: Processes
    features: Path | None


def train_run(
    settings: EncoderSettings,
    *,
    prepared_folder: str | Path,
    run_folder: str | Path,
    state_folder: str | Path,
    code: Mapping[str, str] | None = None,
    **watching: Unpack[Watching],
) -> None:
    """Train an encoder, or go on with an interrupted training, and write the run folder.

    Without a loss, or with 0 epochs, it writes the untrained encoder.

    Args:
        settings: the run's settings.
        prepared_folder: the prepared dataset.
        run_folder: where the outputs go.
        state_folder: where checkpoints are kept during training; outside the workflow's declared outputs.
        code: module -> digest of the components' code; a checkpoint of other code is not continued.
        **watching: options that change the result by rounding at most:
            device: "auto" (default), "cpu", "cuda" or "cuda:1".
            threads: CPU threads; None (default) leaves PyTorch's setting. Results are bit-equal for equal counts.
            checkpoint_steps: also checkpoint every so many steps; None (default): whenever two minutes have passed.
            on_epoch: called with every row of the history, for instance to show live curves.
            features: folder of features that runs with a frozen trunk share; None (default) shares none.
            processes: the processes that train this run together (`processes.joined`); only the first one writes.

    Raises:
        FileError: bad data or folder, or another process is training this run.
        NonFiniteLossError: the loss became NaN or infinite; no output is written.
        TrainingStoppedError: SIGTERM arrived (a scheduler's time limit, a cancelled workflow); the state is saved.
    """
    processes, state = watching.get("processes", ALONE), Path(state_folder)
    writes = Path(run_folder) if processes.first else None
    with contextlib.ExitStack() as held:
        if writes:
            held.enter_context(alone(state, "is training this run, which goes on from its last checkpoint", wait=False))
        device = held.enter_context(_workplace(settings.training, watching))
        if writes:
            _check_writable(writes)
        run = _Run(settings, Path(prepared_folder), device, processes, code or {}, watching.get("features"))
        conduct = {
            "checkpoint_steps": watching.get("checkpoint_steps"),
            "on_epoch": watching.get("on_epoch"),
            "should_stop": held.enter_context(_stop_requests()),
        }
        first = run.fit(TRAINED_AS[settings.training.selection], state, conduct)
        final = first
        fitted = first.done.history or settings.training.head_init != "random"
        if settings.training.selection == "refit" and fitted:
            final = run.fit("pooled", state / "refit", conduct, first=first.done)
        if writes:
            run.write(writes, first, final)
    for folder in (state / "refit", state) if writes else ():
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _workplace(training: Training, watching: Watching) -> Iterator[torch.device]:
    """Yield the device to train on, with its threads, kernels and random numbers set up for the block."""
    if (threads := watching.get("threads")) is not None:
        torch.set_num_threads(threads)
    with (
        claim_device(watching.get("device", "auto")) as device,
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        backend(deterministic=training.deterministic),
    ):
        watching.get("processes", ALONE).require_own_devices(device)
        if device.type == "cpu":
            keep_freed_memory()
        yield device


@contextlib.contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM has arrived in the block; then restore the previous handler.

    SLURM sends SIGTERM before a time limit kills a job, Snakemake when a workflow is cancelled. Signals reach only the
    main thread: in another thread no handler is installed, and the function returns False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield bool
        return
    stop = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    try:
        yield stop.is_set
    finally:
        signal.signal(signal.SIGTERM, previous)


@dataclass(frozen=True)
class _Fitted:
    """An encoder and its loss after training; `done` is empty if there was no training."""

    data: TrainingData
    encoder: Encoder
    selected: Weights
    last: Weights
    done: Progress
    checkpoints: Checkpoints


@dataclass(frozen=True)
class _Run:
    """What the trainings of one run share; a second training follows if the settings ask for a refit."""

    settings: EncoderSettings
    prepared_folder: Path
    device: torch.device
    processes: Processes
    code: Mapping[str, str]
    features: Path | None

    def fit(
        self, role: Role, state_folder: Path, conduct: Mapping[str, Any], *, first: Progress | None = None
    ) -> _Fitted:
        """Train from the run's initial weights on the splits `role` may see."""
        settings, training = self.settings, self.settings.training
        view = training_view(settings, self.prepared_folder)
        images = training_images(self.prepared_folder, training, view=view, role=role)
        data = TrainingData(images, training, seed=settings.seed, device=self.device, processes=self.processes)
        encoder, loss, _ = assemble(settings, data.sizes, self.device)
        root = self.features if settings.pretrained else None
        start_head(encoder, data, None if root is None else FeatureStore.of(settings, encoder, data.eye, root))
        trained, read = on_features(settings, encoder, images, data, self.features)
        checkpoints = Checkpoints(state_folder)
        if loss is None or training.epochs == 0:
            weights = weights_of(encoder, loss)
            return _Fitted(data, encoder, weights, weights, Progress(), checkpoints)
        if self.processes.several and training.batch_norm == "train":
            synchronise_batch_norm(trained, self.device)
        identity = _identity(settings, data, encoder, self.code)
        trainer = Trainer(trained, loss, read, Conduct(checkpoints, identity, **conduct), first=first)
        done = trainer.fit()
        whole = weights_of(encoder, loss)  # the trainer may have had the head only
        return _Fitted(data, encoder, whole | trainer.best, whole | trainer.last, done, checkpoints)

    def write(self, folder: Path, first: _Fitted, final: _Fitted) -> None:
        """Write the run folder: history and selected epoch of the `first` training, weights of the `final` one."""
        machine = hardware(self.device) | {"processes": self.processes.count}
        record = _record(self.settings, first, final) | {"versions": versions(), "hardware": machine}
        run = RunFolder(folder)
        run.write_training(final.selected, final.last, first.done.history, record, HISTORY_COLUMNS)
        for fitted in (final, first):
            fitted.checkpoints.remove()


def _record(settings: EncoderSettings, first: _Fitted, final: _Fitted) -> dict[str, Any]:
    """Return the record for `encoder.yaml`: how the epoch was chosen, and what the weights are."""
    data, encoder, done = final.data, final.encoder, first.done
    return {
        "settings": settings.plain(),
        "encoder": {
            "dim": encoder.dim,
            **vars(data.sizes),
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


def _identity(settings: EncoderSettings, data: TrainingData, encoder: Encoder, code: Mapping[str, str]) -> str:
    """Return the digest of everything that decides the weights; a checkpoint of another identity is not continued."""
    decisive = settings.plain()
    decisive.pop("prepared")
    facts: dict[str, Any] = {"data": data.digest, "pretrained": encoder.pretrained_digest, "torch": torch.__version__}
    facts["code"] = sorted(set(code.values()))
    return digest_of({"settings": decisive, **facts})


def _check_writable(folder: Path) -> None:
    """Raise an error before training if results cannot be written."""
    probe = folder / ".writable"
    with atomic_path(probe):
        pass
    probe.unlink(missing_ok=True)
