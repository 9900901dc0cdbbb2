"""Images in order: a prepared folder, a dataset, arrays, files and single images are read alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from probmetric.data import DataError, prepare_dataset
from probmetric.data.images import Eye, ImageSource, PreparedImages, batches, readable_batches
from probmetric.data.loose import LooseImages, dataset_images, item_classes, loose_images
from probmetric.data.views._base import RawTensors
from probmetric.data.views.small import Small

EYE = Eye(Small(), (1, 32))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_dataset("digits", tmp_path_factory.mktemp("images") / "digits", progress=False)


class Digits(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Arrays of a prepared split with their labels."""

    def __init__(self, source: PreparedImages) -> None:
        self.source = source

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return next(iter(self.source.load(np.array([index])))), int(self.source.labels[index])


@pytest.fixture(scope="module")
def sources(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageSource]:
    """The first twenty test images, as everything that can hold them."""
    split = PreparedImages.of_split(prepared, "test")
    first = PreparedImages(split.store, split.index[:20], split.labels[:20])
    arrays = list(first.load(np.arange(20)))
    folder = tmp_path_factory.mktemp("files")
    for number, (pixels, label) in enumerate(zip(arrays, first.labels, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels[..., 0]).save(folder / str(label) / f"{number:02}.png")
    files = sorted(folder.rglob("*.png"), key=lambda file: file.name)
    dataset = Digits(split)
    names = [str(label) for label in first.labels]
    return {
        "prepared folder": first,
        "dataset": LooseImages(dataset_images(dataset), class_names=item_classes(dataset), eye=EYE),
        "arrays": LooseImages(arrays, class_names=names, eye=EYE),
        "images of PIL's": LooseImages([Image.fromarray(each[..., 0]) for each in arrays], class_names=names, eye=EYE),
        "files": LooseImages(files, class_names=[file.parent.name for file in files], eye=EYE),
    }


@pytest.mark.parametrize("kind", ["dataset", "arrays", "images of PIL's", "files"])
def test_every_source_gives_the_same_batches_and_labels(sources: dict[str, ImageSource], kind: str) -> None:
    expected, source = sources["prepared folder"], sources[kind]
    assert len(source) == len(expected) == 20
    assert np.array_equal(
        np.unique(source.labels, return_inverse=True)[1], np.unique(expected.labels, return_inverse=True)[1]
    )
    for size in (1, 6, 64):
        ours, theirs = batches(source, EYE, size=size), batches(expected, EYE, size=size)
        for images, others in zip(ours, theirs, strict=True):
            assert torch.equal(images, others)


@pytest.mark.parametrize("kind", ["prepared folder", "dataset"])
def test_processes_share_the_batches_of_a_source(sources: dict[str, ImageSource], kind: str) -> None:
    source = sources[kind]
    whole = list(batches(source, EYE, size=6))
    shares = [list(batches(source, EYE, size=6, first=rank, step=3)) for rank in range(3)]
    assert list(map(len, shares)) == [2, 1, 1]
    for number, images in enumerate(whole):
        assert torch.equal(images, shares[number % 3][number // 3])


def test_what_cannot_be_read_is_left_out_and_named_by_its_row(sources: dict[str, ImageSource]) -> None:
    arrays = list(sources["prepared folder"].load(np.arange(4)))
    source = LooseImages([arrays[0], b"no image", arrays[2], np.zeros((3, 3, 7))], eye=EYE)
    problems: dict[int, DataError] = {}
    (images,) = readable_batches(source, EYE, "cpu", problems)
    assert sorted(problems) == [1, 3]
    assert torch.equal(images, next(batches(LooseImages(arrays[::2], eye=EYE), EYE)))
    with pytest.raises(DataError, match="is no image"):
        list(batches(source, EYE))


def test_tensors_are_inputs_as_they_are() -> None:
    eye = Eye(RawTensors(shape=(3, 4, 6)), (3, 6))
    tensors = torch.rand(5, 3, 4, 6)
    source = LooseImages(list(tensors), eye=eye)
    assert torch.equal(torch.cat(list(batches(source, eye, size=2))), tensors)
    with pytest.raises(DataError, match=r"shape \(3, 4, 5\); the model was trained on tensors of shape \(3, 4, 6\)"):
        LooseImages([torch.rand(3, 4, 5)], eye=eye).load(np.zeros(1, dtype=np.int64))


@pytest.mark.parametrize(
    "classes", [["1", "2"], [1, 2], np.array(["1", "2"]), np.array([1, 2]), torch.tensor([1, 2])], ids=range(5)
)
@pytest.mark.parametrize("names", [None, np.array(["x", "y"])])
def test_classes_and_names_come_in_any_sequence(classes: Any, names: Any) -> None:
    items = loose_images([np.zeros((4, 4), np.uint8)] * 2, names, classes)
    assert list(items.class_names) == ["1", "2"]
    assert list(items.paths) == (["image 0", "image 1"] if names is None else ["x", "y"])


@pytest.mark.parametrize("kind", [str, object])
def test_an_array_of_paths_is_no_image(tmp_path: Path, kind: type) -> None:
    for name in "ab":
        Image.new("L", (4, 4)).save(tmp_path / f"{name}.png")
    listed = [str(tmp_path / f"{name}.png") for name in "ab"]
    assert list(loose_images(np.array(listed, dtype=kind)).paths) == listed


def test_no_classes_for_some_images_are_told() -> None:
    with pytest.raises(DataError, match="0 class_names for 1 images"):
        loose_images([np.zeros((4, 4), np.uint8)], class_names=[])


def test_images_without_an_encoder_cannot_be_loaded() -> None:
    with pytest.raises(DataError, match="no encoder reads these images yet"):
        loose_images([np.zeros((4, 4), np.uint8)]).load(np.zeros(1, dtype=np.int64))
