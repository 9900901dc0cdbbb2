"""Odd pictures: strange EXIF data, floating point, transparency by colour key, no area, what Pillow stumbles over."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from probmetric.data.decode import IMAGE_KINDS, UNREAD_KINDS, decode, decode_file, decoded
from probmetric.data.manifest import DataError

RAMP = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
TURN = (0x0112, 3, 1, struct.pack("<HH", 6, 0))


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg_with_exif(entries, head=b"Exif\0\0") -> bytes:
    """A JPEG (20 x 30) with TIFF entries (tag, type, count, four bytes); a rational lies behind the directory."""
    body = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries)
    tiff = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + struct.pack("<III", 0, 72, 1)
    data = encoded(Image.new("RGB", (30, 20), (200, 100, 50)), "JPEG")
    block = head + tiff
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + data[2:]


def behind(number: int) -> bytes:
    return struct.pack("<I", 8 + 2 + 12 * number + 4)


@pytest.mark.parametrize(
    "entries",
    [
        [(0x0106, 5, 1, behind(2)), TURN],  # photometric interpretation as a rational
        [(0x010F, 5, 1, behind(2)), TURN],  # camera maker as a rational
        [(0x0131, 9, 1, struct.pack("<i", -3)), TURN],  # software as a signed number
        [TURN],
    ],
)
@pytest.mark.parametrize("head", [b"Exif\0\0", b"Exif\0\0Exif\0\0"])
def test_strange_exif_data_turn_the_image_or_nothing(entries, head):
    pixels, remarks = decode(jpeg_with_exif(entries, head), "photo.jpg")
    assert remarks == ("turned upright by its EXIF orientation",)
    assert pixels.shape == (30, 20, 3)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientations_that_are_none_turn_nothing(orientation):
    entry = (0x0112, 3, 1, struct.pack("<HH", orientation, 0))
    pixels, remarks = decode(jpeg_with_exif([entry]), "photo.jpg")
    assert remarks == ()
    assert pixels.shape == (20, 30, 3)


@pytest.mark.parametrize("pages", [1, 2])
@pytest.mark.parametrize(
    ("orientation", "upright"),
    [(3, [[6, 5, 4], [3, 2, 1]]), (6, [[4, 1], [5, 2], [6, 3]]), (8, [[3, 6], [2, 5], [1, 4]])],
)
def test_a_tiff_is_turned_once_whatever_its_number_of_pages(orientation, upright, pages):
    page, exif = Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], np.uint8)), Image.Exif()
    exif[0x0112] = orientation
    data = encoded(page, "TIFF", exif=exif, save_all=True, append_images=[page] * (pages - 1))
    loaded = Image.open(io.BytesIO(data))
    loaded.load()
    for pixels, _ in (decode(data, "x.tif", mode="L"), decoded(loaded, mode="L")):
        assert pixels[..., 0].tolist() == upright


def test_an_image_of_the_callers_keeps_its_size():
    photo = Image.open(io.BytesIO(encoded(Image.new("RGB", (1600, 1600)), "JPEG")))
    assert decoded(photo, shorter_side=64).pixels.shape == (64, 64, 3)
    assert decoded(photo, shorter_side=256).pixels.shape == (256, 256, 3)


def test_a_jpeg_is_as_large_as_its_file_says_however_far_it_is_to_be_reduced(monkeypatch):
    monkeypatch.setattr("probmetric.data.decode.MAX_PIXELS", 10_000)
    with pytest.raises(DataError, match=r"x\.jpg is too large to be a photograph \(128x128 pixels\)"):
        decode(encoded(Image.new("RGB", (128, 128)), "JPEG"), "x.jpg", shorter_side=8)


@pytest.mark.parametrize(
    ("values", "expected", "remark"),
    [
        (RAMP, RAMP * 255, "0 to 1, scaled"),
        (RAMP * 200, RAMP * 200, "0 to 255, rounded"),
        (RAMP * 1000, RAMP * 255, "smallest value to its largest"),
        (RAMP * 1000 - 500, RAMP * 255, "smallest value to its largest"),
        (np.full((16, 16), 300, np.float32), np.zeros((16, 16)), "smallest value to its largest"),
    ],
)
def test_floating_point_is_seen(values, expected, remark):
    image = Image.fromarray(values.astype(np.float32))
    for pixels, remarks in (decode(encoded(image, "TIFF"), "x.tif", mode="L"), decoded(image, mode="L")):
        np.testing.assert_array_equal(pixels[..., 0], np.rint(expected))
        assert remark in remarks[0]


@pytest.mark.parametrize(("hole", "count"), [(np.nan, 128), (np.inf, 128), (np.nan, 256)])
def test_pixels_that_are_no_numbers_are_an_error_that_names_the_file(hole, count):
    image = Image.fromarray(np.where((0 if count == 256 else 0.5) <= RAMP, hole, RAMP).astype(np.float32))
    with pytest.raises(
        DataError, match=rf"^x\.tif has {count} of 256 pixels that are no finite numbers; mend the image"
    ):
        decode(encoded(image, "TIFF"), "x.tif")


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_entry_of_a_palette_is_laid_on_white(kind):
    image = Image.new("P", (4, 4), 3)
    image.putpalette([value for entry in range(4) for value in (entry, 0, 200)])
    image.putpixel((0, 0), 1)
    pixels, remarks = decode(encoded(image, kind, transparency=3), "x")
    assert remarks == ("transparency laid on white",)
    assert pixels[0, 0].tolist() == [1, 0, 200]
    assert (pixels[1:] == 255).all()


def test_a_palette_of_transparent_colours_is_laid_on_white():
    image = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    image.putpixel((0, 0), (200, 0, 0, 255))
    pixels, remarks = decoded(image.quantize())
    assert remarks == ("transparency laid on white",)
    assert pixels[0, 0].tolist() == [200, 0, 0]
    assert (pixels[1:] == 255).all()


def test_the_transparent_colour_of_a_png_of_16_bits_is_laid_on_white():
    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    key, other = struct.pack(">3H", 1000, 2000, 3000), struct.pack(">3H", 0x2000, 0x4000, 0x8000)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(b"\0" + key + other))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"tRNS", key) + rows + chunk(b"IEND", b"")
    assert decode(data, "x.png").pixels[0].tolist() == [[255, 255, 255], [0x20, 0x40, 0x80]]


def test_a_palette_without_colours_is_no_black_image():
    data = encoded(Image.new("P", (4, 4), 3), "PNG")
    place = data.index(b"PLTE") - 4
    length = 12 + struct.unpack(">I", data[place : place + 4])[0]
    with pytest.raises(DataError, match=r"^x\.png has no colours in its palette; mend the image"):
        decode(data[:place] + data[place + length :], "x.png")


@pytest.mark.parametrize(("mode", "key"), [("RGB", (10, 20, 30)), ("L", 10)])
def test_the_transparent_colour_is_laid_on_white(mode, key):
    image = Image.new(mode, (4, 4), key)
    image.putpixel((0, 0), 77 if mode == "L" else (77, 77, 77))
    pixels, remarks = decode(encoded(image, "PNG", transparency=key), "x.png", mode=mode)
    assert remarks == ("transparency laid on white",)
    assert (pixels[0, 0] == 77).all()
    assert (pixels[1:] == 255).all()


@pytest.mark.parametrize("box", [(5, 5, 5, 12), (5, 5, 12, 5), (5, 5, 5, 5)])
def test_a_crop_without_area_is_named(box):
    with pytest.raises(DataError, match="query 3 has no area"):
        decoded(Image.new("RGB", (16, 16)).crop(box), "query 3")


def test_whatever_pillow_raises_concerns_one_image(monkeypatch):
    def stumble(*_, **__):
        raise KeyError("of the reader")

    monkeypatch.setattr(Image.Image, "convert", stumble)
    with pytest.raises(DataError, match=r"x\.png is truncated or damaged"):
        decode(encoded(Image.new("L", (4, 4)), "PNG"), "x.png")


def test_kinds_that_are_not_read_say_what_to_do(tmp_path):
    for suffix in UNREAD_KINDS:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(b"of another kind")
        with pytest.raises(DataError, match=rf"x\{suffix} is of a kind that is not read .* convert it to JPEG or PNG"):
            decode_file(path)
    assert not set(UNREAD_KINDS) & set(IMAGE_KINDS)


def whole(values, kind="TIFF", **options):
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("values", "ends", "remark"),
    [
        (np.array([[0, 65535]], np.uint16), (0, 255), "16 bits per channel scaled to 8"),
        (np.array([[0, 4095]], np.uint16), (0, 16), "12-bit data"),
        (np.array([[0, 200]], np.int32), (0, 200), "0 to 255"),
        (np.array([[0, 1_000_000]], np.int32), (0, 255), "beyond 16 bits"),
        (np.array([[-500, 500]], np.int32), (0, 255), "beyond 16 bits"),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_whole_numbers_of_more_than_8_bits_are_neither_black_nor_saturated(values, ends, remark, mode):
    wide = np.repeat(values, 8, axis=1)
    middle = (wide[:, :1].astype(np.float64) + wide[:, -1:]) / 2
    pixels, remarks = decode(whole(np.hstack([wide, middle.astype(values.dtype)])), "x.tif", mode=mode)
    assert (pixels[0, 0, 0], pixels[0, -2, 0]) == ends
    assert abs(int(pixels[0, -1, 0]) - sum(ends) / 2) <= 1
    assert remark in remarks[0]


def test_a_colour_key_of_16_bits_is_laid_on_white_and_lab_becomes_grey():
    data = whole(np.array([[0, 30000]], np.uint16), "PNG", transparency=0)
    assert decode(data, "x.png", mode="L").pixels[0, :, 0].tolist() == [255, 117]
    lab = io.BytesIO()
    Image.new("RGB", (9, 9), (200, 200, 200)).convert("LAB").save(lab, "TIFF")
    assert decode(lab.getvalue(), "x.tif", mode="L").pixels[0, 0, 0] == pytest.approx(200, abs=2)


def test_photographs_of_telephones_are_read_and_damaged_ones_are_said_to_be(tmp_path):
    heif = pytest.importorskip("pillow_heif", reason="pillow-heif, which reads HEIC, is not installed")
    heif.register_heif_opener()
    tiles = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    pixels = np.kron(tiles, np.ones((16, 16, 1), dtype=np.uint8))
    Image.fromarray(pixels).save(tmp_path / "a.heic", quality=90)
    assert np.abs(decode_file(tmp_path / "a.heic").pixels - pixels.astype(int)).mean() < 2
    whole_file = (tmp_path / "a.heic").read_bytes()
    for length in (10, len(whole_file) // 2, len(whole_file) - 9):
        (tmp_path / "cut.heic").write_bytes(whole_file[:length])
        with pytest.raises(DataError, match=r"is no image|truncated or damaged"):
            decode_file(tmp_path / "cut.heic")
