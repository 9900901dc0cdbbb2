"""What a cluster does to running jobs, done to them by a real daemon: each ends in the undisturbed weights."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from slurm_helpers import ON_SLURM, PROFILE, fit_to_one_node, jobs_of, running_for, scontrol, wait_for

pytestmark = ON_SLURM

# A new loss is one file; this one takes its time while the file `slow` exists, and is otherwise the softmax.
SLOW_LOSS = '''"""Softmax that can be slowed down."""

import time
from pathlib import Path

from probmetric.losses import register
from probmetric.losses.softmax import Softmax


@register
class SlowSoftmax(Softmax):
    """Softmax that can be slowed down."""

    def compute(self, embeddings, labels, generator):
        if Path("slow").exists():
            time.sleep(0.4)
        return super().compute(embeddings, labels, generator)
'''
TRAINING = {"epochs": 80, "steps_per_epoch": 4, "batch_size": 20, "images_per_class": 4}
REQUEUED, CANCELLED, TIMED_OUT = (f"digits/slow/seed{seed}" for seed in range(3))


@pytest.fixture
def slowed(fresh):
    """A workspace whose only method trains for two minutes while the file `slow` is there, and for seconds without."""
    (fresh.folder / "src/probmetric/losses/slow_softmax.py").write_text(SLOW_LOSS)
    method = {"loss": "slow_softmax", "backbone": {"name": "compact", "width": 4}, "training": TRAINING}
    fresh.edit_yaml("params.yaml", lambda params: params.update(methods=params["methods"] | {"slow": method}, ood={}))
    fresh.edit_yaml(
        "workflow/experiments/smoke.yaml",
        lambda spec: spec.update(runs=[{"datasets": ["digits"], "methods": ["slow"], "seeds": [0, 1, 2]}]),
    )
    fresh.command("probmetric", "data", "ensure", "digits", **own_source(fresh.folder))
    return fresh


def own_source(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(folder / "src")}


def weights(folder: Path, run: str) -> list[bytes]:
    return [(folder / "results" / run / name).read_bytes() for name in ("model.safetensors", "model_last.safetensors")]


def test_requeue_cancel_and_time_limit_end_in_the_undisturbed_weights(slowed, tmp_path):
    runs = [REQUEUED, CANCELLED, TIMED_OUT]
    for run in runs:
        slowed.command("probmetric", "run", run, **own_source(slowed.folder))
    expected = {run: weights(slowed.folder, run) for run in runs}
    (slowed.folder / "results").rename(tmp_path / "undisturbed")

    (slowed.folder / "slow").touch()
    # SLURM looks every half minute, so that the signal comes between 29 s and the limit.
    short = {"runtime": "attempt if 'seed2' in wildcards.run else 60", "slurm_extra": "'--signal=TERM@1'"}
    fit_to_one_node(slowed, gpu=0, **short)
    targets = [f"results/{run}/metrics.json" for run in runs]
    command = ["snakemake", *targets, "--config", "experiments=smoke", "--workflow-profile", PROFILE]
    with (tmp_path / "output").open("w") as output:
        environment = os.environ | own_source(slowed.folder)
        workflow = subprocess.Popen(command, cwd=slowed.folder, env=environment, stdout=output, stderr=output)
    try:
        states = [slowed.folder / "state/training" / run for run in runs]
        wait_for(lambda: all(list(state.glob("step-*")) for state in states), "three first checkpoints", 120)
        numbers = {run: running_for(run.replace("/", "_"))[0].number for run in runs}
        subprocess.run(["scontrol", "requeue", str(numbers[REQUEUED])], check=True)
        subprocess.run(["scancel", str(numbers[CANCELLED])], check=True)
        wait_for(lambda: scontrol(numbers[REQUEUED])["JobState"] == "PENDING", "back in the queue", 60)
        subprocess.run(["scontrol", "update", f"JobId={numbers[REQUEUED]}", "StartTime=now"], check=True)
        wait_for(lambda: scontrol(numbers[TIMED_OUT])["JobState"] in ("FAILED", "TIMEOUT"), "the time limit", 150)
        (slowed.folder / "slow").unlink()
        assert workflow.wait(timeout=300) == 0, (tmp_path / "output").read_text()[-6000:]
    finally:
        workflow.terminate()
        workflow.wait()

    for run in runs:
        assert weights(slowed.folder, run) == expected[run], run
        assert "resumed at" in (slowed.folder / "logs/run" / f"{run}.log").read_text()
    requeued = scontrol(numbers[REQUEUED])
    assert (requeued["Restarts"], requeued["JobState"]) == ("1", "COMPLETED"), "the same job, started again by SLURM"
    assert scontrol(numbers[CANCELLED])["JobState"] == "CANCELLED"
    jobs = jobs_of((tmp_path / "output").read_text())
    limits = [job.limit for job in jobs if TIMED_OUT.replace("/", "_") in job.about]
    assert len(limits) >= 2, "Snakemake submitted it again"
    assert limits == [f"{attempt}:00" for attempt in range(1, len(limits) + 1)], "with every attempt the time grows"


def test_a_failing_job_stops_only_its_own_branch_and_is_named(workspace):
    """On the cluster as on one machine: the rest is finished, the summary names the job, its log and the reason."""
    broken = {
        "loss": "cosine",
        "training": {"epochs": 2, "learning_rate": 1e4, "weight_decay": 1.0, "optimizer": "sgd"},
    }
    workspace.edit_yaml("params.yaml", lambda params: params["methods"].update(broken=broken))
    workspace.edit_smoke(methods=["broken", "cosine"], seeds=[7])
    fit_to_one_node(workspace)
    output = workspace.snakemake("--workflow-profile", PROFILE, "--jobs", "3", "--retries", "1", check=False)
    whole = workspace.folder / "results/digits/cosine+training.epochs=2/seed7"
    assert (whole / "metrics.json").exists(), output[-8000:]
    assert not (workspace.folder / "results/digits/broken+training.epochs=2/seed7/model.safetensors").exists()
    summary = output.partition("1 job(s) failed")[2]
    assert "run digits/broken+training.epochs=2/seed7" in summary, output[-4000:]
    log = "logs/run/digits/broken+training.epochs=2/seed7.log"
    assert f"log: {log}" in summary
    assert "not finite" in summary, "the log's last line is shown"
    assert "not finite" in (workspace.folder / log).read_text()
    assert "all jobs that do not need them were done" in summary
    assert "logs/slurm/rule_run" in output, "SLURM's own log is named in the failed job's message"
