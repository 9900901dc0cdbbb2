"""Photographs: crops, jitter and normalisation agree with torchvision and depend on (seed, epoch, index) only."""

import io

import miniatures
import numpy as np
import pytest
import torch
from PIL import Image

from probmetric.data import open_images, prepare_dataset
from probmetric.data.images import Eye, PreparedImages, batches
from probmetric.data.samplers import Batching, create_sampler, pair_sampler, pairs_of_classes
from probmetric.data.views import create_view
from probmetric.data.views._base import uniforms
from probmetric.data.views.photos import Photos, crop_window, jittered

ROWS = np.arange(12) * 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    raw = miniatures.build("cub", root / "raw")
    return prepare_dataset("cub", root / "cub", raw=raw, workers=1, subset=True, progress=False)


@pytest.fixture(scope="module")
def store(folder):
    return open_images(folder)


TRANSFORM = Photos(size=32, resize=40, scale=(0.2, 1.0), jitter=(0.3, 0.3, 0.3, 0.1))


@pytest.mark.parametrize(
    "options", [{}, {"square": True, "ratio": (1.0, 1.0)}, {"square": True, "resize": 0}, {"crop": False}]
)
def test_a_view_is_the_same_in_any_batch(store, options):
    transform = Photos(**{"size": 32, "resize": 40, "jitter": (0.3, 0.3, 0.3, 0.1)} | options)

    def views(rows, seed=1, epoch=2):
        loaded = transform.load(store.load(rows), rows, seed=seed, epoch=epoch)
        assert loaded.dtype == torch.uint8
        assert loaded.shape == (len(rows), 3, 32, 32)
        return transform(loaded, rows, seed=seed, epoch=epoch)

    whole = views(ROWS)
    torch.testing.assert_close(torch.cat([views(ROWS[:5]), views(ROWS[5:])]), whole, rtol=0, atol=2e-6)
    torch.testing.assert_close(views(ROWS[::-1].copy()).flip(0), whole, rtol=0, atol=2e-6)
    assert not torch.equal(views(ROWS, epoch=3), whole)
    assert not torch.equal(views(ROWS, seed=2), whole)


def test_crop_windows_follow_torchvisions_distribution():
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    image = torch.empty(3, 120, 200)
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    theirs = np.array([RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(4000)])
    draws = uniforms(0, 0, np.arange(4000), 22)
    ours = np.array([crop_window(120, 200, scale, ratio, draw) for draw in draws])
    assert (ours >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= 120).all()
    assert (ours[:, 1] + ours[:, 3] <= 200).all()
    from scipy.stats import ks_2samp

    for column in range(4):
        assert ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > 1e-3


def test_an_impossible_crop_falls_back_to_the_centre():
    draw = np.full(22, 0.5)
    assert crop_window(10, 100, (1.0, 1.0), (0.75, 4 / 3), draw) == (0, 43, 10, 13)
    assert crop_window(100, 10, (1.0, 1.0), (0.75, 4 / 3), draw) == (43, 0, 13, 10)


def test_a_crop_is_the_resized_window(store):
    from torchvision.transforms import functional

    loaded = TRANSFORM.load(store.load(ROWS), ROWS, seed=0, epoch=0)
    mirrored = uniforms(0, 0, ROWS, 23)[:, 22] < 0.5
    assert mirrored.any()
    assert not mirrored.all()
    loaded = [view.flip(-1) if flip else view for view, flip in zip(loaded, mirrored, strict=True)]
    for view, row, draw in zip(loaded, ROWS, uniforms(0, 0, ROWS, 22), strict=True):
        image = torch.from_numpy(store[int(row)].copy()).permute(2, 0, 1)
        top, left, h, w = crop_window(*image.shape[1:], TRANSFORM.scale, TRANSFORM.ratio, draw)
        expected = functional.resized_crop(image, top, left, h, w, [32, 32], antialias=True)
        assert (view.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("transform", [Photos(size=32, resize=40), Photos(size=32, resize=40, square=True),
                                       Photos(size=32, resize=0)])  # fmt: skip
def test_the_evaluation_view_is_torchvisions(store, transform):
    from torchvision.transforms import functional

    loaded = transform.load_plain(store.load(ROWS))
    for view, row in zip(loaded, ROWS, strict=True):
        image = torch.from_numpy(store[int(row)].copy()).permute(2, 0, 1)
        size = [40, 40] if transform.square else [32, 32] if not transform.resize else [40]
        resized = functional.resize(image, size, antialias=True)
        expected = functional.center_crop(resized, [32, 32])
        assert (view.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("which", range(4))
def test_jitter_agrees_with_torchvision(which):
    from torchvision.transforms import functional as f

    generator = torch.Generator().manual_seed(which)
    images = torch.rand(6, 3, 9, 11, generator=generator, dtype=torch.float64)
    images[0, 1:] = images[0, :1]
    draws = np.random.default_rng(which).random((6, 4))
    strength = [0.0] * 4
    strength[which] = 0.4
    adjust = (f.adjust_brightness, f.adjust_contrast, f.adjust_saturation, f.adjust_hue)[which]
    out = jittered(images, tuple(strength), draws)
    for image, draw, result in zip(images, draws, out, strict=True):
        factor = 0.4 * (2 * draw[which] - 1) + (which < 3)
        torch.testing.assert_close(result, adjust(image, factor), rtol=0, atol=1e-6)


def test_grey_images_have_no_hue():
    images, draws = torch.rand(2, 1, 5, 5), np.array([[0.1, 0.9, 0.5, 0.2], [0.7, 0.3, 0.5, 0.8]])
    hue = jittered(images, (0.2, 0.2, 0.0, 0.4), draws)
    assert torch.equal(hue, jittered(images, (0.2, 0.2, 0.0, 0.0), draws))


@pytest.mark.parametrize("options", [{"square": True}, {"ratio": (1e-6, 1e-6)}])
def test_crops_of_the_smallest_images_and_of_odd_shapes_are_not_empty(options):
    view, rows = Photos(size=8, **options), np.arange(40)
    for shape in ((1, 1, 3), (1, 30, 3), (30, 2, 3)):
        images = [np.full(shape, 7, dtype=np.uint8)] * len(rows)
        assert (view.load(images, rows, seed=0, epoch=0) == 7).all()


def test_normalisation():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5), dtype=np.uint8))
    out = Photos().normalise(images)
    values = images.double()
    mean, std = (torch.tensor(numbers).view(1, 3, 1, 1) for numbers in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = (values / 255 - mean) / std
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


def test_original_files_and_cached_pixels_give_the_same_views(folder, store, tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw")
    files = prepare_dataset("cub", tmp_path / "cub", raw=raw, workers=1, subset=True, store="files", progress=False)
    first, second = (TRANSFORM.load(s.load(ROWS), ROWS, seed=0, epoch=0) for s in (store, open_images(files)))
    assert torch.equal(first, second)


def test_splits_are_read_in_manifest_order(folder, store):
    transform = TRANSFORM.evaluation()
    images = PreparedImages.of_split(folder, "test")
    inputs = list(batches(images, Eye(TRANSFORM, (3, TRANSFORM.size)), size=10))
    assert sum(map(len, inputs)) == len(images) == 48
    torch.testing.assert_close(inputs[1], transform.normalise(transform.load_plain(store.load(images.index[10:20]))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": [0.0, 1.0]}, "above 0"),
        ({"resize": 100}, "at least size"),
        ({"size": 0}, "at least 1"),
        ({"mean": [0.5]}, "give both"),
    ],
)
def test_impossible_options_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        create_view("photos", **options)


def test_episodes_have_n_classes_of_k_distinct_images():
    labels = np.repeat(np.arange(9), [1, 2, 3, 4, 5, 6, 7, 8, 9])
    sampler = create_sampler(Batching("episodic", 12, 3, steps=50), labels, seed=0)
    episodes = sampler.epoch(0)
    assert len(episodes) == len(sampler) == 50
    for episode in episodes:
        found, counts = np.unique(labels[episode], return_counts=True)
        assert list(counts) == [3] * 4
        assert len(np.unique(episode)) == 12
        assert found.min() >= 2
    assert np.array_equal(episodes, sampler.epoch(0))
    assert not np.array_equal(episodes, sampler.epoch(1))
    with pytest.raises(ValueError, match="only 7 of 9 classes"):
        create_sampler(Batching("episodic", 24, 3), labels, seed=0)


def test_pairs_of_faces_use_every_image_and_any_partner():
    labels = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    partners = {position: set() for position in range(1, 15)}
    for epoch in range(60):
        pairs = np.concatenate(pair_sampler(*pairs_of_classes(labels), 7, seed=0).epoch(epoch)).reshape(-1, 2)
        assert (labels[pairs[:, 0]] == labels[pairs[:, 1]]).all()
        assert (pairs[:, 0] != pairs[:, 1]).all()
        assert sorted(pairs[:, 0]) == list(range(1, 15))
        for query, partner in pairs:
            partners[query].add(partner)
    for query, found in partners.items():
        assert found == set(np.flatnonzero(labels == labels[query])) - {query}


def test_pairs_of_places_take_their_positives():
    queries, positives = np.array([3, 8, 9]), [np.array([1, 2]), np.array([], dtype=int), np.array([5])]
    sampler = pair_sampler(queries, positives, 2, seed=0)
    seen = {tuple(pair) for epoch in range(30) for batch in sampler.epoch(epoch) for pair in batch.reshape(-1, 2)}
    assert seen == {(3, 1), (3, 2), (9, 5)}
    with pytest.raises(ValueError, match="0 queries have a positive"):
        pair_sampler(queries[1:2], positives[1:2], 2, seed=0)


def test_stored_jpegs_are_decoded_as_pil_does_with_and_without_torchvision(tmp_path, monkeypatch):
    raw = miniatures.build("cub", tmp_path / "raw", "folder")
    folder = prepare_dataset("cub", tmp_path / "cub", raw=raw, workers=1, subset=True, store="files", progress=False)
    images = open_images(folder)
    expected = np.asarray(Image.open(io.BytesIO(bytes(images.stored(3)))))
    np.testing.assert_array_equal(images[3], expected)
    monkeypatch.setattr("probmetric.data.decode._has_torchvision", lambda: False)
    np.testing.assert_array_equal(images[3], expected)
