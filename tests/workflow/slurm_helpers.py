"""What the tests on a real SLURM daemon share: how to call the profile on one node, and what the queue says."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Workspace

ON_SLURM = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.workflow,
    pytest.mark.slow,
    pytest.mark.usefixtures("slurm"),
]
PROFILE = "workflow/profiles/slurm"


def fit_to_one_node(workspace: Workspace, **run: object) -> None:
    """Change a workspace's profile as its users do: no accounting (`sacct` never answers), four CPUs, little memory."""

    def change(profile: dict[str, Any]) -> None:
        profile |= {
            "slurm-no-account": True,
            "slurm-status-command": "squeue",
            "slurm-init-seconds-before-status-checks": 1,
            "seconds-between-status-checks": 2,
            "latency-wait": 10,
            "set-threads": {"run": 1},
        }
        profile["set-resources"]["run"] |= {"mem_mb": "attempt * 2000"} | run

    workspace.edit_yaml(f"{PROFILE}/profile.yaml", change)


def slurm_is_up() -> bool:
    if shutil.which("sinfo") is None or shutil.which("sbatch") is None:
        return False
    answer = subprocess.run(["sinfo", "-h", "-o", "%T"], check=False, capture_output=True, text=True, timeout=30)
    return any(state in answer.stdout for state in ("idle", "mixed", "allocated"))


@dataclass(frozen=True)
class Job:
    """A line of `squeue`, also of jobs that ended within the last minutes."""

    number: int
    about: str
    partition: str
    state: str
    limit: str
    memory: str


def jobs_of(workflow_output: str) -> list[Job]:
    """The jobs one call of Snakemake submitted, oldest first."""
    name = re.search(r"SLURM run ID: (\S+)", workflow_output)
    assert name, workflow_output
    return sorted(_queue("--name", name[1]), key=lambda job: job.number)


def running_for(text: str) -> list[Job]:
    """Jobs running now whose comment contains `text`."""
    return [job for job in _queue() if text in job.about and job.state == "RUNNING"]


def _queue(*choice: str) -> list[Job]:
    fields = "%i|%k|%P|%T|%l|%m"
    command = ["squeue", "--noheader", "--states=all", "--format", fields, *choice]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split("|") for line in output.splitlines()]
    return [Job(int(row[0]), *row[1:]) for row in rows if row[0].isdigit()]


def scontrol(number: int) -> dict[str, str]:
    """`scontrol show job` as a table."""
    output = subprocess.run(["scontrol", "show", "job", str(number)], check=True, capture_output=True, text=True).stdout
    return dict(word.split("=", 1) for word in output.split() if "=" in word)


def wait_for(true: Callable[[], object], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)
