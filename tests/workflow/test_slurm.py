"""The same workflow through a real SLURM daemon (`.ci/slurm` starts one on a single node with two pretended GPUs)."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from slurm_helpers import PROFILE, fit_to_one_node, jobs_of, needs_slurm, scontrol

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm"), pytest.mark.workflow, pytest.mark.slow, needs_slurm]

SUBMIT = ["--workflow-profile", PROFILE, "--slurm-partition-config", f"{PROFILE}/partitions.yaml", "--jobs", "3"]
RUNS = [f"digits/{method}+training.epochs=2/seed0" for method in ("contrastive", "laplace", "cosine")]


def test_smoke_runs_through_slurm(finished, workspace):
    """Everything computed on the cluster equals, to the bit, what the same workflow computed on this machine."""
    shutil.rmtree(workspace.folder / "results")
    shutil.rmtree(workspace.folder / "reports")
    fit_to_one_node(workspace, recorded=True)
    output = workspace.snakemake(*SUBMIT)
    for run in RUNS:
        name = f"results/{run}/metrics.json"
        assert (workspace.folder / name).read_text() == (finished.folder / name).read_text()
    assert (workspace.folder / "reports/smoke/index.html").exists()

    jobs = jobs_of(output)
    assert {job.state for job in jobs} == {"COMPLETED"}
    trained = [job for job in jobs if job.about.startswith("rule_train")]
    measured = [job for job in jobs if job.about.startswith("rule_measure")]
    scored = [job for job in jobs if job.about.startswith("rule_score")]
    assert len(trained) == 2, "laplace borrows the encoder of contrastive"
    assert len(measured) == 3, "fit-posterior and embed of a run are one job"
    assert len(scored) == 3
    assert len(jobs) == 8, "tables, figures, page and MLflow are made where Snakemake runs"
    assert {job.partition for job in trained + measured} == {"gpu"}
    assert {job.partition for job in scored} == {"cpu"}, "no GPU is held while numbers are computed without one"
    assert all("TresPerJob" not in scontrol(job.number) for job in scored)
    for job in jobs:  # `finished` is of this machine: its times and sizes are known
        assert in_minutes(job.limit) < 30, f"{job.about}: {job.limit}"
        assert 1000 < int(job.memory.removesuffix("M")) < 6000, f"{job.about}: {job.memory}"
    asked = scontrol(trained[0].number)
    assert (asked["TresPerJob"], asked["Requeue"]) == ("gres:gpu:1", "1")
    assert workspace.planned() == {}


def test_one_job_is_a_worker_for_many_runs(finished, workspace):
    """With `runs_per_job` one job makes them all, with the same results and each with its own logs."""
    shutil.rmtree(workspace.folder / "results")
    shutil.rmtree(workspace.folder / "logs")
    fit_to_one_node(workspace)
    workspace.edit_yaml("params.yaml", lambda params: params.update(runs_per_job=3))
    (job,) = jobs_of(workspace.snakemake(*SUBMIT))
    assert (job.partition, job.state) == ("gpu", "COMPLETED")
    for run in RUNS:
        name = f"results/{run}/metrics.json"
        assert (workspace.folder / name).read_text() == (finished.folder / name).read_text()
        assert (workspace.folder / f"logs/evaluate/{run}.log").exists()
    assert workspace.planned() == {}


def in_minutes(limit: str) -> int:
    """`squeue`'s way to write a limit: 1-00:00:00, 6:00:00, 12:00."""
    days, _, rest = limit.rpartition("-")
    fields = [int(part) for part in rest.split(":")]
    hours, minutes, _seconds = [0] * (3 - len(fields)) + fields
    return int(days or 0) * 1440 + hours * 60 + minutes


def test_a_job_of_a_kind_never_timed_asks_for_what_is_enough(workspace):
    """Only the metrics are missing, and no record says what they take."""
    shutil.rmtree(workspace.folder / "benchmarks")
    (workspace.folder / "results" / RUNS[2] / "metrics.json").unlink()
    fit_to_one_node(workspace, recorded=True)
    (job,) = jobs_of(workspace.snakemake(*SUBMIT, f"results/{RUNS[2]}/metrics.json"))
    assert (job.partition, job.limit, job.memory, job.state) == ("cpu", "2:00:00", "8000M", "COMPLETED")


def test_gpu_jobs_are_given_distinct_devices(tmp_path):
    both = f"[ $(ls {tmp_path} | wc -l) = 2 ]"
    script = f"echo $CUDA_VISIBLE_DEVICES; touch {tmp_path}/$SLURM_JOB_ID; until {both}; do sleep 0.2; done"
    jobs = [
        subprocess.Popen(["srun", "--gpus=1", "--mem=100", "bash", "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sorted(job.communicate(timeout=180)[0].strip() for job in jobs) == ["0", "1"]
