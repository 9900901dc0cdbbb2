"""Full and read-only disks, hanging and late file systems, wrong clocks: a clear error or the right result."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fault_helpers import ENCODER, RUN, STEPS, Tiny
from test_kills import check_nothing_half_written, check_whole

from probmetric.io import write_text

pytestmark = pytest.mark.slow


def mount(folder: Path, request: pytest.FixtureRequest, *options: str) -> None:
    done = subprocess.run(["mount", *options, str(folder)], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    request.addfinalizer(lambda: subprocess.run(["umount", str(folder)], check=True))


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk(step, whole, tmp_path, request):
    """Four kilobytes are left when the step starts; with space again the same command ends as if undisturbed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, request, "-t", "tmpfs", "-o", "size=24m", "tmpfs")
    tiny = whole.copy(folder / "tiny")
    tiny.remove_outputs(step)
    free = shutil.disk_usage(folder).free
    with (folder / "ballast").open("wb") as ballast:
        ballast.write(b"x" * (free - 4096))
    outcome = tiny.run(step)
    check_nothing_half_written(tiny, whole, step)
    if outcome.status == 0:
        assert step in ("report", "track"), "what is small enough still fits"
    else:
        assert outcome.status == 2, outcome.output[-2000:]
        assert "full" in outcome.output or "No space left" in outcome.output
        assert "Traceback" not in outcome.output
    (folder / "ballast").unlink()
    again = tiny.run(step)
    assert again.status == 0, again.output[-2000:]
    check_whole(tiny, whole)


@pytest.mark.parametrize("step", ["train", "fit", "embed"])
def test_a_limit_on_file_sizes(step, tiny, whole):
    """`ulimit -f`, as clusters set it; needs no right to mount."""
    tiny.remove_outputs(step)
    outcome = tiny.run(step, file_size=2000)
    assert outcome.status == 2, outcome.output[-2000:]
    assert "ulimit -f" in outcome.output
    check_nothing_half_written(tiny, whole, step)
    assert tiny.run(step).status == 0
    check_whole(tiny, whole)


@pytest.mark.parametrize("step", STEPS)
def test_a_read_only_disk(step, tiny, whole, request):
    tiny.remove_outputs(step)
    mount(tiny.folder, request, "--bind", str(tiny.folder))
    subprocess.run(["mount", "-o", "remount,bind,ro", str(tiny.folder)], check=True)
    before = tiny.files()
    outcome = tiny.run(step)
    assert outcome.status == 2, outcome.output[-2000:]
    assert "ead-only" in outcome.output
    assert "Traceback" not in outcome.output
    assert tiny.files() == before
    subprocess.run(["mount", "-o", "remount,bind,rw", str(tiny.folder)], check=True)
    assert tiny.run(step).status == 0
    check_whole(tiny, whole)


HANGING = {
    "fit": f"results/{ENCODER}/model.safetensors",
    "embed": f"results/{RUN}/posterior.safetensors",
    "evaluate": f"results/{RUN}/embeddings/test.safetensors",
    "report": f"results/{RUN}/metrics.json",
    "train": "data/prepared/digits/digest",
}


@pytest.mark.parametrize("step", HANGING)
def test_a_pipe_in_place_of_a_file(step, tiny):
    """A pipe nobody writes to would never answer."""
    tiny.remove_outputs(step)
    path = tiny.folder / HANGING[step]
    path.unlink()
    os.mkfifo(path)
    outcome = tiny.run(step)
    assert outcome.status == 2, outcome.output[-2000:]
    assert f"{HANGING[step]} cannot be read: it is a pipe, a socket or a device" in outcome.output
    assert outcome.seconds < 60


def test_what_is_lost_is_made_again(tiny, whole):
    """A run's process makes a lost file of the run again, and what rests on it, to the same bytes."""
    tiny.remove_outputs("evaluate")
    (tiny.folder / f"results/{RUN}/embeddings/test.safetensors").unlink()
    outcome = tiny.run("evaluate")
    assert outcome.status == 0, outcome.output[-2000:]
    assert f"embed of {RUN}" in outcome.output
    check_whole(tiny, whole)


@pytest.mark.parametrize("step", ["fit", "evaluate", "report", "track"])
def test_wrong_clocks(step, tiny, whole):
    """Time stamps years apart, some in the future: the results do not depend on them."""
    generator = random.Random(f"clock {step}")
    for path in sorted(tiny.folder.rglob("*")):
        moment = time.time() + generator.choice([-1, 1]) * generator.uniform(0, 20 * 365 * 86400)
        os.utime(path, (max(moment, 0), max(moment, 0)))
    tiny.remove_outputs(step)
    outcome = tiny.run(step)
    assert outcome.status == 0, outcome.output[-2000:]
    check_whole(tiny, whole)


def test_killed_writers_leave_nothing_for_long(tmp_path):
    """What a killed writer left is removed by the next one; what a living one is writing is not."""
    from probmetric.io import atomic_path

    for name in (".value.txt.early.tmp", ".value.txt.late.tmp", ".other.txt.late.tmp"):
        (tmp_path / name).mkdir()
    for name in (".value.txt.late.tmp", ".other.txt.late.tmp"):
        (tmp_path / name / ".lock").touch()
        (tmp_path / name / "value.txt").write_text("half")
    (tmp_path / ".value.txt.last.whole.tmp").write_text("whole, not yet named")
    with atomic_path(tmp_path / "value.txt") as mine:
        mine.write_text("first")
        write_text(tmp_path / "value.txt", "second")
        assert mine.exists()
    assert (tmp_path / "value.txt").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.txt.late.tmp", "value.txt"]


def test_the_workspace_is_worth_comparing(whole: Tiny):
    """Guards this suite: the steps wrote what they declare."""
    files = whole.files()
    for step, (_, outputs) in STEPS.items():
        for output in outputs:
            assert any(name == output or name.startswith(f"{output}/") for name in files), (step, output)
