"""DVC is asked for data by two at once, and after somebody was killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probmetric.data.handover import DVC, forget_the_dead, repro
from probmetric.io import alone

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

WORK = "import pathlib, time; time.sleep({seconds}); pathlib.Path('{out}').write_text('the same bytes')"
ASK = "import sys; from probmetric.data.handover import repro; sys.exit(repro(sys.argv[1]))"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with DVC and two stages, `quick` and `slow`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    subprocess.run(["dvc", "init", "--no-scm", "-q"], check=True)
    stages = {
        name: {"cmd": [f'{sys.executable} -c "{WORK.format(seconds=seconds, out=name)}"'], "outs": [name]}
        for name, seconds in (("quick", 0), ("slow", 1.5))
    }
    Path("dvc.yaml").write_text(json.dumps({"stages": stages}))
    return tmp_path


@pytest.fixture
def stranger() -> Iterator[int]:
    """Number of a process that lives and is no DVC."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def owned_by(project: Path, pid: int, *, reads: bool = False) -> Path:
    """DVC's list after process `pid` was killed while it made `quick`."""
    owner, path = {"pid": pid, "cmd": "dvc repro"}, str(project / "quick")
    rwlock = project / ".dvc" / "tmp" / "rwlock"
    rwlock.write_text(json.dumps({"read": {path: [owner]} if reads else {}, "write": {} if reads else {path: owner}}))
    return rwlock


def asked(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ASK, name]
    return subprocess.Popen(command, stdout=-1, stderr=-2, text=True, start_new_session=True)


def test_what_dvc_thinks_up_to_date_is_made_again_where_that_is_asked_for(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = []
    for force in (False, False, True):
        assert repro("quick", force=force) == 0
        made.append("Running stage 'quick'" in capfd.readouterr().out)
    assert made == [True, False, True]


@pytest.mark.parametrize("reads", [False, True])
def test_a_number_that_another_process_was_given_blocks_nobody(project: Path, stranger: int, reads: bool) -> None:
    owned_by(project, stranger, reads=reads)
    assert subprocess.run(["dvc", "repro", "quick"], check=False, capture_output=True).returncode, "DVC alone gives up"
    assert repro("quick") == 0
    assert (project / "quick").read_text() == "the same bytes"


def test_a_zombie_blocks_nobody(project: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    owned_by(project, child.pid)
    assert forget_the_dead() == [child.pid]
    assert repro("quick") == 0
    child.wait()


def test_a_half_written_list_blocks_nobody(project: Path) -> None:
    rwlock = project / ".dvc" / "tmp" / "rwlock"
    for text in ("", "[]", '{"read": {"/x": 3}}', '{"write": {"/x": {"cmd": "dvc"}}}'):
        rwlock.write_text(text)
        assert forget_the_dead() == []
        assert not rwlock.exists(), text
    rwlock.write_text('{"write": {"/x')
    assert repro("quick") == 0


def test_the_living_are_not_forgotten(project: Path) -> None:
    """The list stays as it is while its owner lives, and while another process edits it."""
    rwlock = owned_by(project, os.getpid())
    assert forget_the_dead() == []
    before = rwlock.read_bytes()
    owned_by(project, 4194303)
    editing = "import fcntl, sys; f = open('.dvc/tmp/rwlock.lock', 'a'); fcntl.flock(f, 2); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", editing], stdin=-1, stdout=-1, text=True) as editor:
        assert editor.stdout is not None
        editor.stdout.readline()
        assert forget_the_dead() == []
        editor.communicate("\n")
    assert forget_the_dead() == [4194303]
    assert json.loads(rwlock.read_text()) == {"read": {}, "write": {}}
    assert str(os.getpid()).encode() in before


def test_two_at_once_both_succeed(project: Path) -> None:
    both = [asked("slow"), asked("slow")]
    outputs = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("Running stage" in output for output in outputs) == 1, outputs


def test_the_second_waits_and_says_so(project: Path) -> None:
    with alone(DVC / "probmetric"):
        second = asked("quick")
        time.sleep(2)
        assert second.poll() is None
        assert not (project / "quick").exists()
    output = second.communicate(timeout=120)[0]
    assert second.returncode == 0, output
    assert "another process prepares data" in output
    assert "waiting for it" in output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("change", [1, 2, 4])
def test_after_a_kill_the_next_command_goes_on(project: Path, change: int) -> None:
    """Killed with all its children at the n-th change of DVC's list."""
    rwlock = project / ".dvc" / "tmp" / "rwlock"
    process = asked("slow")
    seen, changes = None, 0
    while changes < change and process.poll() is None:
        state = rwlock.stat() if rwlock.exists() else None
        if state is not None and (state.st_mtime_ns, state.st_size) != seen:
            seen, changes = (state.st_mtime_ns, state.st_size), changes + 1
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert repro("slow") == 0
    assert (project / "slow").read_text() == "the same bytes"
    status = subprocess.run(["dvc", "status"], check=True, capture_output=True, text=True).stdout
    assert "slow" not in status
