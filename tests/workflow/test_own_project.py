"""A project started by `probmetric init` in an empty folder, without DVC: what runs again, and what does not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probmetric.data.manifest import load_manifest
from probmetric.io import read_json

pytestmark = [pytest.mark.slow, pytest.mark.workflow]
RUN = "shop/contrastive+training.epochs=1/seed0"
REPORT = {"report", "track"}
FROM_DATA = {"prepare": {"shop"}, "run": {RUN}}


def photo(path: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def one_short_run(experiment) -> None:
    short = {"methods": ["contrastive"], "seeds": [0], "set": {"training.epochs": 1}}
    experiment["runs"] = [experiment["runs"][0] | short]
    experiment["figures"] = ["learning_curves"]


@pytest.fixture(scope="module")
def own_project(tmp_path_factory, in_folder):
    """Finished: one run on 4 classes of 24 photos."""
    folder = tmp_path_factory.mktemp("own") / "project"
    folder.mkdir()
    for number in range(96):
        photo(folder / f"photos/kind {number % 4}/{number}.png", number)
    started = in_folder(folder, "shop")
    started.command("probmetric", "init", "photos", "--name", "shop")
    started.edit_yaml("workflow/experiments/shop.yaml", one_short_run)
    started.snakemake()
    return started


def of_the_run(jobs):
    return {rule: names for rule, names in jobs.items() if rule not in REPORT}


def test_a_second_call_runs_nothing_and_needs_no_options(own_project):
    assert own_project.planned() == {}
    said = own_project.command("snakemake", "--config", "experiments=shop", "-n").stdout
    assert "Nothing to be done" in said


def test_other_times_of_the_same_photos_run_nothing(own_project):
    for path in (own_project.folder / "photos").rglob("*.png"):
        os.utime(path)
    assert own_project.planned() == {}


def test_an_option_has_the_data_prepared_again_and_what_came_from_it_made_again(own_project):
    params = own_project.folder / "params.yaml"
    before = params.read_text()
    assert "val_fraction: 0.3" in before
    params.write_text(before.replace("val_fraction: 0.3", "val_fraction: 0.2"))
    assert of_the_run(own_project.planned()) == FROM_DATA
    said = own_project.command("probmetric", "status", "shop").stdout
    assert "dataset shop: val_fraction 0.3 -> 0.2" in said
    params.write_text(before.replace("split: by_image", "split: by_image, test_fraction: 0.5"))  # its default
    assert own_project.planned() == {}
    params.write_text(before)
    assert own_project.planned() == {}


def test_a_new_photo_is_prepared_and_what_came_from_the_data_is_made_again(own_project):
    trained = own_project.folder / "results" / RUN / "model.safetensors"
    before = trained.read_bytes()
    photo(own_project.folder / "photos/kind 0/new.png", 99)
    assert of_the_run(own_project.planned()) == FROM_DATA
    assert "runs     probmetric ui" in own_project.snakemake()
    assert "kind 0/new.png" in set(load_manifest(own_project.folder / "data/prepared/shop")["path"])
    assert trained.read_bytes() != before
    assert own_project.planned() == {}


def test_another_photo_of_the_same_name_and_size_is_seen(own_project):
    path = own_project.folder / "photos/kind 1/1.png"
    image = Image.open(path).rotate(180)
    before = path.read_bytes()
    image.save(path)
    path.write_bytes(path.read_bytes().ljust(len(before), b"\0"))
    assert of_the_run(own_project.planned()) == FROM_DATA
    path.write_bytes(before)
    assert own_project.planned() == {}


def test_data_without_its_photos_is_used_as_it_is(own_project):
    (own_project.folder / "photos").rename(own_project.folder / "elsewhere")
    assert own_project.planned() == {}
    (own_project.folder / "elsewhere").rename(own_project.folder / "photos")
    assert read_json(own_project.folder / "data/prepared/shop/summary.json")["source"] == "folder"
