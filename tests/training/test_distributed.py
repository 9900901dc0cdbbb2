"""One run on two processes is the run on one: loss, gradients, weights; and what happens when a process dies."""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import process_worker
import psutil
import pytest
import torch
from process_worker import assert_same, result
from training_helpers import quick_settings, run_as_ranks

from probmetric.config import RunSettings
from probmetric.io import read_yaml
from probmetric.runs import steps as pipeline
from probmetric.runs.plan import Run, RunPlan
from probmetric.training.checkpoint import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.processes]

PROCESSES = 2
PARAMS = Path(__file__).parents[2] / "params.yaml"
RUN = "digits/quick/seed0"
STOPPED_AFTER = 7


@pytest.fixture(scope="module")
def together(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes computed: every loss in turn, and the rest of a run that one process had begun."""
    folder = tmp_path_factory.mktemp("together")
    process_worker.train("contrastive", digits, folder / "resumed", stop_after=STOPPED_AFTER)
    assert [path.stem for path in Checkpoints(folder / "resumed" / "state").files()] == ["step-000000007"]
    run_as_ranks(PROCESSES, Path(process_worker.__file__), digits, folder)
    return folder


@pytest.mark.parametrize("name", process_worker.LOSSES)
def test_two_processes_compute_the_run_of_one(together: Path, digits: Path, tmp_path: Path, name: str) -> None:
    """Batches of 21 are shared as 11 and 10; the vMF run freezes the first layer for an epoch."""
    expected = process_worker.facts(process_worker.train(name, digits, tmp_path, warmup_epochs=int(name == "vmf")))
    found, other = (result(together, name, rank) for rank in range(PROCESSES))
    assert found.keys() == expected.keys()
    assert_same(found, expected)
    for key in (key for key in found if key.startswith("weight/")):
        assert torch.equal(found[key], other[key]), f"{key} differs between the processes"


def test_two_processes_go_on_with_the_run_of_one(together: Path, digits: Path, tmp_path: Path) -> None:
    expected = process_worker.facts(process_worker.train("contrastive", digits, tmp_path))
    found = result(together, "resumed", 0)
    assert not any(key.startswith("gradient/") for key in found), "the first step is not repeated"
    assert_same(found, {key: value for key, value in expected.items() if not key.startswith("gradient/")})


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "probmetric.cli", *arguments, "--processes", str(PROCESSES)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rank_process(launcher: int, rank: int) -> psutil.Process:
    """The process of `rank` below the launcher."""
    for child in psutil.Process(launcher).children(recursive=True):
        if child.environ().get("RANK") == str(rank):
            return child
    raise AssertionError(f"no process of rank {rank}")


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    state = Checkpoints(folder / "state" / "training" / RUN)
    until = time.monotonic() + 120
    while not state.files():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, "no checkpoint within two minutes"
        time.sleep(0.05)


def test_a_killed_process_ends_the_run_which_then_goes_on(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed on two processes, continued on one, embedded by two and by one: the same files to the bit."""
    settings = quick_settings(epochs=30, loss="proxy_anchor", prepared=str(digits.parent))
    run = RunSettings(**settings.plain(), uncertainty="vmf", ood=["digits"])
    shutil.copy(PARAMS, tmp_path)
    monkeypatch.chdir(tmp_path)
    plan = RunPlan(Run(RUN, RUN, run))
    launcher = start(tmp_path, "run", RUN, "--until", "train", "--plan", str(plan.write()))
    wait_for_checkpoint(tmp_path, launcher)
    rank_process(launcher.pid, 1).send_signal(signal.SIGKILL)
    output = launcher.communicate(timeout=120)[0]
    assert launcher.returncode != 0
    assert "another process of this run ended" in output
    assert "process 1 of 2 was ended by SIGKILL" in output
    assert "Traceback" not in output
    assert not (tmp_path / "results" / RUN / "encoder.yaml").exists()
    assert Checkpoints(tmp_path / "state" / "training" / RUN).files()

    pipeline.train(plan)
    record = read_yaml(tmp_path / "results" / RUN / "encoder.yaml")
    assert record["training"]["steps"] == 30 * 6
    assert record["hardware"]["processes"] == 1
    rows = list(csv.DictReader((tmp_path / "results" / RUN / "history.csv").read_text().splitlines()))
    assert [int(row["epoch"]) for row in rows] == list(range(30))

    embedding = start(tmp_path, "run", RUN, "--until", "embed", "--plan", str(plan.write()))
    output = embedding.communicate(timeout=120)[0]
    assert embedding.returncode == 0, output
    folder = tmp_path / "results" / RUN / "embeddings"
    together = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    pipeline.embed(plan)
    assert together == {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert sorted(together) == [f"{name}.safetensors" for name in ("last", "ood", "test", "val")]
