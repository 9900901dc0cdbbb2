"""The same workflow through a real SLURM daemon (`.ci/slurm` starts one on a single node with two pretended GPUs)."""

from __future__ import annotations

import shutil
import subprocess

from slurm_helpers import ON_SLURM, PROFILE, fit_to_one_node, jobs_of, scontrol

pytestmark = ON_SLURM

SUBMIT = ["--workflow-profile", PROFILE, "--slurm-partition-config", f"{PROFILE}/partitions.yaml", "--jobs", "3"]
RUNS = [f"digits/{method}+training.epochs=2/seed0" for method in ("contrastive", "laplace", "cosine")]


def test_smoke_runs_through_slurm(finished, workspace):
    """Everything computed on the cluster equals, to the bit, what the same workflow computed on this machine."""
    shutil.rmtree(workspace.folder / "results")
    shutil.rmtree(workspace.folder / "reports")
    fit_to_one_node(workspace)
    page = (workspace.folder / "docs/examples/cluster.md").read_text()
    assert " ".join(["snakemake", *SUBMIT]) in page
    output = workspace.snakemake(*SUBMIT)
    assert workspace.command("probmetric", "status", "smoke").stdout.strip() in page
    for run in RUNS:
        name = f"results/{run}/metrics.json"
        assert (workspace.folder / name).read_text() == (finished.folder / name).read_text()
    assert (workspace.folder / "reports/smoke/index.html").exists()

    jobs = jobs_of(output)
    assert {job.state for job in jobs} == {"COMPLETED"}
    assert len(jobs) == 3, "a run is a job; data, page and MLflow are made where Snakemake runs"
    assert all(job.about.startswith("rule_run") for job in jobs)
    assert {(job.partition, job.limit, job.memory) for job in jobs} == {("gpu", "1-00:00:00", "2000M")}
    asked = scontrol(jobs[0].number)
    assert (asked["TresPerJob"], asked["Requeue"]) == ("gres:gpu:1", "1")
    assert workspace.planned() == {}


def test_a_cluster_without_gpus_is_not_asked_for_any(workspace):
    """A planned job does on the cluster what was planned; with `gpu: 0` it asks for no device."""
    run = RUNS[2]
    (workspace.folder / "results" / run / "metrics.json").unlink()
    (workspace.folder / "results" / run / "made/evaluate.json").unlink()
    fit_to_one_node(workspace, gpu=0, runtime=30)
    (job,) = jobs_of(workspace.snakemake(*SUBMIT))
    assert (job.partition, job.limit, job.state) == ("cpu", "30:00", "COMPLETED")
    assert "TresPerJob" not in scontrol(job.number)


def test_gpu_jobs_are_given_distinct_devices(tmp_path):
    both = f"[ $(ls {tmp_path} | wc -l) = 2 ]"
    script = f"echo $CUDA_VISIBLE_DEVICES; touch {tmp_path}/$SLURM_JOB_ID; until {both}; do sleep 0.2; done"
    jobs = [
        subprocess.Popen(["srun", "--gpus=1", "--mem=100", "bash", "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sorted(job.communicate(timeout=180)[0].strip() for job in jobs) == ["0", "1"]
