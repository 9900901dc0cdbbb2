"""Asking DVC for data while others ask too, and after somebody was killed.

DVC writes who reads and writes what into `.dvc/tmp/rwlock`, and a killed process stays listed. DVC forgets owners whose
process number is free; it takes a zombie, or a stranger that was given the number since, for the owner, and ends with
an error that asks for the file to be removed by hand. A kill in the middle of writing leaves a file it cannot read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probmetric.io import alone, write_text
from probmetric.process import call

log = logging.getLogger(__name__)

DVC = Path(".dvc") / "tmp"


def repro(address: str, *, force: bool = False) -> int:
    """`dvc repro address` in the working folder, with `force` also of what DVC thinks up to date; its exit status.

    Waits while another process is here, and forgets those that were killed.
    """
    with alone(DVC / "probmetric", "prepares data here"):
        forget_the_dead()
        options = ["--force", "--single-item"] if force else []
        return call(["dvc", "repro", *options, address])


def forget_the_dead(folder: Path = DVC) -> list[int]:
    """Remove owners that are dead from DVC's list of who reads and writes what.

    Args:
        folder: the repository's `.dvc/tmp`.

    Returns:
        Process numbers of the owners removed.
    """
    path = folder / "rwlock"
    with _list_of(folder) as free:
        text = path.read_text(encoding="utf-8", errors="replace") if free and path.is_file() else "{}"
        try:
            owners = json.loads(text)
            if not set(owners) <= {"read", "write"}:
                raise ValueError("no list of DVC's")
            dead = sorted({pid for owner in _owners(owners) if not _alive(pid := int(owner["pid"]))})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            path.unlink()  # half-written by a killed process; its lock is free, and DVC cannot read it
            return []
        if dead:
            write_text(path, json.dumps(_without(owners, dead)))
            log.warning("forgot killed process(es) %s that DVC's %s still listed", ", ".join(map(str, dead)), path)
        return dead


@contextlib.contextmanager
def _list_of(folder: Path) -> Iterator[bool]:
    """Hold the lock under which DVC edits its list; False where another process holds it."""
    with (folder / "rwlock.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _owners(owners: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    readers = [owner for listed in owners.get("read", {}).values() for owner in listed]
    return [*readers, *owners.get("write", {}).values()]


def _without(owners: Mapping[str, Any], dead: list[int]) -> dict[str, Any]:
    read = {
        path: kept
        for path, listed in owners.get("read", {}).items()
        if (kept := [owner for owner in listed if owner["pid"] not in dead])
    }
    return {
        "read": read,
        "write": {path: owner for path, owner in owners.get("write", {}).items() if owner["pid"] not in dead},
    }


def _alive(pid: int) -> bool:
    """Whether process `pid` lives and may be a DVC: a stranger that was given its number is none."""
    import psutil

    if pid == os.getpid():
        return True
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any("dvc" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
