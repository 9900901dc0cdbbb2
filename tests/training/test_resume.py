"""SIGKILL at any step, run again: the final weights are those of the uninterrupted run, bit for bit."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_helpers import quick_settings

from probmetric.training.run import train_run

SETTINGS = {
    "epochs": 4,
    "loss": {"name": "proxy_anchor"},
    "backbone": {"name": "compact", "width": 4, "dropout": 0.2},
    "optimizer": "adamw",
    "schedule": "cosine",
}

# A job that ends itself with SIGKILL before, in or after step argv[2], or while writing a file for the argv[3]-th time.
JOB = """
import json, os, signal, sys
from pathlib import Path
from probmetric.config import EncoderSettings
from probmetric.training.run import train_run
from probmetric.training import loop
folder, step, write = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def die():
    os.kill(os.getpid(), signal.SIGKILL)
whole_step, fsync, written = loop.Trainer._step, os.fsync, 0
def killing_step(self, *batch):
    asked = whole_step(self, *batch)
    if self.progress.step == step:
        die()
    return asked
def killing_fsync(handle):
    global written
    written += 1
    if written == write:
        die()
    fsync(handle)
loop.Trainer._step, os.fsync = killing_step, killing_fsync
settings = EncoderSettings(**json.loads((folder / "settings.json").read_text()))
train_run(settings, prepared_folder=sys.argv[4], run_folder=folder / "run", state_folder=folder / "state",
          threads=1, checkpoint_steps=2)
"""


def job(folder: Path, prepared: Path, step: int = -1, write: int = -1) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", JOB, str(folder), str(step), str(write), str(prepared)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def outcome(process: subprocess.Popen[bytes]) -> int:
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode


def history_without_times(path: Path) -> list[dict[str, str]]:
    volatile = ("seconds", "images_per_second", "peak_memory_mb")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    return [{key: value for key, value in row.items() if key not in volatile} for row in rows]


@pytest.mark.slow
@pytest.mark.processes
def test_killed_runs_end_in_the_same_bits(tmp_path: Path, digits: Path) -> None:
    settings = quick_settings(**SETTINGS)
    (tmp_path / "settings.json").write_text(json.dumps(settings.plain()))
    train_run(settings, prepared_folder=digits, run_folder=tmp_path / "whole", state_folder=tmp_path / "s", threads=1)

    steps = int(history_without_times(tmp_path / "whole" / "history.csv")[-1]["step"])
    first, second = sorted(random.sample(range(1, steps - 1), 2))
    assert outcome(job(tmp_path, digits, step=0)) == -signal.SIGKILL
    assert outcome(job(tmp_path, digits, step=first)) == -signal.SIGKILL
    assert outcome(job(tmp_path, digits, write=2)) == -signal.SIGKILL, "killed while a checkpoint was being written"
    assert outcome(job(tmp_path, digits, step=second)) in (0, -signal.SIGKILL)
    assert outcome(job(tmp_path, digits)) == 0

    for name in ("model.safetensors", "model_last.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    whole, resumed = (history_without_times(tmp_path / run / "history.csv") for run in ("whole", "run"))
    assert resumed == whole
    assert not (tmp_path / "state").exists(), "the state is removed when training is finished"


@pytest.mark.slow
@pytest.mark.processes
def test_kill_from_outside_at_a_random_moment(tmp_path: Path, digits: Path) -> None:
    settings = quick_settings(**SETTINGS | {"epochs": 12, "loss": {"name": "contrastive"}, "optimizer": "sgd"})
    (tmp_path / "settings.json").write_text(json.dumps(settings.plain()))
    process = job(tmp_path, digits)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "state").glob("step-*.checkpoint")) and time.monotonic() < deadline:
        assert process.poll() is None, "the job ended before its first checkpoint"
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.3))
    process.kill()
    outcome(process)
    assert outcome(job(tmp_path, digits)) == 0
    train_run(settings, prepared_folder=digits, run_folder=tmp_path / "whole", state_folder=tmp_path / "s", threads=1)
    same = [(tmp_path / run / "model_last.safetensors").read_bytes() for run in ("run", "whole")]
    assert same[0] == same[1]
