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
    fit_to_one_node(workspace)
    output = workspace.snakemake(*SUBMIT)
    for run in RUNS:
        name = f"results/{run}/metrics.json"
        assert (workspace.folder / name).read_text() == (finished.folder / name).read_text()
    assert (workspace.folder / "reports/smoke/index.html").exists()

    jobs = jobs_of(output)
    assert {job.state for job in jobs} == {"COMPLETED"}
    trained = [job for job in jobs if job.about.startswith("rule_train")]
    measured = [job for job in jobs if job.about.startswith("rule_measure")]
    assert len(trained) == 2, "laplace borrows the encoder of contrastive"
    assert len(measured) == 3, "embed, evaluate and fit-posterior of a run are one job"
    assert len(jobs) == 5, "tables, figures, page and MLflow are made where Snakemake runs"
    assert {job.partition for job in jobs} == {"gpu"}
    assert {job.limit for job in trained} == {"1-00:00:00"}
    assert {job.limit for job in measured} == {"6:00:00", "10:00:00"}, "the sum of the group's steps"
    assert {job.memory for job in trained} == {"2000M"}
    asked = scontrol(trained[0].number)
    assert (asked["TresPerJob"], asked["Requeue"]) == ("gres:gpu:1", "1")
    assert workspace.planned() == {}


def test_a_job_without_a_gpu_goes_to_the_other_partition(workspace):
    """Only the metrics are missing: no GPU is asked for, and the partitions file knows a better place for that."""
    (workspace.folder / "results" / RUNS[2] / "metrics.json").unlink()
    fit_to_one_node(workspace)
    (job,) = jobs_of(workspace.snakemake(*SUBMIT, f"results/{RUNS[2]}/metrics.json"))
    assert (job.partition, job.limit, job.state) == ("cpu", "2:00:00", "COMPLETED")


def test_gpu_jobs_are_given_distinct_devices(tmp_path):
    both = f"[ $(ls {tmp_path} | wc -l) = 2 ]"
    script = f"echo $CUDA_VISIBLE_DEVICES; touch {tmp_path}/$SLURM_JOB_ID; until {both}; do sleep 0.2; done"
    jobs = [
        subprocess.Popen(["srun", "--gpus=1", "--mem=100", "bash", "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sorted(job.communicate(timeout=180)[0].strip() for job in jobs) == ["0", "1"]
