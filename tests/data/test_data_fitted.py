"""Images of another dataset are converted to the encoder's channels and size, as documented."""

import miniatures
import numpy as np
import pytest
import torch
from PIL import Image

from probmetric.data import open_images, prepare_dataset
from probmetric.data.images import Eye, PreparedImages, batches, with_channels
from probmetric.data.views._base import stacked
from probmetric.data.views.photos import Photos
from probmetric.data.views.small import Small


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("fitted")
    for name in ("cub", "mnist", "svhn"):
        miniatures.build(name, root / "raw" / name)
        prepare_dataset(name, root / name, raw=root / "raw", workers=1, subset=True, progress=False)
    return root


def test_luma_is_pils():
    colours = np.random.default_rng(0).integers(0, 256, (1, 30, 40, 3), dtype=np.uint8)
    ours = with_channels(torch.from_numpy(colours).permute(0, 3, 1, 2), 1)[0, 0].numpy()
    pils = np.asarray(Image.fromarray(colours[0]).convert("L"))
    assert np.abs(ours.astype(int) - pils.astype(int)).max() <= 1


def test_grey_is_repeated_and_equal_channels_are_untouched():
    grey = torch.arange(24, dtype=torch.uint8).view(1, 1, 4, 6)
    assert (with_channels(grey, 3) == grey).all()
    assert with_channels(grey, 3).shape == (1, 3, 4, 6)
    assert with_channels(grey, 1) is grey


@pytest.mark.parametrize("source", ["cub", "mnist", "svhn"])
@pytest.mark.parametrize(
    ("transform", "shape"),
    [(Small(), (1, 28)), (Small(), (3, 32)), (Photos(size=40, resize=44), (3, 40))],
    ids=["small grey", "small colour", "photographs"],
)
def test_every_dataset_fits_every_encoder(folders, source, transform, shape):
    images = PreparedImages.of_split(folders / source, "test")
    inputs = list(batches(images, Eye(transform, shape), size=16))
    assert {tuple(batch.shape[1:]) for batch in inputs} == {(shape[0], shape[1], shape[1])}
    assert sum(map(len, inputs)) == len(images) > 0
    assert min(batch.std() for batch in inputs) > 0.05


def test_a_matching_dataset_is_not_changed(folders):
    store, rows = open_images(folders / "svhn"), np.arange(5)
    views = Eye(Small(), (3, 32)).load(store.load(rows))
    assert (views == stacked(store.load(rows))).all()


def test_a_photograph_becomes_a_small_image_by_its_shorter_side(folders):
    from torchvision.transforms.v2 import functional

    store = open_images(folders / "cub")
    view = Eye(Small(), (3, 28)).load(store.load(np.array([3])))[0]
    photograph = torch.from_numpy(np.array(store[3])).permute(2, 0, 1)
    expected = functional.center_crop(functional.resize(photograph, 28, antialias=True), 28)
    assert (view.int() - expected.int()).abs().max() <= 1


def test_a_split_without_images_is_one_empty_batch(folders):
    images = PreparedImages.of_split(folders / "cub", "none")
    eye = Eye(Photos(size=40, resize=44), (3, 40))
    assert [tuple(batch.shape) for batch in batches(images, eye)] == [(0, 3, 40, 40)]
