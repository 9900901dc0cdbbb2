"""A workflow in small: a process that owns a server, a project folder, and commands that tell what they see."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import probmetric
from probmetric.resident.starting import FOLDER

HERE = Path(__file__).parent
SCRIPT = "import sys\nfrom probmetric.resident.client import main\nsys.exit(main())\n"
LIMIT = 120.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def until(found: Callable[[], object]) -> None:
    """Wait for an event."""
    deadline = time.monotonic() + LIMIT
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@dataclass
class Office:
    """A package of its own, whose commands use a server if `folder` is named to them."""

    root: Path
    owner: subprocess.Popen[bytes]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / "room" / str(self.owner.pid)

    @property
    def package(self) -> Path:
        return self.root / "src/probmetric"

    @property
    def settled(self) -> dict[str, str]:
        """What every command finds in its environment."""
        return dict.fromkeys(THREADS, "1") | {"PYTHONPATH": str(self.package.parent)}

    def start(self, *arguments: str, served: bool = True, **variables: str) -> subprocess.Popen[str]:
        base = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
        own = {FOLDER: str(self.folder)} if served else {}
        process = subprocess.Popen(
            [sys.executable, str(self.root / "probmetric"), *arguments],
            cwd=self.root / "project",
            env=base | self.settled | own | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, served: bool = True, **variables: str) -> tuple[int, str, str]:
        process = self.start(*arguments, served=served, **variables)
        output, errors = process.communicate(timeout=LIMIT)
        return process.returncode, output, errors

    def servers(self) -> list[psutil.Process]:
        """Servers of the owner that answer commands."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.folder) in process.cmdline():
                    found.append(process)
        return found

    def jobs(self) -> list[psutil.Process]:
        """Commands that run as children of a server."""
        return [job for server in self.servers() for job in server.children()]

    def close(self) -> None:
        self.owner.kill()
        self.owner.wait()
        for process in self.started:
            process.kill()
            process.communicate()
        until(lambda: not self.servers())


def open_office(root: Path) -> Office:
    shutil.copytree(Path(probmetric.__file__).parent, root / "src/probmetric", ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copytree(HERE / "project", root / "project")
    (root / "project/logs").mkdir()
    (root / "probmetric").write_text(SCRIPT)
    office = Office(root, subprocess.Popen(["sleep", "infinity"]))
    office.folder.mkdir(parents=True, mode=0o700)
    return office
