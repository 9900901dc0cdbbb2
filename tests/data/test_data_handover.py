"""DVC is asked for data by two at once, and after somebody was killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probmetric.io import alone
from probmetric.planning.declared import repro

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

WORK = "import pathlib, time; time.sleep({seconds}); pathlib.Path('{out}').write_text('the same bytes')"
ASK = "import sys; from probmetric.planning.declared import repro; sys.exit(repro(sys.argv[1]))"


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


def test_two_at_once_both_succeed(project: Path) -> None:
    both = [asked("slow"), asked("slow")]
    outputs = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("Running stage" in output for output in outputs) == 1, outputs


def test_the_second_waits_and_says_so(project: Path) -> None:
    with alone(Path(".dvc/tmp/probmetric")):
        second = asked("quick")
        sentence = next(line for line in second.stdout or () if "another process prepares data" in line)
        assert "waiting for it" in sentence
        time.sleep(1)
        assert second.poll() is None
        assert not (project / "quick").exists()
    output = second.communicate(timeout=120)[0]
    assert second.returncode == 0, output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("change", [1, 2, 4])
def test_after_a_kill_the_next_command_goes_on(project: Path, change: int, capfd: pytest.CaptureFixture[str]) -> None:
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
    if repro("slow"):  # killed in the middle of writing its list of locks, which DVC asks to have deleted
        assert "rwlock" in capfd.readouterr().err
        rwlock.unlink()
        assert repro("slow") == 0
    assert (project / "slow").read_text() == "the same bytes"
    status = subprocess.run(["dvc", "status"], check=True, capture_output=True, text=True).stdout
    assert "slow" not in status
