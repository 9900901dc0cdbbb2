"""Shared folders: made once, again when the source or the folder has changed, and by one process at a time."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import built_once
from built_once import KEPT, BuiltOnce


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(built_once, "ROOT", tmp_path)
    path = tmp_path / "source.py"
    path.write_text("1")
    return path


@pytest.fixture
def made(tmp_path, source):
    """Asks for the folder; the list grows by one whenever it was made."""
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "value").write_text(source.read_text())

    def ask() -> Path:
        return BuiltOnce(tmp_path / "built").folder("name", make, [source])

    return ask, calls


def test_a_folder_is_made_once_per_content_of_its_sources(made, source):
    ask, calls = made
    first = ask()
    assert ask() == first
    assert len(calls) == 1
    source.write_text("2")
    assert (ask() / "value").read_text() == "2"
    source.write_text("1")
    assert ask() == first
    assert len(calls) == 2, "going back to a state is free"


def test_other_packages_mean_another_folder(made, monkeypatch):
    ask, calls = made
    first = ask()
    monkeypatch.setattr(built_once, "installed", lambda: "torch==0")
    assert ask() != first
    assert len(calls) == 2


@pytest.mark.parametrize("change", ["edited", "removed", "interrupted"])
def test_a_folder_that_is_not_as_it_was_made_is_made_again(made, change):
    ask, calls = made
    folder = ask()
    if change == "edited":
        (folder / "value").write_text("other")
    elif change == "removed":
        (folder / "value").unlink()
    else:
        folder.with_suffix(".json").unlink()
    assert (ask() / "value").read_text() == "1"
    assert len(calls) == 2


def test_what_a_reader_adds_is_left_alone(made):
    ask, calls = made
    (ask() / "index").touch()
    ask()
    assert len(calls) == 1


def test_old_states_are_forgotten(made, source):
    ask, _ = made
    for number in range(KEPT + 2):
        source.write_text(str(number))
        folder = ask()
    kept = [path for path in folder.parent.iterdir() if path.is_dir()]
    assert len(kept) == KEPT
    assert folder in kept


WORKER = """
import sys, time
from pathlib import Path
from built_once import BuiltOnce

def make(folder):
    time.sleep(0.3)
    (folder / "value").write_text(sys.argv[2])

print((BuiltOnce(Path(sys.argv[1])).folder("name", make, []) / "value").read_text())
"""


def test_processes_wait_for_the_one_that_makes_it(tmp_path):
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [
        subprocess.Popen([*command, name], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
        for name in ("first", "second", "third")
    ]
    said = {worker.communicate(timeout=60)[0].strip() for worker in workers}
    assert len(said) == 1
    (record,) = (tmp_path / "name").glob("*.json")
    assert json.loads(record.read_text()).keys() == {"value"}
    assert time.time() - record.stat().st_mtime < 60
