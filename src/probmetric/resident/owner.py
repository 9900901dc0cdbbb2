"""A workflow that offers its commands a server: it owns a folder for the sockets, named by its process number."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from probmetric.resident.starting import FOLDER
from probmetric.resident.usage import correct_rows, start_seconds

ROOM = Path("state/resident")


def offer(room: Path = ROOM) -> None:
    """Let the commands this process starts use a server that ends with this process; Linux only."""
    if sys.platform != "linux":
        return
    tidy(room)
    folder = room / str(os.getpid())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ[FOLDER] = str(folder.absolute())


def settle() -> dict[str, float]:
    """Correct the benchmark rows of this process's commands, which have ended.

    Returns:
        Rule -> mean seconds a server took to start its commands.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return {}
    correct_rows(Path(folder))
    return start_seconds(Path(folder))


def tidy(room: Path) -> None:
    """Correct rows and remove what is left of workflows that were killed."""
    for folder in room.glob("*"):
        if not Path("/proc", folder.name).exists():
            correct_rows(folder)
            shutil.rmtree(folder, ignore_errors=True)
