"""A folder of photographs is a dataset: class folders, or train/ and test/ with them, split as the options say."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from probmetric.config import ConfigError, Params, parse
from probmetric.data import DataError, doctor, load_manifest, load_metadata, open_images, prepare_dataset
from probmetric.data.status import dataset_status


def photographs(root, classes, count=6, where=""):
    generator = np.random.default_rng(len(where))
    for number in classes:
        folder = root / where / f"class {number}"
        folder.mkdir(parents=True)
        for image in range(count):
            pixels = generator.integers(0, 256, (40 + number, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{image}.png")
    return root


def prepared(raw, folder, **options):
    manifest = load_manifest(prepare_dataset("folder", folder, raw=raw, progress=False, workers=1, **options))
    return {split: rows.groupby("class_name").size().to_dict() for split, rows in manifest.groupby("split")}


def test_classes_are_split_for_retrieval(tmp_path):
    raw = photographs(tmp_path / "photos", range(10))
    (raw / "class 3" / "more").mkdir()
    Image.new("L", (30, 60)).save(raw / "class 3" / "more" / "grey.jpg")
    (raw / "class 3" / "notes.txt").write_text("no image")
    (raw / ".hidden").mkdir()
    found = prepared(raw, tmp_path / "shop")
    assert {split: len(classes) for split, classes in found.items()} == {"train": 3, "val": 2, "test": 5}
    assert not set(found["train"]) & set(found["test"])
    assert {name: count for classes in found.values() for name, count in classes.items()}["class 3"] == 7
    assert load_metadata(tmp_path / "shop")["protocol"] == "open_set"
    assert open_images(tmp_path / "shop")[0].shape[2] == 3
    assert doctor(tmp_path / "shop") == []
    before = (tmp_path / "shop" / "digest").read_bytes()
    assert prepared(raw, tmp_path / "shop") == found
    assert (tmp_path / "shop" / "digest").read_bytes() == before


def test_images_are_split_for_classification(tmp_path):
    raw = photographs(tmp_path / "photos", range(3), count=10)
    found = prepared(raw, tmp_path / "shop", split="by_image", test_fraction=0.3, val_fraction=0.3)
    assert all(set(classes.values()) == {{"train": 5, "val": 2, "test": 3}[split]} for split, classes in found.items())
    assert load_metadata(tmp_path / "shop")["protocol"] == "closed_set"


def test_folders_named_after_splits_are_the_splits(tmp_path):
    raw = photographs(photographs(tmp_path / "photos", range(4), where="train"), range(4, 6), where="test")
    found = prepared(raw, tmp_path / "shop")
    assert {split: len(classes) for split, classes in found.items()} == {"train": 2, "val": 2, "test": 2}
    assert set(found["test"]) == {"class 4", "class 5"}
    photographs(raw, range(6, 8), where="val")
    assert set(prepared(raw, tmp_path / "shop")["val"]) == {"class 6", "class 7"}


@pytest.mark.parametrize(
    ("split", "test", "message"),
    [
        ("by_class", range(2, 4), r"2 class\(es\) are in train/ and in test/ \(class 2, class 3\).*split: by_image"),
        ("by_image", range(3, 6), r"2 class\(es\) are in test/ only \(class 4, class 5\).*split: by_class"),
    ],
)
def test_folders_that_contradict_the_option_are_named(tmp_path, split, test, message):
    raw = photographs(photographs(tmp_path / "photos", range(4), where="train"), test, where="test")
    with pytest.raises(DataError, match=message):
        prepared(raw, tmp_path / "shop", split=split)


def test_small_classes_are_left_out_and_noted(tmp_path):
    raw = photographs(photographs(tmp_path / "photos", range(8)), [8], count=2)
    found = prepared(raw, tmp_path / "shop", min_images=3)
    assert "class 8" not in {name for classes in found.values() for name in classes}
    assert "1 class(es) left out, with fewer than 3 images: class 8" in (tmp_path / "shop" / "summary.json").read_text()
    with pytest.raises(DataError, match="no class has 99 images; add images or lower min_images"):
        prepared(raw, tmp_path / "shop", min_images=99)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_fraction": 1.0}, "test_fraction is 1.0; allowed: above 0 and below 1"),
        ({"min_images": 0}, "min_images is 0; allowed: at least 1"),
        ({"split": "by_day"}, "option 'split' is 'by_day'; allowed: 'by_class', 'by_image'"),
    ],
)
def test_impossible_options_are_answered(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path, tmp_path / "shop", **options)


def test_what_is_no_dataset_is_said(tmp_path):
    with pytest.raises(DataError, match=r"missing is no folder; set `raw`"):
        prepared(tmp_path / "missing", tmp_path / "shop")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no folder with images .*one folder per class"):
        prepared(tmp_path / "empty", tmp_path / "shop")
    with pytest.raises(DataError, match=r"has 6 class\(es\): too few to train on two .*lower test_fraction"):
        prepared(photographs(tmp_path / "few", range(6)), tmp_path / "shop")
    with pytest.raises(ConfigError, match=r"source 'folder' reads your own folder; name it: \{source: folder, raw"):
        parse(Params, {"datasets": ["digits"], "data": {"on_request": {"shop": {"source": "folder"}}}}, "params.yaml")


def test_the_status_says_whether_the_folder_is_there(tmp_path):
    row = dataset_status("shop", "folder", tmp_path / "photos", tmp_path / "prepared")
    assert (row.state, row.missing) == ("missing", (f"{tmp_path / 'photos'}/",))
    (tmp_path / "photos").mkdir()
    row = dataset_status("shop", "folder", tmp_path / "photos", tmp_path / "prepared")
    assert (row.state, row.missing, row.next_command) == ("ready", (), "probmetric data ensure shop")
