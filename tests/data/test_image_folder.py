"""One reader of folders for all commands: layouts of splits, links, hidden folders, kinds of pictures."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probmetric.data.image_folder import read_image_folder
from probmetric.data.loose import loose_images
from probmetric.data.manifest import DataError, load_manifest
from probmetric.data.prepare import prepare_dataset

CLASSES = ("cat", "dog", "emu", "fox")


def pictures(place: Path, names: tuple[str, ...] = CLASSES, count: int = 3) -> Path:
    for number, name in enumerate(names):
        (place / name).mkdir(parents=True, exist_ok=True)
        for image in range(count):
            draw = np.random.default_rng([number, image, len(place.parts)])
            Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(place / name / f"{image}.png")
    return place


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        ("train test", {"train", "test"}),
        ("train val", {"train", "test"}),  # ImageNet's: the published val/ is what is tested on
        ("Train Test", {"train", "test"}),
        ("TRAIN VAL TEST", {"train", "val", "test"}),
        ("training validation testing", {"train", "val", "test"}),
        ("training testing", {"train", "test"}),
        ("train valid test", {"train", "val", "test"}),
        ("train_set test_set", {"train", "test"}),
        ("Training Data,Testing Data", {"train", "test"}),
        ("train_images val_images", {"train", "test"}),
        ("trainset valset testset", {"train", "val", "test"}),
        ("train2017 val2017", {"train", "test"}),
        ("shop_train shop_test", {"train", "test"}),
        ("seg_train/seg_train seg_test/seg_test", {"train", "test"}),  # an archive in a folder of its own name
        ("train dev test", {"train", "val", "test"}),
        ("data/train data/test", {"train", "test"}),
        ("bounding_box_train bounding_box_test query", {"train", "gallery", "query"}),  # Market-1501's
        ("train query test", {"train", "gallery", "query"}),
        ("val test", {"val", "test"}),
    ],
)
def test_folders_of_splits_are_no_classes(tmp_path, folders, splits):
    for name in folders.split("," if "," in folders else " "):
        pictures(tmp_path / "photos" / name)
    folder = read_image_folder(tmp_path / "photos")
    assert {image.class_name for image in folder.images} == set(CLASSES)
    assert {image.split for image in folder.images} == splits
    assert folder.names_splits
    assert ("there is no test folder" in " ".join(folder.notes)) == ("val" in folders and "test" not in folders)


def test_folders_of_splits_may_lie_in_those_of_classes(tmp_path):
    root = tmp_path / "photos"
    for name in CLASSES:
        pictures(root / name, ("train", "test/good"))
    images = read_image_folder(root).images
    assert {(image.class_name, image.split) for image in images} == {(c, s) for c in CLASSES for s in ("train", "test")}
    pictures(root, ("gnu",))
    with pytest.raises(DataError, match=r"cat/ holds folders of splits \(test, train\), gnu/ beside it does not"):
        read_image_folder(root)


@pytest.mark.parametrize("names", [("train", "test"), ("train/cat", "train/dog", "test"), ("val", "test")])
def test_splits_without_classes_are_refused(tmp_path, names):
    with pytest.raises(DataError, match=r"the images in test/ lie in no folders of classes; make one per class"):
        read_image_folder(pictures(tmp_path / "photos", names))


@pytest.mark.parametrize("only", ["data", "train", "a/b"])
def test_classes_may_lie_in_a_single_folder(tmp_path, only):
    root = pictures(tmp_path / "photos" / only).parents[only.count("/")]
    Image.new("RGB", (9, 9)).save(root / "cover.png")
    folder = read_image_folder(root)
    assert {(image.class_name, image.split) for image in folder.images} == {*((name, "") for name in CLASSES), ("", "")}
    assert folder.notes == [f"{only}/ is the only folder: classes are the folders in it"]


@pytest.mark.parametrize("names", [("train", "bus"), ("passenger train", "crash test"), ("train",), ("cat", "cat/old")])
def test_classes_may_be_called_as_splits(tmp_path, names):
    folder = read_image_folder(pictures(tmp_path / "photos", names))
    assert {image.class_name for image in folder.images} == {name.partition("/")[0] for name in names}
    assert not folder.names_splits


def test_classes_beside_splits_and_two_folders_of_one_split_are_refused(tmp_path):
    root = tmp_path / "photos"
    pictures(root / "train")
    pictures(root / "test")
    pictures(root, ("more",))
    with pytest.raises(DataError, match=r"beside the folders of splits \(test, train\) there are others .*\(more\)"):
        read_image_folder(root)
    (root / "more").rename(tmp_path / "more")
    pictures(root / "Training")
    with pytest.raises(DataError, match=r"Training, test, train two name the same split"):
        read_image_folder(root)


def test_hidden_folders_and_files_are_no_images(tmp_path):
    root = pictures(tmp_path / "photos")
    pictures(root, (".ipynb_checkpoints", "cat/.thumbs", ".git", "@eaDir", "__MACOSX", "dog/@eaDir", "$RECYCLE.BIN"))
    (root / "cat" / "._0.png").write_bytes(b"resource fork")
    (root / "cat" / "notes.txt").write_text("no picture")
    assert len(read_image_folder(root).images) == 12


def test_pictures_that_are_not_read_are_named_where_they_belong_to_a_class(tmp_path):
    root = pictures(tmp_path / "photos")
    (root / "logo.svg").touch()
    assert read_image_folder(root).unread == ""
    for name in ("a.tga", "b.EXR", "c.exr"):
        (root / "cat" / name).touch()
    fixes = r"(2 .exr, 1 .tga: convert it to JPEG or PNG)"
    assert read_image_folder(root).unread == f"3 picture(s) of kinds that are not read, such as cat/a.tga {fixes}"


def test_a_class_name_in_two_unicode_forms_is_one_class(tmp_path):
    root = pictures(tmp_path / "photos", ("caf\u00e9", "tea"))
    pictures(root, ("cafe\u0301",))
    if len(list(root.iterdir())) < 3:
        pytest.skip("this file system knows one form only")
    assert {image.class_name for image in read_image_folder(root).images} == {"caf\u00e9", "tea"}
    assert set(loose_images(root).class_names) == {"caf\u00e9", "tea"}


@pytest.mark.parametrize("others", ["train", ""])
def test_query_and_gallery_are_splits(tmp_path, others):
    for name in ("query", "Gallery", *others.split()):
        pictures(tmp_path / "photos" / name)
    folder = read_image_folder(tmp_path / "photos")
    assert {image.class_name for image in folder.images} == set(CLASSES)
    assert {image.split for image in folder.images} == {"query", "gallery", *others.split()}
    assert folder.notes == []


def test_links_out_are_listed_and_followed_when_told_to(tmp_path):
    root = pictures(tmp_path / "photos", CLASSES[:2])
    store = pictures(tmp_path / "store", CLASSES[2:])
    for name in CLASSES[2:]:
        (root / name).symlink_to(store / name)
    (root / "cat" / "out.png").symlink_to(store / "fox" / "0.png")
    (root / "cat" / "gone.png").symlink_to("nowhere.png")
    folder = read_image_folder(root)
    assert {image.class_name for image in folder.images} == set(CLASSES[:2])
    assert folder.links_out == ["cat/gone.png", "cat/out.png", "emu", "fox"]
    folder = read_image_folder(root, follow_links=True)
    assert {image.class_name for image in folder.images} == set(CLASSES)
    assert folder.links_out == []
    assert len(folder.images) == 14, "a link to nothing is an image that cannot be read"


def test_a_folder_of_links_alone_is_read(tmp_path):
    store, root = pictures(tmp_path / "store", count=6), tmp_path / "photos"
    for file in store.rglob("*.png"):
        link = root / file.relative_to(store)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    assert len(read_image_folder(root).images) == 24
    (tmp_path / "linked").mkdir()
    for name in CLASSES:
        (tmp_path / "linked" / name).symlink_to(store / name)
    assert len(read_image_folder(tmp_path / "linked").images) == 24
    prepare_dataset("folder", tmp_path / "shop", raw=root, split="by_image", progress=False)
    assert set(load_manifest(tmp_path / "shop")["class_name"]) == set(CLASSES)


def test_links_inside_the_folder_are_read_and_circles_end(tmp_path):
    root = pictures(tmp_path / "photos")
    (root / "cat" / "again.png").symlink_to(root / "cat" / "0.png")
    (root / "gnu").symlink_to(root / "fox")
    (root / "cat" / "up").symlink_to(root)
    (root / "loop").symlink_to("loop")
    for follow in (False, True):
        folder = read_image_folder(root, follow_links=follow)
        assert len(folder.images) == 16
        assert {image.class_name for image in folder.images} == {*CLASSES, "gnu"}


def test_links_of_outside_folders_to_each_other_end(tmp_path):
    root = pictures(tmp_path / "photos")
    one, two = (pictures(tmp_path / name, ("inner",)) for name in ("one", "two"))
    (root / "one").symlink_to(one)
    (one / "inner" / "two").symlink_to(two)
    (two / "inner" / "one").symlink_to(one)
    (two / "up").symlink_to(two)
    folder = read_image_folder(root, follow_links=True)
    assert len(folder.images) == 12 + 3 + 3
    assert folder.links_out == []


def test_what_is_no_folder_or_holds_nothing_is_said(tmp_path):
    with pytest.raises(DataError, match="is no folder"):
        read_image_folder(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no images \(\.jpg, .*one folder per class"):
        read_image_folder(tmp_path / "empty")


def test_loose_images_have_no_class_and_groups_are_the_folders_below(tmp_path):
    root = pictures(tmp_path / "photos", ("cat/white", "cat/black", "dog"))
    Image.new("RGB", (9, 9)).save(root / "loose.png")
    folder = read_image_folder(root)
    assert {(image.class_name, image.group) for image in folder.images} == {
        ("cat", "cat/white"), ("cat", "cat/black"), ("", "loose.png"), *(("dog", f"dog/{k}.png") for k in range(3)),
    }  # fmt: skip


def test_a_gallery_reads_folders_as_datasets_do(tmp_path, caplog):
    from probmetric.data.loose import loose_images

    pictures(tmp_path / "photos/train")
    pictures(tmp_path / "photos/test")
    Image.new("RGB", (9, 9)).save(tmp_path / "photos/train/cat/x.jfif", "JPEG")
    (tmp_path / "photos/train/cat/x.heic").write_bytes(b"another kind")
    with caplog.at_level(logging.WARNING):
        items = loose_images(tmp_path / "photos")
    assert set(items.class_names) == set(CLASSES)
    assert len(items.images) == 26, "also what cannot be read, which embedding then names"


def test_a_file_under_two_classes_is_named(tmp_path, caplog):
    from probmetric.data.loose import loose_images

    root = pictures(tmp_path / "photos")
    os.link(root / "cat/1.png", root / "dog/hard.png")  # another file, as far as paths say
    loose_images(root)
    assert not caplog.messages
    (root / "dog/soft.png").symlink_to(root / "cat/0.png")
    loose_images(root)
    (message,) = caplog.messages
    assert message.startswith("1 file(s) are listed under two classes, such as ")
    assert "dog/soft.png ('cat' and 'dog'): the last one counts; remove the other" in message
    caplog.clear()
    same = [str(root / "cat/0.png"), f"{root}/./cat/0.png"]
    loose_images(same, class_names=["cat", "cat"])
    assert not caplog.messages
    loose_images(same, class_names=["cat", "tiger"])
    assert "('cat' and 'tiger')" in caplog.text
