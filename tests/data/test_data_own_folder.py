"""A folder of photographs is a dataset: class folders, or train/ and test/ with them, split as the options say."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from zlib import compress, crc32

import numpy as np
import pytest
from PIL import Image

from probmetric.config import ConfigError, Params, parse
from probmetric.data import DataError, doctor, load_manifest, load_metadata, open_images, prepare_dataset
from probmetric.data.decode import NEEDED
from probmetric.data.sources._own import LEAST_ASKED, _too_small
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
        (
            "by_class",
            range(2, 4),
            r"2 class\(es\) are in test/ and in train/ or val/ \(class 2, .*: by_image\.",
        ),
        ("by_class", range(3, 6), r"1 class\(es\) are in test/ and in train/ or val/ \(class 3\); move them\.$"),
        ("by_image", range(4, 6), r"2 class\(es\) are in test/ or val/, and not in train/ \(class 4, .*: by_class\."),
        ("by_image", range(3, 6), r"2 class\(es\) are in test/ or val/, and not in train/ \(.*\); move them\.$"),
    ],
)
def test_folders_that_contradict_the_option_are_named(tmp_path, split, test, message):
    raw = photographs(photographs(tmp_path / "photos", range(4), where="train"), test, where="test")
    with pytest.raises(DataError, match=message):
        prepared(raw, tmp_path / "shop", split=split)


@pytest.mark.parametrize(
    ("split", "val", "test", "wrong"),
    [("by_class", range(4, 6), range(4, 6), "class 4, class 5"), ("by_image", [8], range(4), "class 8")],
)
def test_validation_classes_are_no_test_classes_and_known_where_classes_are_known(tmp_path, split, val, test, wrong):
    """Epochs and the recommended method were chosen on the classes that then tested them."""
    raw = photographs(photographs(tmp_path / "photos", range(4), where="train"), val, where="val")
    with pytest.raises(DataError, match=rf"\({wrong}\); move them\.$"):
        prepared(photographs(raw, test, where="test"), tmp_path / "shop", split=split)


def test_small_classes_are_left_out_and_noted(tmp_path):
    raw = photographs(photographs(tmp_path / "photos", range(8)), [8], count=2)
    found = prepared(raw, tmp_path / "shop", min_images=3)
    assert "class 8" not in {name for classes in found.values() for name in classes}
    assert "1 class(es) left out, with fewer than 3 images: class 8" in (tmp_path / "shop" / "summary.json").read_text()
    with pytest.raises(DataError, match="no class has 99 images; add images or lower min_images"):
        prepared(raw, tmp_path / "shop", min_images=99)


@pytest.mark.parametrize("split", ["by_class", "by_image"])
def test_too_few_classes_are_told_with_what_was_left_out_and_what_helps(tmp_path, split):
    raw = photographs(photographs(tmp_path / "photos", [0]), [8], count=1)
    left_out = r"has 1 class\(es\) \(.*fewer than 2 images: class 8\): too few to train on\. Add classes\.$"
    with pytest.raises(DataError, match=left_out):
        prepared(raw, tmp_path / "shop", split=split)
    two = photographs(tmp_path / "two", range(2))
    if split == "by_class":
        with pytest.raises(DataError, match=r"has 2 class.*set split: by_image"):
            prepared(two, tmp_path / "shop", split=split)


def test_no_image_to_validate_on_is_told_where_the_data_name_their_splits(tmp_path):
    for split in ("train", "test"):
        photographs(tmp_path / "photos", range(4), count=1, where=split)
    with pytest.raises(
        DataError, match=r"one image to train on, or none\. Add images; if the data name no splits, lower"
    ):
        prepared(tmp_path / "photos", tmp_path / "shop", split="by_image")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_fraction": 1.0}, "'test_fraction' is 1.0; allowed: a number above 0, below 1"),
        ({"min_images": 0}, "'min_images' is 0; allowed: a number at least 1"),
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
    with pytest.raises(DataError, match=r"holds no images .*one folder per class"):
        prepared(tmp_path / "empty", tmp_path / "shop")
    flat = photographs(tmp_path / "table", range(1)) / "photos.csv"
    for image in [*flat.parent.rglob("*.*")]:
        image.rename(flat.parent / image.name)
    flat.write_text("path,label\n")
    with pytest.raises(DataError, match=rf"one folder per class is expected, or the name of a table: {flat}"):
        prepared(flat.parent, tmp_path / "shop")
    with pytest.raises(DataError, match=r"has 6 class\(es\): too few to train on two .*lower test_fraction"):
        prepared(photographs(tmp_path / "few", range(6)), tmp_path / "shop")
    with pytest.raises(ConfigError, match=r"source 'folder' reads your own folder; name it: \{source: folder, raw"):
        parse(Params, {"datasets": ["digits"], "data": {"on_request": {"shop": {"source": "folder"}}}}, "params.yaml")


def test_the_status_says_whether_the_folder_is_there(tmp_path):
    row = dataset_status("shop", "folder", tmp_path / "photos", tmp_path / "prepared")
    assert (row.state, row.missing) == ("missing", (f"{tmp_path / 'photos'}/",))
    row = dataset_status("listed", "table", tmp_path / "images.csv", tmp_path / "prepared")
    assert row.next_command == f"put {tmp_path / 'images.csv'}, then probmetric data ensure listed"
    (tmp_path / "photos").mkdir()
    row = dataset_status("shop", "folder", tmp_path / "photos", tmp_path / "prepared")
    assert (row.state, row.missing, row.next_command) == ("ready", (), "probmetric data ensure shop")


def test_every_bad_image_is_named_and_can_be_left_out(tmp_path):
    """Issue 19: 40,000 photos with three broken ones needed four attempts."""
    raw = photographs(tmp_path / "photos", range(8), count=10)
    for number, damage in ((1, b""), (4, b"no image"), (6, (raw / "class 6" / "3.png").read_bytes()[:60])):
        (raw / f"class {number}" / "3.png").write_bytes(damage)
    with pytest.raises(
        DataError,
        match=r"3 images cannot be read .*`on_error: skip`.*:(.|\n)*class 1/3(.|\n)*class 4/3(.|\n)*class 6/3",
    ):
        prepared(raw, tmp_path / "shop")
    assert not (tmp_path / "shop").exists()
    found = prepared(raw, tmp_path / "shop", on_error="skip")
    counts = {name: count for classes in found.values() for name, count in classes.items()}
    assert [counts[f"class {number}"] for number in range(8)] == [10, 9, 10, 10, 9, 10, 9, 10]
    summary = json.loads((tmp_path / "shop" / "summary.json").read_text())
    assert len(summary["left_out"]) == 3
    assert "3 image(s) left out because they cannot be read; see left_out" in summary["notes"]
    assert load_metadata(tmp_path / "shop")["left_out"] == 3
    assert doctor(tmp_path / "shop") == []


def test_more_bad_images_than_are_left_out_are_not_told_to_be_left_out(tmp_path, monkeypatch):
    raw = photographs(tmp_path / "photos", range(8), count=3)
    for number in range(3):
        (raw / f"class {number}" / "0.png").write_bytes(b"")
    monkeypatch.setattr("probmetric.data.prepare.TOO_MANY", 2)
    with pytest.raises(DataError, match=r"3 images cannot be read \(`on_error: skip` leaves out at most 2, .* mend"):
        prepared(raw, tmp_path / "shop", on_error="skip")


def test_pictures_without_an_ending_are_to_be_named_however_errors_are_taken(tmp_path):
    raw = photographs(tmp_path / "photos", range(4))
    for picture in sorted(raw.rglob("*.png")):
        picture.rename(picture.with_suffix(""))
    for on_error in ("raise", "skip"):
        with pytest.raises(DataError, match=r"24 without an ending: name it \.jpg, \.png or what it is"):
            prepared(raw, tmp_path / "shop", on_error=on_error)


@pytest.mark.parametrize("gone", ["train", "val"])
def test_a_split_whose_images_are_all_copies_of_test_images_is_refused(tmp_path, gone):
    raw = tmp_path / "photos"
    for split in ("train", "val", "test"):
        photographs(raw, range(3), count=2, where=split)
    shutil.rmtree(raw / gone)
    shutil.copytree(raw / "test", raw / gone)
    for store in ("pixels", "files"):
        with pytest.raises(DataError, match=rf"no image stays in split {gone}: .*, such as {gone}/class 0/0\.png"):
            prepared(raw, tmp_path / "shop", split="by_image", store=store)


def test_mended_images_are_read_again(tmp_path):
    raw = photographs(tmp_path / "photos", range(8), count=10)
    good = (raw / "class 1" / "3.png").read_bytes()
    (raw / "class 1" / "3.png").write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        prepared(raw, tmp_path / "shop")
    (raw / "class 1" / "3.png").write_bytes(good)
    assert sum(sum(classes.values()) for classes in prepared(raw, tmp_path / "shop").values()) == 80


def test_what_looks_the_same_stays_in_one_split(tmp_path):
    raw = photographs(tmp_path / "photos", range(4), count=8)
    blocks = np.random.default_rng(9).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(blocks).resize((400, 300), Image.Resampling.BICUBIC)
    for number in range(8):  # the same shot in every class, saved at other sizes and qualities
        copy = picture.resize((400 - 20 * number, 300 - 15 * number))
        copy.save(raw / f"class {number % 4}" / f"again{number}.jpg", quality=95 - 3 * number)
    options = {"raw": raw, "progress": False, "workers": 1, "split": "by_image"}
    manifest = load_manifest(prepare_dataset("folder", tmp_path / "shop", **options))
    again = manifest[manifest["path"].str.contains("again")]
    assert len(set(again["split"])) == 1
    notes = json.loads((tmp_path / "shop" / "summary.json").read_text())["notes"]
    assert any("one that looks the same is in a later split" in note for note in notes)
    assert len(load_manifest(prepare_dataset("folder", tmp_path / "all", near_duplicates=False, **options))) == 40


def test_a_class_goes_with_the_last_of_its_training_images(tmp_path):
    """Where classes are tested that were trained on, a class of copies was tested and never seen in training."""
    raw = photographs(tmp_path / "photos", range(4), count=8)
    for image in range(1, 8):
        shutil.copy(raw / "class 0/0.png", raw / f"class 0/{image}.png")
    splits = prepared(raw, tmp_path / "shop", split="by_image")
    assert set(splits["test"]) == set(splits["train"]) == {"class 1", "class 2", "class 3"}
    assert sorted(set(load_manifest(tmp_path / "shop")["label"])) == [0, 1, 2]
    notes = json.loads((tmp_path / "shop" / "summary.json").read_text())["notes"]
    assert notes[-1] == "4 image(s) left out because no training image of their class stays: class 0"
    by_class = prepared(photographs(raw, range(4, 8)), tmp_path / "open", split="by_class")
    assert any("class 0" in classes for classes in by_class.values())


def test_groups_stay_together(tmp_path):
    raw = tmp_path / "photos"
    for kind in range(6):
        photographs(raw, range(4 if kind else 1), count=5, where=f"kind{kind}" + kind * "/")
    options = {"raw": raw, "progress": False, "workers": 1, "split": "by_group", "group": "folder"}
    manifest = load_manifest(prepare_dataset("folder", tmp_path / "shop", near_duplicates=False, **options))
    assert manifest.groupby("group")["split"].nunique().max() == 1
    assert set(manifest["split"]) == {"train", "val", "test"}
    assert set(manifest[manifest["split"] == "train"]["class_name"]) == {f"kind{number}" for number in range(6)}
    assert load_metadata(tmp_path / "shop")["protocol"] == "closed_set"


def test_groups_must_be_named(tmp_path):
    with pytest.raises(DataError, match="names no groups"):
        prepared(photographs(tmp_path / "photos", range(4)), tmp_path / "shop", split="by_group")


def test_links_out_of_the_folder_are_refused(tmp_path):
    raw = photographs(tmp_path / "photos", range(8))
    Image.new("L", (30, 60)).save(tmp_path / "private.png")
    (raw / "class 1" / "x.png").symlink_to(tmp_path / "private.png")
    with pytest.raises(DataError, match=r"1 link\(s\) lead out of the folder.*class 1/x\.png"):
        prepared(raw, tmp_path / "shop")
    found = prepared(raw, tmp_path / "shop", follow_links=True)
    assert sum(classes.get("class 1", 0) for classes in found.values()) == 7
    (raw / "class 1" / "x.png").unlink()
    (raw / "class 1" / "x.png").symlink_to("x.png")
    with pytest.raises(DataError, match="or nowhere"):
        prepared(raw, tmp_path / "shop")


def test_bad_names_links_and_pipes_are_left_out_when_told_to(tmp_path):
    raw = photographs(tmp_path / "photos", range(8))
    place = raw / "class 1"
    content = next(place.iterdir()).read_bytes()
    (place / os.fsdecode(b"latin\xe9.png")).write_bytes(content + b"\0")
    (place / "out.png").symlink_to("/etc/hostname")
    (place / "loop.png").symlink_to("loop.png")
    os.mkfifo(place / "pipe.png")
    with pytest.raises(DataError, match=r"2 link\(s\) lead out"):
        prepared(raw, tmp_path / "shop")
    prepared(raw, tmp_path / "shop", on_error="skip")
    summary = json.loads((tmp_path / "shop/summary.json").read_text())
    assert any("3 file(s) left out" in note and "latin" in note for note in summary["notes"])
    assert any("pipe.png" in line for line in summary["left_out"])
    (place / "zero.png").symlink_to("/dev/zero")  # has no end
    prepared(raw, tmp_path / "shop", on_error="skip", follow_links=True)
    assert any(
        "zero.png cannot be read (it is a pipe" in line
        for line in json.loads((tmp_path / "shop/summary.json").read_text())["left_out"]
    )


@pytest.mark.parametrize("size", [(1, 30000), (30000, 1)])
def test_the_middle_of_a_very_long_image_is_seen_without_blowing_it_up(size):
    """Its shorter side at 256 would make it 7.7 million pixels long."""
    from probmetric.data.views import create_view

    pixels = np.zeros((*size, 3), np.uint8)
    pixels[15000 if size[0] > 1 else 0, 15000 if size[1] > 1 else 0] = 255

    view = create_view("photos", size=24).load_plain(pixels[None])
    assert view.shape == (1, 3, 24, 24)
    assert view.max() > 100


def png(width, height, *chunks):
    """A PNG file with a head of that size and these chunks (name, content)."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), *chunks, (b"IEND", b"")]
    written = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


BAD = {
    "bomb.png": (png(100_000, 100_000), "too large to be a photograph"),
    "larger.png": (png(2**31 - 1, 2**31 - 1), "too large to be a photograph"),
    "text.png": (png(2, 2, (b"zTXt", b"k\0\0" + compress(bytes(2**26)))), "truncated or damaged"),
    "short.png": (png(50, 50, (b"IDAT", compress(bytes(10)))), "truncated or damaged"),
    "no width.png": (png(0, 10), "is no image"),
    "drawing.png": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no image"),
    "script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "is no image"),
    "empty.jpg": (b"", "is empty"),
}


def test_hostile_images_are_all_named_with_the_reason(tmp_path):
    raw = photographs(tmp_path / "photos", range(8), count=10)
    for name, (content, _) in BAD.items():
        (raw / "class 1" / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        prepared(raw, tmp_path / "shop")
    lines = str(error.value).splitlines()
    assert len(lines) == 1 + len(BAD)
    for name, (_, reason) in BAD.items():
        assert any(name in line and reason in line for line in lines)


def test_unusual_images_are_what_their_viewers_show(tmp_path):
    raw = photographs(tmp_path / "photos", range(8), count=10)
    place = raw / "class 1"
    frames = [Image.new("RGB", (30, 20), colour) for colour in ("red", "green", "blue")]
    for name, kind in (("gif.jpg", "GIF"), ("webp.png", "WEBP"), ("apng.png", "PNG")):
        options = {"lossless": True} if kind == "WEBP" else {}
        frames[0].save(place / name, kind, save_all=True, append_images=frames[1:], **options)
    Image.fromarray(np.full((20, 30), 257 * 128, np.uint16)).save(place / "deep.png")
    frames[0].convert("CMYK").save(place / "cmyk.jpg", quality=95)
    palette = Image.new("P", (30, 20), 1)
    palette.putpalette([0, 0, 0, 0, 0, 255])
    palette.save(place / "palette.png", transparency=1)
    turned = Image.Exif()
    turned[0x0112] = 6
    frames[1].save(place / "turned.jpg", exif=turned)
    for name, size in (("dot.png", (1, 1)), ("wide.png", (30_000, 1)), ("tall.png", (1, 30_000))):
        Image.new("RGB", size, "red").save(place / name)
    prepared(raw, tmp_path / "shop", near_duplicates=False)
    rows, store = load_manifest(tmp_path / "shop")["path"].tolist(), open_images(tmp_path / "shop")
    found = {Path(path).name: store[row] for row, path in enumerate(rows) if "class 1/" in path}
    expected = {
        **dict.fromkeys(("gif.jpg", "webp.png", "apng.png"), (20, 30, (255, 0, 0))),
        "deep.png": (20, 30, (128, 128, 128)),
        "cmyk.jpg": (20, 30, (255, 0, 0)),
        "palette.png": (20, 30, (255, 255, 255)),
        "turned.jpg": (30, 20, (0, 128, 0)),
        "dot.png": (1, 1, (255, 0, 0)),
        "wide.png": (1, 30_000, (255, 0, 0)),
        "tall.png": (30_000, 1, (255, 0, 0)),
    }
    for name, (height, width, colour) in expected.items():
        assert found[name].shape == (height, width, 3), name
        assert np.abs(found[name][0, 0].astype(int) - colour).max() <= 3, name
    assert doctor(tmp_path / "shop") == []


def test_pictures_of_kinds_that_are_not_read_are_errors_that_say_what_to_do(tmp_path, monkeypatch):
    raw = photographs(tmp_path / "photos", range(8), count=10)
    monkeypatch.setitem(NEEDED, ".j2k", ("none", "pip install more"))  # as where a reader is not installed
    for name in ("a.j2k", "b.PSD", "notes.txt", ".hidden.gif", "README"):
        (raw / "class 1" / name).write_bytes(b"of another kind")
    shutil.copyfile(next((raw / "class 2").iterdir()), raw / "class 1" / "IMG_0001")
    with pytest.raises(DataError) as error:
        prepared(raw, tmp_path / "shop")
    assert "3 picture(s) of kinds that are not read, such as class 1/" in str(error.value)
    fixes = "1 without an ending: name it .jpg, .png or what it is; 1 .j2k: pip install more; 1 .psd: convert it to"
    assert fixes in str(error.value)
    prepared(raw, tmp_path / "shop", on_error="skip")
    summary = json.loads((tmp_path / "shop" / "summary.json").read_text())
    assert len(summary["left_out"]) == 2
    assert summary["images"] == 80
    assert any("1 without an ending" in note for note in summary["notes"])


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        *((".jpe", "JPEG"), (".JFIF", "JPEG"), (".bmp", "BMP"), (".gif", "GIF"), (".webp", "WEBP"), (".tif", "TIFF")),
        *((".avif", "AVIF"), (".ppm", "PPM"), (".jp2", "JPEG2000"), (".J2K", "JPEG2000")),
    ],
)
def test_pictures_of_all_usual_kinds_are_read(tmp_path, suffix, kind):
    raw = photographs(tmp_path / "photos", range(8), count=10)
    Image.new("RGB", (40, 30), (200, 100, 50)).save(raw / "class 1" / f"x{suffix}", kind)
    prepared(raw, tmp_path / "shop", near_duplicates=False)
    rows, store = load_manifest(tmp_path / "shop")["path"].tolist(), open_images(tmp_path / "shop")
    pixels = store[rows.index(f"class 1/x{suffix}")]
    assert pixels.shape == (30, 40, 3)
    assert np.abs(pixels[15, 20].astype(int) - (200, 100, 50)).max() <= 6


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([LEAST_ASKED], []),
        (
            [LEAST_ASKED - 1, 1],
            ["split {} has 49 images with another one of their class: one of them moves"],
        ),
        ([1] * 80, ["no image of split {} has another one of its class there"]),
    ],
)
def test_splits_in_which_little_can_be_found_are_noted(counts, said):
    """Images without another one of their class in the split are not asked."""
    labels = np.repeat(np.arange(len(counts)), counts)
    notes = _too_small(np.tile(labels, 2), np.repeat(["val", "test"], len(labels)))
    expected = [text.format(split) for split in ("val", "test") for text in said]
    assert len(notes) == len(expected)
    assert all(note.startswith(text) for note, text in zip(notes, expected, strict=True))
