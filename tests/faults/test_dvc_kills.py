"""`dvc repro` killed with all it started, at random touches of the file system: the next command goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.workflow]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
REPRO = [BIN / "dvc", "repro", "prepare@digits"]
ENSURE = [BIN / "probmetric", "data", "ensure", "digits"]
MADE = ("data/prepared/digits", "data/digests/digits")
# How many events each process has, roughly; a kill that comes too late to happen is drawn again from the first half.
EVENTS = {"dvc": 500, "probmetric": 120}
KILLS = int(os.environ.get("KILLS", "12"))  # `make test-all` asks for thirty: each takes eight seconds


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A clone with digits prepared once, and what that gave."""
    folder = tmp_path_factory.mktemp("dvc") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    assert run(folder, REPRO).returncode == 0
    shutil.copytree(folder / "data", folder.parent / "expected")
    return folder


def run(folder: Path, command: list, **fault: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"}
    if fault:
        environment |= fault | {"PYTHONPATH": str(Path(__file__).parent / "dying")}
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, start_new_session=True
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def forget(folder: Path, *, cached: bool) -> None:
    """As before the first preparation; with `cached`, DVC still has the files."""
    for name in MADE:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if not cached:
        shutil.rmtree(folder / ".dvc/cache", ignore_errors=True)


@pytest.mark.parametrize("number", range(KILLS))
def test_the_next_command_makes_the_same_bytes(clone, number):
    generator = random.Random(number)
    process, cached = ("dvc", number % 2 == 1) if number % 3 else ("probmetric", False)
    forget(clone, cached=cached)
    most = EVENTS[process]
    for _ in range(4):
        at = generator.randint(1, most)
        done = run(clone, REPRO, DIE_IN=process, DIE_AT=str(at))
        if done.returncode == -signal.SIGKILL:
            break
        assert done.returncode == 0, done.stderr
        forget(clone, cached=cached)
        most = at // 2 + 1
    assert done.returncode == -signal.SIGKILL
    after = run(clone, ENSURE)
    if after.returncode and "rwlock" in after.stderr:  # DVC asks for its half-written list of locks to be deleted
        (clone / ".dvc/tmp/rwlock").unlink()
        after = run(clone, ENSURE)
    assert after.returncode == 0, f"killed {process} at event {at}: {after.stdout[-2000:]}{after.stderr[-2000:]}"
    for name in MADE:
        expected = clone.parent / "expected" / Path(name).relative_to("data")
        found = clone / name
        assert (files(found) if found.is_dir() else found.read_bytes()) == (
            files(expected) if expected.is_dir() else expected.read_bytes()
        )
    assert not [path for path in (clone / "data/prepared").iterdir() if path.name != "digits"], "something is left over"
