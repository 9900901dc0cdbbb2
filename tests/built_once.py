"""What is slow to make and the same for all tests: made once per state of the source, by the process that comes first.

Processes wait for each other at a file lock, and later sessions find what an earlier one made. The key is the content
of every file it depends on and the version of every installed package, so that no change of the code meets an older
result; a folder some test has changed is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from probmetric.runs.source import closure

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/probmetric"
PREPARING = ("__init__.py", "data", "errors.py", "io", "lazy.py", "registry")  # all that `data` imports
KEPT = 3  # states of the source whose folders are kept: going back to one is free


@dataclass(frozen=True)
class BuiltOnce:
    """Folders made once; `place` holds them, their locks and the record of what was in them."""

    place: Path

    def folder(self, name: str, make: Callable[[Path], object], sources: Iterable[Path]) -> Path:
        """The folder `make` fills, for the present content of `sources`. Never change it: copy it."""
        folder = self.place / name / state_of(tuple(sources))
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / "lock"):
            record = folder.with_suffix(".json")
            if not is_sound(folder, record):
                record.unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                record.write_text(json.dumps(listing(folder)))
            record.touch()
            forget(folder.parent)
        return folder


def state_of(sources: tuple[Path, ...]) -> str:
    """Digest of the files' names and contents, of Python and of every installed package's version."""
    digest = hashlib.sha256(installed().encode())
    for path in sorted(sources):
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def installed() -> str:
    found = {path.name for entry in sys.path for path in Path(entry).glob("*.dist-info")}
    return "\n".join([sys.version, *sorted(found)])


def package_files() -> list[Path]:
    """Every file of the package."""
    return [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]


def preparing_files(dataset: str) -> list[Path]:
    """The files prepared data depend on: the room `data` without the other sources, and what it stands on."""
    sources = PACKAGE / "data/sources"
    used = {name.rpartition(".")[2] for name in closure(f"probmetric.data.sources.{dataset}")}
    found = [path for place in PREPARING for path in sorted((PACKAGE / place).rglob("*.py")) or [PACKAGE / place]]
    return [path for path in found if path.parent != sources or path.name.startswith("_") or path.stem in used]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for, then hold, a lock that dies with its process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def listing(folder: Path) -> dict[str, list[int]]:
    """Size and time of the last change of every file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}


def restore(copy: Path, original: Path) -> None:
    """Make a copy equal to its original, links and times included, and touch only what is not."""
    wanted, found = entries(original), entries(copy)
    same = {name for name in wanted.keys() & found.keys() if wanted[name] == found[name]}
    for name in sorted(found.keys() - same, reverse=True):
        (copy / name).rmdir() if found[name].is_folder else (copy / name).unlink()
    for name in sorted(wanted.keys() - same):
        if wanted[name].is_folder:
            (copy / name).mkdir(parents=True)
        else:
            shutil.copy2(original / name, copy / name, follow_symlinks=False)
    for name in (name for name in wanted if wanted[name].is_folder):
        shutil.copystat(original / name, copy / name)


class Entry(NamedTuple):
    """What tells a file, link or folder from another one of its name, but for a folder's content."""

    is_folder: bool
    mode: int = 0
    size: int = 0
    changed: int = 0
    target: str = ""


def entries(folder: Path) -> dict[str, Entry]:
    """Everything in a folder, and the folder itself as `.`; nothing if it is not there."""
    paths = [folder, *folder.rglob("*")] if folder.is_dir() else []
    return {str(path.relative_to(folder)): entry(path) for path in paths}


def entry(path: Path) -> Entry:
    state = path.lstat()
    if stat.S_ISDIR(state.st_mode):
        return Entry(True)
    target = str(path.readlink()) if path.is_symlink() else ""
    return Entry(False, state.st_mode, state.st_size, state.st_mtime_ns, target)


def is_sound(folder: Path, record: Path) -> bool:
    """Whether every file is still there as it was made; files that readers add are their own business."""
    return record.exists() and json.loads(record.read_text()).items() <= listing(folder).items()


def forget(place: Path) -> None:
    """Remove the folders of all but the latest states."""
    records = sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for record in records[KEPT:]:
        record.unlink()
        shutil.rmtree(record.with_suffix(""), ignore_errors=True)
