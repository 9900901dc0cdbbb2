"""Archives from strangers, odd images, and a cache that is parallel, resumable and always the same bytes."""

import io
import shutil
import tarfile
import zipfile

import miniatures
import numpy as np
import pytest
from PIL import Image

from probmetric.data import DataError, doctor, prepare_dataset
from probmetric.data.archives import extract
from probmetric.data.decode import decode
from probmetric.data.image_file import write_images
from probmetric.data.places import matched, positives, subtask
from probmetric.data.sources._files import ImageFiles


def tar_with(path, name, kind=tarfile.REGTYPE, target=""):
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        archive.addfile(info, io.BytesIO(b""))


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "C:/evil", "..\\evil"])
@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_members_outside_the_target_are_refused(tmp_path, name, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "tgz":
        tar_with(path, name)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo(name), b"boo")
    with pytest.raises(DataError, match="outside the target folder"):
        extract(path, tmp_path / "in" / "side")
    assert not list(tmp_path.rglob("evil"))
    assert not (tmp_path / "in" / "side").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tars_are_refused(tmp_path, kind):
    tar_with(tmp_path / "a.tgz", "link", kind, "/etc/passwd")
    with pytest.raises(DataError, match="link or a device"):
        extract(tmp_path / "a.tgz", tmp_path / "out")


def test_links_in_zips_are_refused(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="symbolic link"):
        extract(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_bombs_are_stopped(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("probmetric.data.archives.MIN_LIMIT", 2**20)
    (miniatures.tgz if kind == "tgz" else miniatures.zipped)(tmp_path / f"a.{kind}", {"zeros": bytes(2**24)})
    with pytest.raises(DataError, match="decompression bomb"):
        extract(tmp_path / f"a.{kind}", tmp_path / "out")


def test_a_good_archive_is_unpacked_once(tmp_path):
    files = {"d/a.txt": b"a", "d/._a.txt": b"fork", "__MACOSX/d/a.txt": b"fork"}
    miniatures.zipped(tmp_path / "a.zip", files)
    (tmp_path / "out.unpacking").mkdir()
    (tmp_path / "out.unpacking" / "left over").write_text("of an interrupted call")
    extract(tmp_path / "a.zip", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["d", "a.txt"]
    stamp = (tmp_path / "out" / "d" / "a.txt").stat().st_mtime_ns
    extract(tmp_path / "a.zip", tmp_path / "out")
    assert (tmp_path / "out" / "d" / "a.txt").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("junk", [b"", b"not an archive", b"PK\x03\x04 broken"])
def test_junk_is_not_an_archive(tmp_path, junk):
    (tmp_path / "a.tgz").write_bytes(junk)
    with pytest.raises(DataError, match="damaged or truncated"):
        extract(tmp_path / "a.tgz", tmp_path / "out")


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


RAMP = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (40, 1))
COLOUR = np.stack([RAMP, RAMP[:, ::-1], 255 - RAMP // 2], axis=2)


@pytest.mark.parametrize(
    ("data", "expected", "remark"),
    [
        (encoded(Image.fromarray(COLOUR)), COLOUR, None),
        (encoded(Image.fromarray(RAMP)), np.repeat(RAMP[..., None], 3, axis=2), "greyscale repeated"),
        (encoded(Image.fromarray(RAMP.astype(np.uint16) * 257)), np.repeat(RAMP[..., None], 3, axis=2), "16 bits"),
        (encoded(Image.fromarray(COLOUR).convert("P", palette=Image.Palette.ADAPTIVE)), COLOUR, "palette"),
        (encoded(Image.fromarray(np.dstack([COLOUR, np.full_like(RAMP, 255)]))), COLOUR, "transparency"),
        (encoded(Image.fromarray(np.dstack([COLOUR, np.zeros_like(RAMP)]))), np.full_like(COLOUR, 255), "transparency"),
        (encoded(Image.fromarray(COLOUR).convert("CMYK"), "TIFF"), COLOUR, "CMYK converted to RGB"),
    ],
)
def test_odd_images_are_converted_and_reported(data, expected, remark):
    pixels, remarks = decode(data, "x")
    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels.astype(int), expected.astype(int), atol=14)
    assert (remark is None and remarks == ()) or (len(remarks) == 1 and remark in remarks[0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: COLOUR, 2: COLOUR[:, ::-1], 3: COLOUR[::-1, ::-1], 4: COLOUR[::-1], 5: COLOUR.transpose(1, 0, 2),
        6: np.rot90(COLOUR, -1), 7: COLOUR[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(COLOUR),
    }[orientation]  # fmt: skip
    pixels, remarks = decode(encoded(Image.fromarray(COLOUR), exif=exif), "x")
    np.testing.assert_array_equal(pixels, turned)
    assert bool(remarks) == (orientation != 1)


def test_grey_is_luma():
    pixels, remarks = decode(encoded(Image.fromarray(COLOUR)), "x", mode="L")
    luma = COLOUR.astype(float) @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(pixels[..., 0], luma, atol=1)
    assert "luma" in remarks[0]


def test_huge_images_are_refused_before_they_are_decoded():
    header = encoded(Image.new("1", (20000, 6000)))
    with pytest.raises(DataError, match=r"bomb\.png is too large to be a photograph"):
        decode(header, "bomb.png")


def test_the_shorter_side_is_resized_as_torchvision_does():
    from torchvision.transforms import functional

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 431, 3), dtype=np.uint8))
    pixels, _ = decode(encoded(image), "x", shorter_side=100)
    np.testing.assert_array_equal(pixels, np.asarray(functional.resize(image, 100)))
    small, _ = decode(encoded(image), "x", shorter_side=400)
    assert small.shape == (300, 431, 3)


@pytest.fixture
def image_files(tmp_path):
    (tmp_path / "files").mkdir()
    paths = [f"{i:03d}.jpg" for i in range(150)]
    for i, path in enumerate(paths):
        (tmp_path / "files" / path).write_bytes(miniatures.jpeg(i % 9, i, (20 + i % 7, 30)))
    return ImageFiles(tmp_path / "files", np.array(paths, dtype=object), shorter_side=16)


def build(folder, reader, workers=1):
    folder.mkdir()
    return write_images(folder / "images.bin", reader, reader.paths, workers=workers)


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, image_files):
    one, two = build(tmp_path / "one", image_files), build(tmp_path / "two", image_files, workers=2)
    assert (tmp_path / "one" / "images.bin").read_bytes() == (tmp_path / "two" / "images.bin").read_bytes()
    for name, values in one.columns.items():
        np.testing.assert_array_equal(values, two.columns[name])
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["images.bin"]


def test_an_interrupted_preparation_starts_again_but_for_unpacked_archives(tmp_path, monkeypatch):
    raw = miniatures.build("cub", tmp_path / "raw", "archive")
    options = {"raw": raw, "workers": 1, "subset": True, "progress": False}
    expected = (prepare_dataset("cub", tmp_path / "whole" / "cub", **options) / "digest").read_text()

    def stop(path, read, *_, **__):
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr("probmetric.data.prepare.write_images", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare_dataset("cub", tmp_path / "cub", **options)
    monkeypatch.undo()
    assert not (tmp_path / "cub").exists()
    unpacked = next((tmp_path / ".cub.work" / "unpacked").rglob("*.jpg"))
    unpacked.write_bytes(b"seen by the next call")
    with pytest.raises(DataError, match=r"is no image \(it begins with b'seen by"):
        prepare_dataset("cub", tmp_path / "cub", **options)
    shutil.rmtree(tmp_path / ".cub.work" / "unpacked")
    assert (prepare_dataset("cub", tmp_path / "cub", **options) / "digest").read_text() == expected
    assert not list(tmp_path.glob(".cub*"))


def test_a_broken_image_in_a_worker_is_reported_by_name(tmp_path, image_files):
    (image_files.root / "140.jpg").write_bytes(b"nonsense")
    found = build(tmp_path / "x", image_files, workers=2)
    assert list(found.unreadable) == [140]
    assert "140.jpg is no image" in found.unreadable[140]


def test_preparing_with_two_processes_gives_the_same_digest(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw")
    for workers in (1, 2):
        prepare_dataset("cub", tmp_path / str(workers) / "cub", raw=raw, workers=workers, subset=True, progress=False)
    assert doctor(tmp_path / "2" / "cub") == []
    assert (tmp_path / "1" / "cub" / "digest").read_text() == (tmp_path / "2" / "cub" / "digest").read_text()


def test_positives_agree_with_all_distances():
    rng = np.random.default_rng(0)
    columns = {
        "city": rng.choice(["a", "b"], 300),
        "easting": rng.uniform(0, 200, 300),
        "northing": rng.uniform(0, 200, 300),
        "role": rng.choice(["query", "database"], 300),
        "night": rng.random(300) < 0.3,
    }
    queries, database, found = positives(columns, radius=25.0)
    position = np.stack([columns["easting"], columns["northing"]], axis=1)
    distance = np.linalg.norm(position[queries][:, None] - position[database][None], axis=2)
    expected = (distance <= 25.0) & (columns["city"][queries][:, None] == columns["city"][database][None])
    for row, hits in zip(expected, found, strict=True):
        np.testing.assert_array_equal(hits, np.flatnonzero(row))
    np.testing.assert_array_equal(matched(position[queries], position[database], 10.0), (distance <= 10.0).any(axis=1))
    assert matched(np.zeros((1, 2)), np.array([[25.0, 0.0]]), 25.0).all()
    day = subtask(columns, "day_to_night")
    assert (columns["night"][day] == (columns["role"][day] == "database")).all()
    assert subtask(columns, "all").all()
