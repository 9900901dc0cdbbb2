"""An image from another world is recognised by its pixels, whatever its embedding says."""

import numpy as np
import pytest
import torch
from serving_helpers import PLAIN, undigested

import probmetric
from probmetric import cli
from probmetric.data import load_columns, open_images
from probmetric.errors import ProbMetricError
from probmetric.serving._look import NAMES, World, looks

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


def test_what_is_known_of_looks_is_stored_and_missed(model, gallery, tmp_path):
    gallery.save(tmp_path / "g")
    opened = probmetric.Gallery.open(tmp_path / "g")
    assert model.search(opened, WORLDS["white"])[0].withheld
    next((tmp_path / "g").glob("looks-*")).unlink()
    with pytest.raises(ProbMetricError, match=r"looks-\w+\.safetensors is missing"):
        probmetric.Gallery.open(tmp_path / "g")


def with_looks(gallery, folder, shape):
    """As galleries of earlier versions are: gallery.json does not name the file of looks, or that there is none."""
    from probmetric.io import write_json, write_tensors

    gallery.save(folder)
    next(folder.glob("looks-*")).unlink()
    index = undigested(folder / "gallery.json")
    del index["looks"]
    write_json(folder / "gallery.json", index)
    if shape:
        write_tensors(folder / "looks.safetensors", {"looks": np.zeros(shape, np.float32)})
    return folder


def test_a_gallery_of_an_earlier_version_may_know_no_looks_and_is_stored_with_them(model, gallery, tmp_path):
    folder = with_looks(gallery, tmp_path / "g", None)
    assert not model.search(probmetric.Gallery.open(folder), WORLDS["white"])[0].withheld
    opened = probmetric.Gallery.open(with_looks(gallery, tmp_path / "h", (30, 3)))
    opened.save()
    assert [path.name for path in (tmp_path / "h").glob("looks*")] == [next((tmp_path / "h").glob("looks-*")).name]
    assert probmetric.Gallery.open(tmp_path / "h").looks.shape == (30, 3)


@pytest.mark.parametrize("shape", [(2000, 3), (7,)])
def test_hostile_looks_are_refused(gallery, tmp_path, shape):
    with pytest.raises(ProbMetricError, match=r"looks\.safetensors is damaged"):
        probmetric.Gallery.open(with_looks(gallery, tmp_path / "g", shape))


def test_looks_of_another_kind_say_nothing(model, gallery, tmp_path):
    opened = probmetric.Gallery.open(with_looks(gallery, tmp_path / "g", (30, 3)))
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
