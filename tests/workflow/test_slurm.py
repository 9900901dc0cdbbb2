"""The same workflow through a real SLURM daemon (`.ci/slurm` starts one on a single node with two pretended GPUs)."""

from __future__ import annotations

import shutil
import subprocess

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.workflow, pytest.mark.slow]

# One node without accounting: `sacct` never answers there, and jobs must fit two cores.
HERE = [
    *("--workflow-profile", "workflow/profiles/slurm", "--slurm-no-account", "--slurm-status-command", "squeue"),
    *("--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "2", "--latency-wait", "10"),
    *("--set-threads", "train=1", "--set-resources", "train:mem_mb=2000", "fit_posterior:mem_mb=2000"),
    *("embed:mem_mb=2000", "evaluate:mem_mb=2000"),
]


def slurm_is_up() -> bool:
    if shutil.which("sinfo") is None or shutil.which("sbatch") is None:
        return False
    answer = subprocess.run(["sinfo", "-h", "-o", "%T"], check=False, capture_output=True, text=True, timeout=30)
    return any(state in answer.stdout for state in ("idle", "mixed", "allocated"))


needs_slurm = pytest.mark.skipif(not slurm_is_up(), reason="no SLURM daemon answers; start one with `bash .ci/slurm`")


@needs_slurm
def test_smoke_runs_through_slurm(finished, workspace):
    """Everything computed on the cluster equals, to the bit, what the same workflow computed on this machine."""
    shutil.rmtree(workspace.folder / "results")
    shutil.rmtree(workspace.folder / "reports")
    output = workspace.snakemake("--jobs", "2", *HERE)
    assert "SLURM" in output
    for run in ["contrastive", "laplace", "cosine"]:
        name = f"results/digits/{run}+training.epochs=2/seed0/metrics.json"
        assert (workspace.folder / name).read_text() == (finished.folder / name).read_text()
    assert (workspace.folder / "reports/smoke/index.html").exists()
    assert workspace.planned() == {}


@needs_slurm
def test_gpu_jobs_are_given_distinct_devices(tmp_path):
    script = "echo $CUDA_VISIBLE_DEVICES; sleep 2"
    jobs = [
        subprocess.Popen(["srun", "--gpus=1", "--mem=100", "bash", "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sorted(job.communicate(timeout=60)[0].strip() for job in jobs) == ["0", "1"]
