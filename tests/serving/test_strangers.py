"""An image from another world is recognised by its pixels, whatever its embedding says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from serving_helpers import PLAIN

import probmetric
from probmetric import cli
from probmetric.data import load_columns, open_images
from probmetric.errors import ProbMetricError
from probmetric.serving.looks import NAMES, World, looks

WORLDS = {
    "white": np.full((32, 32), 255, np.uint8),
    "black": np.zeros((32, 32), np.uint8),
    "noise": np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8),
    "a slope": np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1)),
    "a photograph": (
        np.add.outer(np.linspace(90, 160, 300), np.linspace(-40, 60, 200))[..., None] + np.array([30, 0, -20])
    ).astype(np.uint8),
}


@pytest.fixture(scope="module")
def rows(project):
    prepared = project / "data/prepared/digits"
    store, split = open_images(prepared), load_columns(prepared, ["split"])["split"]
    return {name: [store[int(row)] for row in np.flatnonzero(split == name)] for name in ("train", "test")}


@pytest.fixture(scope="module")
def gallery(model, rows):
    return probmetric.Gallery.create(model, rows["train"])


@pytest.mark.parametrize("world", WORLDS)
def test_images_of_other_worlds_are_strangers(world, model, gallery):
    answer = model.search(gallery, WORLDS[world])[0]
    assert answer.withheld
    assert "a stranger: it looks like no image of the gallery" in answer.reason
    assert not model.search(gallery, WORLDS[world], any_image=True)[0].withheld


def test_images_of_the_same_world_are_answered(model, gallery, rows):
    """539 test digits against 898 training digits: next to none is taken for a stranger."""
    withheld = [answer.withheld for answer in model.search(gallery, rows["test"], k=1)]
    assert np.mean(withheld) < 0.01


def test_what_is_known_of_looks_is_stored(model, gallery, tmp_path):
    opened = probmetric.Gallery.open(gallery.save(tmp_path / "g"))
    assert model.search(opened, WORLDS["white"])[0].withheld


def test_what_removed_images_looked_like_is_forgotten(model, rows, tmp_path):
    """Hostile fault 6: noise that was indexed and removed again was no stranger any more."""
    generator = np.random.default_rng(1)
    noise = [generator.integers(0, 256, (32, 32), dtype=np.uint8) for _ in range(60)]
    names = [f"noise {number}" for number in range(50)]
    changed = probmetric.Gallery.create(model, rows["train"][:200], paths=[str(row) for row in range(200)])
    before = changed.digest
    assert all(answer.withheld for answer in model.search(changed, noise[50:], k=1))
    changed.add(model, noise[:50], paths=names)
    assert not any(answer.withheld for answer in model.search(changed, noise[50:], k=1))
    changed.save(tmp_path / "g")
    changed = probmetric.Gallery.open(tmp_path / "g")
    changed.remove(names)
    assert all(answer.withheld for answer in model.search(changed, noise[50:], k=1))
    assert changed.digest == before


def with_looks(gallery, looks):
    """The gallery with other pixel statistics."""
    return probmetric.Gallery(replace(gallery._content, looks=looks))


def test_a_gallery_may_know_no_looks(model, gallery, tmp_path):
    blind = with_looks(gallery, np.empty((len(gallery), 0), np.float32))
    opened = probmetric.Gallery.open(blind.save(tmp_path / "g"))
    assert not model.search(opened, WORLDS["white"])[0].withheld


def test_looks_that_are_infinite_are_refused(gallery, tmp_path):
    folder = with_looks(gallery, np.full((len(gallery), 7), np.inf, np.float32)).save(tmp_path / "g")
    with pytest.raises(ProbMetricError, match="looks are not finite"):
        probmetric.Gallery.open(folder)


def test_looks_of_another_kind_say_nothing(model, gallery, tmp_path):
    opened = with_looks(gallery, np.zeros((len(gallery), 3), np.float32))
    assert not model.search(opened, WORLDS["white"])[0].withheld


def test_a_search_in_a_runs_own_images_knows_strangers_too(project, tmp_path, monkeypatch, capsys):
    from PIL import Image

    Image.fromarray(WORLDS["white"]).save(tmp_path / "white.png")
    monkeypatch.chdir(project)
    assert cli.main(["search", PLAIN, str(tmp_path / "white.png")]) == 0
    assert "withheld: a stranger" in capsys.readouterr().out
    assert cli.main(["search", PLAIN, str(tmp_path / "white.png"), "--any-image"]) == 0
    assert "nearest:" in capsys.readouterr().out


def test_a_gallery_of_few_images_or_of_vectors_says_nothing(model):
    from test_fit import Blobs, train

    few = probmetric.Gallery.create(model, [WORLDS["noise"], WORLDS["a slope"]])
    assert not model.search(few, WORLDS["white"])[0].withheld
    vectors = train(epochs=0)
    gallery = probmetric.Gallery.create(vectors, Blobs(0))
    assert not vectors.search(gallery, Blobs(1).x[:1] * 100)[0].withheld


def test_the_world_of_a_gallery_is_computed_once_and_again_when_it_grows(model, rows, monkeypatch):
    """For 1,000 images that takes 70 ms, several times what a small network takes."""
    computed, whole = [], World.of
    monkeypatch.setattr(World, "of", lambda looks: computed.append(len(looks)) or whole(looks))
    growing = probmetric.Gallery.create(model, rows["train"][:40], paths=[str(number) for number in range(40)])
    for _ in range(2):
        model.search(growing, rows["test"][:1])
    growing.add(model, rows["train"][40:50], paths=[str(number) for number in range(40, 50)])
    model.search(growing, rows["test"][:1])
    assert computed == [40, 50]


def test_contrast_and_colour_are_standard_deviations():
    images = np.random.default_rng(0).normal(size=(3, 3, 9, 8)).astype(np.float32)
    found = dict(zip(NAMES, looks(torch.from_numpy(images)).T, strict=True))
    contrast = images.mean(axis=1).std(axis=(1, 2), ddof=1)
    assert found["contrast"] == pytest.approx(np.log(contrast + 1e-3), abs=1e-5)
    assert found["colour"] == pytest.approx(np.log(images.std(axis=1).mean(axis=(1, 2)) + 1e-3), abs=1e-5)
