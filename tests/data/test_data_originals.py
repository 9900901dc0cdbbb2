"""Original JPEG files are stored as they are, told by their header alone; whatever is not plain is decoded."""

import io

import miniatures
import numpy as np
import pytest
from PIL import Image

from probmetric.data import doctor, open_images, prepare_dataset
from probmetric.data.decode import plain_jpeg_shape
from probmetric.data.image_file import write_images
from probmetric.data.sources._files import ImageFiles

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 44, 3), dtype=np.uint8))


def encoded(image=PICTURE, orientation=None, **options) -> bytes:
    buffer = io.BytesIO()
    if orientation is not None:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = orientation
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


PLAIN = encoded()
COMMENT = b"\xff\xfe\x00\x06\xff\xc0\x00\x00"  # holds what looks like the start of a frame


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        encoded(progressive=True),
        encoded(subsampling=0, quality=100),
        encoded(orientation=1),
        encoded(comment=b"x" * 5000),
        PLAIN + bytes(300),
        PLAIN[:2] + COMMENT + PLAIN[2:],
        PLAIN[:2] + b"\xff\xff\xff" + PLAIN[2:],
    ],
    ids=["plain", "progressive", "4:4:4", "exif upright", "comment", "padded", "frame in comment", "fill bytes"],
)
def test_plain_files_are_known_by_their_header(data):
    assert plain_jpeg_shape(data) == (30, 44, 3)
    assert Image.open(io.BytesIO(data)).size == (44, 30)


@pytest.mark.parametrize(
    "data",
    [
        *(encoded(orientation=turn) for turn in (3, 6, 8)),
        encoded(PICTURE.convert("L")),
        encoded(PICTURE.convert("CMYK")),
        PLAIN[: len(PLAIN) // 2],
        PLAIN[:-2],
        PLAIN[:300] + b"\xff\xd9",
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xe1\x00\x20Exif\x00\x00broken\xff\xd9",
        b"",
        b"GIF89a",
    ],
)
def test_everything_else_is_decoded_or_refused(data):
    assert plain_jpeg_shape(data) is None


def test_a_file_of_every_kind_is_stored_and_comes_back_as_it_looks(tmp_path):
    files = {
        "plain.jpg": PLAIN,
        "turned.jpg": encoded(orientation=6),
        "grey.jpg": encoded(PICTURE.convert("L")),
        "cmyk.jpg": encoded(PICTURE.convert("CMYK")),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    reader = ImageFiles(tmp_path, np.array(list(files), dtype=object), store="files")
    placed = write_images(tmp_path / "images.bin", reader, reader.paths)
    stored = (tmp_path / "images.bin").read_bytes()
    assert stored.startswith(PLAIN)
    assert placed.columns["height"].tolist() == [30, 44, 30, 30]
    assert len(placed.notes) == 3
    start = int(placed.columns["offset"][1])
    turned = Image.open(io.BytesIO(stored[start : start + int(placed.columns["length"][1])]))
    first = np.asarray(Image.open(io.BytesIO(PLAIN)).convert("RGB"))
    np.testing.assert_array_equal(np.asarray(turned), np.rot90(first, -1))


def test_the_digest_written_while_building_is_that_of_the_file(tmp_path):
    raw = miniatures.build("sop", tmp_path / "raw")
    folder = prepare_dataset("sop", tmp_path / "sop", raw=raw, workers=1, subset=True, progress=False)
    assert open_images(folder).encoded
    assert doctor(folder) == []


def test_doctor_decodes_what_preparation_only_looked_at(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw", "class_folders")
    path = sorted(raw.rglob("*.jpg"))[5]
    data = path.read_bytes()
    component = data.index(b"\xff\xda") + 5
    path.write_bytes(data[:component] + b"\x09" + data[component + 1 :])
    folder = prepare_dataset("cub", tmp_path / "cub", raw=raw, workers=1, subset=True, store="files", progress=False)
    (finding,) = doctor(folder)
    assert path.name in str(finding)
    assert "truncated or damaged" in str(finding)
