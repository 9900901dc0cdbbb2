"""A small project with finished runs, made once: a plain encoder, one with a posterior, an ensemble."""

from __future__ import annotations

import contextlib

import pytest
from serving_helpers import ENSEMBLE, LAPLACE, PLAIN, RUNS

from built_once import package_files

PARAMS = """
data: {prepared: data/prepared}
datasets: [digits]
defaults:
  training: {epochs: 1, steps_per_epoch: 12, batch_size: 96, images_per_class: 4, learning_rate: 0.003}
  dim: 16
methods:
  arcface: {loss: arcface}
  laplace: {base: arcface, uncertainty: {name: laplace, samples: 8}}
  ensemble: {base: arcface, uncertainty: {name: ensemble, members: 2}}
evaluation: {ks: [1], clustering: false}
"""


def make_project(folder):
    from probmetric import cli

    (folder / "params.yaml").write_text(PARAMS)
    with contextlib.chdir(folder):
        assert cli.main(["prepare", "digits"]) == 0
        for run in RUNS:
            assert cli.main(["run", run]) == 0


@pytest.fixture(scope="session")
def project(built_once):
    """Folder of the project. Never change it."""
    return built_once.folder("served", make_project, package_files())


@pytest.fixture(scope="session")
def exported(project, tmp_path_factory):
    """Model folder by name of the run."""
    import probmetric

    place = tmp_path_factory.mktemp("models")
    found = {}
    for run in (PLAIN, LAPLACE, ENSEMBLE):
        found[run] = probmetric.load(project / "results" / run, device="cpu").save(place / run.split("/")[1])
    return found


@pytest.fixture(scope="session")
def model(exported):
    import probmetric

    return probmetric.load(exported[PLAIN], device="cpu")


@pytest.fixture(scope="session")
def photos(project, tmp_path_factory):
    """24 digits as PNG files in a folder per class, and which manifest row each is."""
    from PIL import Image

    from probmetric.data import load_columns, open_images

    prepared = project / "data/prepared/digits"
    columns, store = load_columns(prepared, ["class_name"]), open_images(prepared)
    folder = tmp_path_factory.mktemp("photos")
    rows = {}
    for row in range(24):
        place = folder / str(columns["class_name"][row]).replace(" ", "_")
        place.mkdir(exist_ok=True)
        Image.fromarray(store[row].squeeze()).save(place / f"{row:04}.png")
        rows[str(place / f"{row:04}.png")] = row
    return folder, rows


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory without a project."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    return tmp_path
