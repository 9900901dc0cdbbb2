"""Shared folders: made once, again when the source or the folder has changed, and by one process at a time."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import built_once
from built_once import KEPT, BuiltOnce, restore


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


@pytest.fixture
def original(tmp_path) -> Path:
    root = tmp_path / "original"
    for name in ("a/b/one", "a/two", "three"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
        os.utime(root / name, (1_000_000, 1_000_000))
    (root / "empty").mkdir()
    (root / "link").symlink_to("a")
    os.utime(root / "a", (2_000_000, 2_000_000))
    return root


def described(root: Path) -> dict[str, tuple[object, ...]]:
    """Kind, permissions, time and content of everything."""
    found = {}
    for path in [root, *root.rglob("*")]:
        state = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path.relative_to(root))] = (state.st_mode, state.st_mtime_ns, content)
    return found


def swap(copy: Path) -> None:
    """Files become folders and the other way round."""
    shutil.rmtree(copy / "a")
    (copy / "a").write_text("a file")
    (copy / "three").unlink()
    (copy / "three/deep").mkdir(parents=True)
    (copy / "link").unlink()
    (copy / "link").mkdir()


CHANGES = {
    "written in place, of the same length": lambda copy: (copy / "a/two").write_text("A/TWO"),
    "another time": lambda copy: os.utime(copy / "a/b/one"),
    "another permission": lambda copy: (copy / "three").chmod(0o400),
    "removed": lambda copy: shutil.rmtree(copy / "a"),
    "added": lambda copy: (copy / "new/folder").mkdir(parents=True),
    "added to a folder": lambda copy: (copy / "empty/file").touch(),
    "a link elsewhere": lambda copy: ((copy / "link").unlink(), (copy / "link").symlink_to("empty")),
    "swapped": swap,
    "all gone": shutil.rmtree,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_becomes_its_original_again(original, tmp_path, change):
    copy, expected = tmp_path / "copy", described(original)
    restore(copy, original)
    assert described(copy) == expected
    CHANGES[change](copy)
    assert described(copy) != expected if copy.exists() else True
    restore(copy, original)
    assert described(copy) == expected
    assert described(original) == expected


def test_what_is_the_same_is_not_copied_again(original, tmp_path):
    restore(tmp_path / "copy", original)
    before = (tmp_path / "copy/three").lstat()
    (tmp_path / "copy/a/two").write_text("changed")
    restore(tmp_path / "copy", original)
    assert (tmp_path / "copy/three").lstat().st_ino == before.st_ino
    assert (tmp_path / "copy/three").lstat().st_ctime_ns == before.st_ctime_ns


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
