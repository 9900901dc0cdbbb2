"""Real workspaces: a copy of the repository in which real DVC and Snakemake run the `smoke` experiment once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_helpers import slurm_is_up

from built_once import restore
from probmetric.io import read_yaml, write_yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

# How each rule announces its jobs (`message:` in workflow/rules).
MESSAGES = {
    "prepare": "Prepare",
    "run": "Run",
    "report": "Report on",
    "track": "MLflow:",
}


@dataclass
class Workspace:
    """A checkout with its own data, results and tool state."""

    folder: Path
    experiment: str = "smoke"

    def command(self, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"} | environment
        result = subprocess.run(
            arguments,
            cwd=self.folder,
            env=env,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if check and result.returncode:
            raise AssertionError(f"{' '.join(arguments)} exited with {result.returncode}\n{result.stdout[-6000:]}")
        return result

    def snakemake(self, *arguments: str, check: bool = True, **environment: str) -> str:
        command = ("snakemake", "--cores", "2", "--config", f"experiments={self.experiment}", *arguments)
        return self.command(*command, check=check, **environment).stdout

    def planned(self, *arguments: str) -> dict[str, set[str]]:
        """Rule -> what its jobs are about, of all jobs `snakemake -n` would run."""
        jobs: dict[str, set[str]] = defaultdict(set)
        for message in re.findall(r"^Job \d+: (.*)$", self.snakemake(*arguments, "-n"), flags=re.MULTILINE):
            rule = next(rule for rule, start in MESSAGES.items() if message.startswith(start))
            jobs[rule].add(message.removeprefix(MESSAGES[rule]).strip())
        return dict(jobs)

    def edit_yaml(self, name: str, change) -> None:
        value = read_yaml(self.folder / name)
        change(value)
        write_yaml(self.folder / name, value)

    def edit_smoke(self, **changes) -> None:
        self.edit_yaml("workflow/experiments/smoke.yaml", lambda spec: spec["runs"][0].update(changes))


def listed_files() -> list[Path]:
    """The repository's own files, committed or not, never the ignored ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    paths = (ROOT / name for name in listed.split("\0") if name)
    return [path for path in paths if path.is_file() or path.is_symlink()]


def workflow_files() -> list[Path]:
    """What a workflow's results may depend on: everything but tests, prose and reports."""
    aside = ("tests", "docs", "reports", "benchmarks")
    return [path for path in listed_files() if path.is_file() and path.relative_to(ROOT).parts[0] not in aside]


def checkout(folder: Path) -> Workspace:
    """The repository's own files as a fresh Git repository."""
    for path in listed_files():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return Workspace(folder)


@pytest.fixture(scope="session")
def slurm() -> None:
    """A SLURM daemon; where none answers, which takes seconds to learn, the tests that need it are skipped."""
    if not slurm_is_up():
        pytest.skip("no SLURM daemon answers; start one with `bash .ci/slurm`")


@pytest.fixture(scope="session")
def new_workspace():
    """Makes a workspace in which nothing has run, of a folder."""
    return checkout


@pytest.fixture(scope="session")
def pristine(built_once) -> Path:
    """A workspace in which `smoke` has run to the end, shared by all workers. Nobody works in it."""
    return built_once.folder("smoke", lambda folder: checkout(folder).snakemake(), workflow_files())


@pytest.fixture(scope="session")
def finished(pristine, tmp_path_factory) -> Workspace:
    """A workspace in which `smoke` has run to the end. Do not change it: ask for `workspace`."""
    return Workspace(Path(shutil.copytree(pristine, tmp_path_factory.mktemp("finished") / "copy", symlinks=True)))


@pytest.fixture(scope="session")
def used(tmp_path_factory) -> Path:
    """Where a worker's tests work, one after the other."""
    return tmp_path_factory.mktemp("used") / "probmetric"


@pytest.fixture
def workspace(pristine, used) -> Workspace:
    """The finished workspace, time stamps and tool state included, whatever the test before did to it."""
    restore(used, pristine)
    return Workspace(used)


@pytest.fixture
def fresh(tmp_path) -> Workspace:
    """A workspace in which nothing has run."""
    return checkout(tmp_path / "fresh")


@pytest.fixture(scope="session")
def in_folder():
    """Makes a workspace of a project that is there, and the name of an experiment of it."""
    return Workspace
