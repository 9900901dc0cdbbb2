"""The whole workflow killed while it runs, locks left behind, outputs that appear late: the undisturbed results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probmetric.io import read_yaml, write_yaml

pytestmark = [pytest.mark.slow, pytest.mark.workflow]

ROOT = Path(__file__).parents[2]
RUN = "digits/contrastive+training.epochs=6/seed0"
RESULTS = ("metrics.json", "curves.json", "model.safetensors", "embeddings/test.safetensors")
SNAKEMAKE = [sys.executable, "-m", "snakemake", f"results/{RUN}/metrics.json", "--cores", "1"]

# Runs a command; the metrics it wrote become visible three seconds after it has ended.
LATE = """
set -e
"$@"
metrics=results/$3/metrics.json
mv "$metrics" hidden
(sleep 3; mv hidden "$metrics") > /dev/null 2>&1 < /dev/null &
"""


@pytest.fixture
def checkout(tmp_path):
    """A clone whose only experiment is one run."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        params = read_yaml(folder / "params.yaml")
        write_yaml(folder / "params.yaml", params | {"experiments": ["single"], "ood": {}})
        experiment = {
            "title": "Single",
            "description": "One run.",
            "runs": [{"datasets": ["digits"], "methods": ["contrastive"], "seeds": [0], "set": {"training.epochs": 6}}],
            "metrics": ["retrieval/recall_at_1"],
            "figures": ["learning_curves"],
        }
        write_yaml(folder / "workflow/experiments/single.yaml", experiment)
        return folder

    return make


def call(folder: Path, *command: str, check: bool = True) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert not check or done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def results(folder: Path) -> dict[str, bytes]:
    return {name: (folder / "results" / RUN / name).read_bytes() for name in RESULTS}


def test_killed_as_a_whole_then_late_outputs(checkout):
    """SIGKILL for Snakemake and its jobs while a run trains. The lock it leaves is named, with the way out."""
    undisturbed = checkout("undisturbed")
    call(undisturbed, *SNAKEMAKE)

    folder = checkout("killed")
    with (folder / "output").open("w") as output:
        workflow = subprocess.Popen(SNAKEMAKE, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    deadline = time.monotonic() + 240
    # A checkpoint that is only being written lies in a folder ".step-....tmp" of its own: it doesn't count.
    while not list((folder / "state/training").glob("**/[!.]*/step-*.checkpoint")):
        assert workflow.poll() is None, (folder / "output").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(workflow.pid, signal.SIGKILL)
    workflow.wait()
    assert not (folder / "results" / RUN / "model.safetensors").exists(), "killed too late to show anything"

    locked = call(folder, *SNAKEMAKE, check=False)
    assert "lock" in locked.lower()
    assert "--unlock" in locked
    call(folder, *SNAKEMAKE, "--unlock")

    (folder / "late.sh").write_text(LATE)
    rules = folder / "workflow/rules/run.smk"
    before = rules.read_text()
    rules.write_text(before.replace("exec probmetric run", "exec bash late.sh probmetric run"))
    assert rules.read_text() != before
    call(folder, *SNAKEMAKE)
    assert results(folder) == results(undisturbed)
    assert "resumed at" in (folder / "logs/run" / f"{RUN}.log").read_text()


LOCKS = {
    "of a process that is gone": json.dumps({"write": {"{prepared}": {"pid": 4194303, "cmd": "dvc repro"}}}),
    "half-written": '{"write": {"{prepared}": {"pid":',
}


@pytest.mark.parametrize("case", LOCKS)
def test_a_dvc_lock_left_behind(checkout, case):
    """DVC forgets a process that is gone, and asks for a half-written list of locks to be deleted."""
    folder = checkout("locked")
    lock = folder / ".dvc/tmp/rwlock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(LOCKS[case].replace("{prepared}", str(folder / "data/prepared/digits")))
    (folder / ".dvc/tmp/lock").touch()
    ensure = [sys.executable, "-m", "probmetric.cli", "data", "ensure", "digits"]
    if case == "half-written":
        failed = subprocess.run(ensure, cwd=folder, check=False, capture_output=True, text=True)
        assert failed.returncode
        assert "rwlock" in failed.stderr
        assert "delete it and run the same command again" in failed.stderr
        lock.unlink()
    call(folder, *ensure)
    assert (folder / "data/prepared/digits/digest").exists()
