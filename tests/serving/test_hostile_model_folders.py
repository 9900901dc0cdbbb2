"""A model folder whose files were damaged, exchanged or made by somebody hostile is refused, or answers as before."""

from __future__ import annotations

import os
import shutil

import pytest
from serving_helpers import ENSEMBLE, LAPLACE, PLAIN, resigned, undigested

import probmetric
from probmetric import cli
from probmetric.errors import ProbMetricError
from probmetric.io import content_digest, read_tensors, write_tensors

FILES = ("model.json", "weights-0.safetensors", "uncertainty.safetensors", "reference.safetensors")
CHANGES = ("missing", "empty", "truncated", "longer", "folder", "nowhere", "pipe", "flipped", "exchanged")
WHOLE = ("weights-0.safetensors", "uncertainty.safetensors", "reference.safetensors")


@pytest.fixture(scope="module")
def asked(exported, photos):
    """A gallery of the model, photos, and what is answered before anything is changed."""
    model, images = probmetric.load(exported[LAPLACE], device="cpu"), sorted(photos[1])[:6]
    gallery = probmetric.Gallery.create(model, photos[0])
    return gallery, images, model.search(gallery, images, withhold=0.9, any_image=True)


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported[LAPLACE], tmp_path / "m")


def answers(folder, asked):
    gallery, images, _ = asked
    return probmetric.load(folder, device="cpu").search(gallery, images, withhold=0.9, any_image=True)


def refusal(folder, asked) -> str:
    """What is said of a model that cannot be used; "" where it answers as before."""
    try:
        assert answers(folder, asked) == asked[2]
    except ProbMetricError as error:
        return str(error)
    return ""


def change_file(file, change, other):
    data = file.read_bytes()
    file.unlink()
    made = {
        "folder": file.mkdir,
        "nowhere": lambda: file.symlink_to(file.parent / "nowhere"),
        "pipe": lambda: os.mkfifo(file),
        "missing": lambda: None,
    }
    if change in made:
        made[change]()
        return
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
    contents = {"empty": b"", "truncated": data[:middle], "longer": data + b"\0\1", "flipped": flipped}
    file.write_bytes(other.read_bytes() if change == "exchanged" else contents[change])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_folder_is_refused_or_answers_as_before(exported, folder, asked, name, change):
    other = {"uncertainty.safetensors": ENSEMBLE, "weights-0.safetensors": ENSEMBLE}.get(name, PLAIN)
    change_file(folder / name, change, exported[other] / name.replace("weights-0", "weights-1"))
    said = refusal(folder, asked)
    if name != "model.json" or change not in ("flipped", "exchanged"):
        assert name in said or change == "missing"
    assert said or name == "model.json"


def rewritten(folder, name, tensors):
    """Exchange the tensors of a file and give the record its new digest, as somebody hostile would."""
    old, metadata = read_tensors(folder / name, framework="torch")
    metadata.pop("sha256", None)
    write_tensors(folder / name, tensors(old), metadata)
    record = undigested(folder / "model.json")
    digest = content_digest(folder / name)
    if name == "reference.safetensors":
        record["reference"] = digest
    else:
        record["files"][name] = digest
    (folder / "model.json").write_text(resigned(record))


def first(old, value):
    """The first matrix of a file with one entry set."""
    name = next(name for name, tensor in old.items() if tensor.ndim > 1 and tensor.is_floating_point())
    changed = old[name].clone()
    changed.view(-1)[0] = value
    return old | {name: changed}


@pytest.mark.parametrize("name", WHOLE[:2])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_no_numbers_are_refused(folder, asked, name, value):
    rewritten(folder, name, lambda old: first(old, float(value)))
    assert refusal(folder, asked)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", ["short", "integers", "bfloat16", "scalars", "renamed"])
def test_tensors_of_another_form_are_refused(folder, asked, name, kind):
    import torch

    forms = {
        "short": lambda tensor: tensor[:-1].clone() if tensor.ndim > 1 else tensor[None],
        "integers": lambda tensor: tensor.long(),
        "bfloat16": lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor,
        "scalars": lambda _: torch.tensor(1.0),
    }
    if kind == "renamed":
        rewritten(folder, name, lambda old: {f"other.{key}": value for key, value in old.items()})
    else:
        rewritten(folder, name, lambda old: {key: forms[kind](value) for key, value in old.items()})
    assert refusal(folder, asked)


@pytest.mark.parametrize("where", [("settings", "dim"), ("facts", "dim"), ("facts", "num_images")])
@pytest.mark.parametrize("value", [10**9, 10**30, -1, "x", None, [], 1.5])
def test_sizes_that_make_no_network_are_refused(folder, asked, where, value):
    record = undigested(folder / "model.json")
    record["members"][0][where[0]][where[1]] = value
    (folder / "model.json").write_text(resigned(record))
    assert refusal(folder, asked) or where[1] == "num_images"


@pytest.mark.parametrize(
    "command",
    [
        ["search", "m", "g", "photo.png"],
        ["index", "m", "new", "photos"],
        ["vectors", "m", "photos", "v.parquet"],
        ["export", "m", "copy"],
        ["certify", "m", "g", "--risk", "0.5"],
    ],
)
def test_commands_say_in_one_line_what_is_wrong(folder, photos, monkeypatch, capsys, command):
    monkeypatch.chdir(folder.parent)
    shutil.copytree(photos[0], "photos")
    shutil.copy(next(folder.parent.glob("photos/*/*.png")), "photo.png")
    assert cli.main(["index", "m", "g", "photos"]) == 0
    (folder / "reference.safetensors").unlink()
    capsys.readouterr()
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "reference.safetensors is missing" in said
    assert "Traceback" not in said
