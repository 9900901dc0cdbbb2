"""Every command that takes an output leaves alone what is not ours: a folder of somebody else's, the target of a link,
the current folder, what the output is made from."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import pytest
from serving_helpers import PLAIN

from probmetric import cli
from probmetric.cli import parser
from probmetric.data import add_noise

# Command -> its arguments; OUT stands for the output, with the suffix that a file needs.
COMMANDS = {
    "prepare": ["prepare", "digits", "--output", "OUT"],
    "prepare --digest": ["prepare", "digits", "--output", "data/other", "--digest", "OUT"],
    "noise": ["noise", "digits+noise0.2", "--prepared", "OUT"],
    "noise --digest": ["noise", "digits+noise0.2", "--digest", "OUT"],
    "data card": ["data", "card", "digits", "--output", "OUT"],
    "export": ["export", "model", "OUT"],
    "export of a run": ["export", PLAIN, "OUT"],
    "export .onnx": ["export", "model", "OUT.onnx"],
    "export .pt2": ["export", "model", "OUT.pt2"],
    "index": ["index", "model", "OUT", "photos"],
    "vectors": ["vectors", "model", "photos", "OUT.parquet"],
    "publish": ["publish", "--output", "OUT"],
    "track": ["track", "study", "--receipt", "OUT"],
    "schema": ["schema", "--output", "OUT"],
    "report": ["report", "vectors.npz", "--output", "OUT.html"],
    "migrate": ["migrate", "vectors.npz", "vectors.npz", "--output", "OUT.parquet"],
}
NAMES = {"output", "place", "gallery", "digest", "prepared", "receipt"}
SOURCES = {"prepare": "data/raw", "noise": "data/prepared/digits", "data card": "data/prepared/digits"}
SOURCES |= {"export": "model", "export of a run": f"results/{PLAIN}", "index": "photos", "publish": "reports"}


@pytest.fixture
def place(project, exported, photos, tmp_path, monkeypatch) -> Path:
    """A project with a run, a model, photographs and a report, to be damaged."""
    here = tmp_path / "project"
    shutil.copytree(project, here)
    shutil.copytree(exported[PLAIN], here / "model")
    shutil.copytree(photos[0], here / "photos")
    np.savez(here / "vectors.npz", vector=np.eye(36), label=np.arange(36) // 3)
    (here / "data/raw/digits").mkdir(parents=True)
    (here / "data/raw/digits/archive.tgz").write_text("supplied by hand")
    (here / "reports/study").mkdir(parents=True)
    (here / "reports/study/index.html").write_text("<title>a page</title>")
    monkeypatch.chdir(here)
    return here


def written(command: str, output: str) -> list[str]:
    return [argument.replace("OUT", output) for argument in COMMANDS[command]]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_kept(before: dict[str, bytes], folder: Path) -> None:
    after = content(folder)
    assert {name: after.get(name) == old for name, old in before.items() if after.get(name) != old} == {}


def foreign(folder: Path) -> Path:
    """A folder that holds what other programs, and people, call as we call our files."""
    folder.mkdir(parents=True)
    for name in ("model.json", "gallery.json", "digest", "manifest.parquet", "README.md", "index.html", "thesis.md"):
        (folder / name).write_text("somebody else's")
    return folder


def test_every_command_with_an_output_is_here():
    commands = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)).choices
    takes = {name for name, each in commands.items() if NAMES & {action.dest for action in each._actions}}
    only_read = {"certify", "serve"}  # they need a gallery that is there
    assert takes - only_read == {name.split()[0] for name in COMMANDS} - {"data"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_somebody_else_stays(place, command, capsys):
    folder = foreign(place / "thesis")
    file = folder.with_suffix(Path(COMMANDS[command][-1]).suffix)  # thesis.onnx, or the folder itself
    if file != folder:
        file.write_text("somebody else's")
    before = content(place)
    status = cli.main(written(command, "thesis"))
    assert_kept(before, place)
    if command not in ("schema", "noise"):  # they add files, to folders of those names
        assert status == 2
        assert "thesis" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_link_leads_to_stays(place, command):
    target = foreign(place.parent / "target")
    (place / "link").symlink_to(target)
    for suffix in (".onnx", ".pt2", ".parquet", ".html"):
        (place / "link").with_suffix(suffix).symlink_to(target / "thesis.md")
    before = content(target)
    cli.main(written(command, "link"))
    assert_kept(before, target)
    assert (place / "link").is_symlink()
    assert (place / "link.onnx").is_symlink()


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("schema", "noise")])
@pytest.mark.parametrize("output", [".", "../project", ".."])
def test_the_current_folder_and_its_parents_stay(place, command, output):
    if COMMANDS[command][-1] != "OUT":
        pytest.skip("a file")
    before = content(place.parent)
    assert cli.main(written(command, output)) == 2
    assert_kept(before, place.parent)


@pytest.mark.parametrize("command", SOURCES)
@pytest.mark.parametrize("where", ["", "/inside", "/.."])
def test_the_source_stays(place, command, where):
    before = content(place)
    status = cli.main(written(command, SOURCES[command] + where))
    assert_kept(before, place)
    assert status == 2 or command == "noise"


def test_noise_is_not_written_over_its_source(place):
    before = content(place)
    with pytest.raises(RuntimeError, match="overlap"):
        add_noise("data/prepared/digits", "data/prepared/digits", rate=0.2)
    with pytest.raises(RuntimeError, match="overlap"):
        add_noise("data/prepared/digits", "data/prepared", rate=0.2)
    assert_kept(before, place)


@pytest.mark.parametrize("folder", ["data/raw", "data/raw/prepared", "data", "results", "state/data"])
def test_params_that_mix_what_is_made_with_what_it_is_made_from_are_refused(place, folder, capsys):
    (place / "params.yaml").write_text(
        f"data: {{prepared: {folder}, on_request: {{pics: {{source: folder, raw: photos}}}}}}\ndatasets: [digits]\n"
    )
    before = content(place)
    for arguments in (["data", "ensure", "pics"], ["prepare", "pics"]):
        assert cli.main(arguments) == 2
        assert "overlap" in capsys.readouterr().err
    assert_kept(before, place)


def test_the_own_photographs_are_no_place_for_the_prepared_dataset(place, capsys):
    (place / "params.yaml").write_text(
        "data: {on_request: {pics: {source: folder, raw: photos, split: by_image}}}\ndatasets: [digits]\n"
    )
    before = content(place)
    for output in ("photos", "photos/pics", "."):
        assert cli.main(["prepare", "pics", "--output", output]) == 2
    assert_kept(before, place)
