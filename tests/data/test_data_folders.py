"""Prepared folders: written whole or not at all, and damage is named with its fix."""

import dataclasses
import fcntl
import hashlib
import shutil
import subprocess

import numpy as np
import pytest

from probmetric.data import DataError, doctor, load_columns, load_manifest, open_images, prepare_dataset, verify_digest
from probmetric.data.manifest import MANIFEST, load_metadata, read_table, values_of, write_digest, write_manifest
from probmetric.data.sources.digits import Digits
from probmetric.data.variants import split_classes
from probmetric.data.views._base import stacked
from probmetric.io import FileError
from probmetric.io.folders import MARKER


def rewrite(folder, **changes):
    """Edit manifest columns as a person might, leaving the digest as it was."""
    table, metadata = read_table(folder)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False).copy() for name in table.column_names}
    for name, change in changes.items():
        columns[name] = change(columns[name])
    write_manifest(folder / MANIFEST, columns, metadata)


def at(row, value):
    def change(column):
        column[row] = value
        return column

    return change


def test_digest_is_readable_by_sha256sum(prepared):
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    result = subprocess.run(
        ["sha256sum", "-c", "digest"], cwd=prepared / "glyphs", capture_output=True, text=True, check=True
    )
    assert result.stdout == "manifest.parquet: OK\nimages.bin: OK\n"


def test_writing_the_digest_again_changes_nothing(digits_copy):
    before = (digits_copy / "digest").read_bytes()
    write_digest(digits_copy)
    assert (digits_copy / "digest").read_bytes() == before
    (digits_copy / "digest").unlink()
    write_digest(digits_copy)
    assert (digits_copy / "digest").read_bytes() == before


def test_a_manifest_edited_by_hand_is_refused(digits_copy):
    verify_digest(digits_copy)
    rewrite(digits_copy, label=at(0, 9))
    with pytest.raises(DataError, match=r"manifest\.parquet was changed after it was prepared.*data ensure digits"):
        verify_digest(digits_copy)
    with pytest.raises(DataError, match="was changed"):
        write_digest(digits_copy)


def test_truncated_pixels_are_refused(digits_copy):
    path = digits_copy / "images.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"images\.bin is truncated: 1,840,127 bytes.*1,840,128"):
        verify_digest(digits_copy, quick=True)
    with pytest.raises(DataError, match=r"image 1796 \(digits/1796\).*1 image\(s\) are out of reach"):
        open_images(digits_copy)


def test_a_changed_pixel_is_found_and_named(digits_copy):
    path = digits_copy / "images.bin"
    data = bytearray(path.read_bytes())
    data[5 * 1024 + 7] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"images\.bin was changed"):
        verify_digest(digits_copy)
    assert any("5 (digits/0005)" in str(finding) for finding in doctor(digits_copy))


@pytest.mark.parametrize("name", ["manifest.parquet", "images.bin", "digest", "summary.json"])
def test_a_missing_file_is_named(digits_copy, name):
    (digits_copy / name).unlink()
    said = next(str(finding) for finding in doctor(digits_copy) if name in str(finding))
    assert (said.count("dvc checkout"), said.count(f"{digits_copy}:")) == (1, 1)
    if name != "summary.json":
        with pytest.raises(DataError, match=name):
            verify_digest(digits_copy)


@pytest.mark.parametrize("junk", [b"", b"PAR1", b"not a parquet file at all, but long enough to try"])
def test_a_damaged_manifest_is_an_error_with_a_fix(digits_copy, junk):
    (digits_copy / MANIFEST).write_bytes(junk)
    with pytest.raises(DataError, match=r"manifest\.parquet is damaged.*dvc checkout"):
        load_manifest(digits_copy)


def test_a_folder_that_is_not_a_dataset_is_an_error(tmp_path):
    with pytest.raises(DataError, match="is not a prepared dataset"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": at(slice(None), 3)}, "0-based"),
        ({"label": lambda column: column + 1}, "0-based"),
        ({"split": at(4, "trian")}, "trian"),
        ({"index": at(2, 7)}, "column index"),
        ({"split": at(0, "test"), "sha256": at(1, None)}, "column sha256 has empty cells"),
        ({"label": lambda column: np.array([None, *column[1:]])}, "column label has empty cells"),
        ({"offset": lambda column: np.array([None, *column[1:]])}, "column offset has empty cells"),
    ],
)
def test_doctor_names_inconsistent_columns(digits_copy, changes, message):
    rewrite(digits_copy, **changes)
    assert any(message in str(finding) for finding in doctor(digits_copy))


def test_doctor_finds_classes_and_images_in_two_splits(prepared, tmp_path):
    folder = shutil.copytree(prepared / "glyphs", tmp_path / "glyphs")
    frame = load_manifest(folder)
    train, test = (int(np.flatnonzero(frame.split == split)[0]) for split in ("train", "test"))
    rewrite(folder, label=at(test, frame.label[train]), sha256=at(test, frame.sha256[train]))
    text = " ".join(map(str, doctor(folder)))
    assert "classes are in both train and test" in text
    assert "in two splits by sha256" in text


def test_load_columns_agrees_with_the_frame(prepared):
    frame, columns = load_manifest(prepared / "digits"), load_columns(prepared / "digits", ["label", "split"])
    assert (frame.label.to_numpy() == columns["label"]).all()
    assert (frame.split.to_numpy() == columns["split"]).all()
    assert frame.attrs == load_metadata(prepared / "digits")
    assert frame.attrs["protocol"] == "closed_set"
    with pytest.raises(DataError, match="colour"):
        load_columns(prepared / "digits", ["colour"])


def test_text_and_digests_as_bytes_are_written_like_text_whatever_the_groups_of_rows(tmp_path, monkeypatch):
    paths = [f"{'x' * row}/städte {row}.jpg" for row in range(10)]
    digests = [hashlib.sha256(path.encode()) for path in paths]
    numbers = {name: np.arange(10) for name in ("index", "label", "offset", "height", "width", "channels")}
    words = {"class_name": np.array(list("abcdefghij"), dtype=object), "split": np.array(["train"] * 10)}
    text = {"path": np.array(paths, dtype=object), "sha256": np.array([d.hexdigest() for d in digests])}
    data = {
        "path": np.array([path.encode() for path in paths]),
        "sha256": np.frombuffer(b"".join(d.digest() for d in digests), dtype="V32"),
    }
    files = [tmp_path / name / MANIFEST for name in ("text", "data", "groups")]
    write_manifest(files[0], {**numbers, **words, **text}, {})
    write_manifest(files[1], {**numbers, **words, **data}, {})
    monkeypatch.setattr("probmetric.data.manifest.GROUP", 3)
    write_manifest(files[2], {**numbers, **words, **data}, {})
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    assert load_manifest(files[0].parent).equals(load_manifest(files[2].parent))
    assert load_columns(files[2].parent, ["path"])["path"].tolist() == paths


def test_numbers_of_any_width_are_read_as_they_were_written_also_by_variants(tmp_path, prepared):
    folder = shutil.copytree(prepared / "glyphs", tmp_path / "glyphs")
    table, metadata = read_table(folder)
    columns = {name: values_of(table, name) for name in table.column_names}
    kinds = ("float16", "float32", "float64", "uint8", ">f4", ">i2")
    extra = {kind: np.linspace(0, 3, len(table)).astype(kind) for kind in kinds}
    write_manifest(folder / MANIFEST, columns | extra, metadata)
    (folder / "digest").unlink()
    write_digest(folder)
    split_classes(folder, tmp_path / "glyphs+split1", number=1)
    for place in (folder, tmp_path / "glyphs+split1"):
        for kind, values in load_columns(place, list(extra)).items():
            assert values.dtype == np.dtype(kind).newbyteorder("=")
            np.testing.assert_array_equal(values, extra[kind])


def test_batches_are_the_images(prepared):
    store = open_images(prepared / "digits")
    rows = np.array([5, 3, 1796, 5])
    batch = stacked(store.load(rows))
    assert batch.shape == (4, 1, 32, 32)
    for image, row in zip(batch.numpy(), rows, strict=True):
        np.testing.assert_array_equal(image[0], store[row][..., 0])
    for wrong in ([1797], [-1]):
        with pytest.raises(IndexError, match=r"outside 0\.\.1796"):
            stacked(store.load(np.array(wrong)))


class Broken(Digits):
    """A source whose images fail half-way."""

    def read(self, files, *, seed):
        table = super().read(files, seed=seed)

        def image(row):
            if row == 900:
                raise RuntimeError("no more images")
            return table.image(row)

        return dataclasses.replace(table, image=image)


def test_a_failure_leaves_the_old_folder_and_the_next_call_goes_on(digits_copy, monkeypatch):
    from probmetric.data import sources

    monkeypatch.setattr(sources.REGISTRY, "_objects", {"digits": Broken})
    before = {path.name: path.read_bytes() for path in digits_copy.iterdir()}
    with pytest.raises(RuntimeError, match="no more images"):
        prepare_dataset("digits", digits_copy, progress=False)
    assert {path.name: path.read_bytes() for path in digits_copy.iterdir()} == before
    assert sorted(path.name for path in digits_copy.parent.iterdir()) == [".digits.work", "digits"]
    monkeypatch.undo()
    prepare_dataset("digits", digits_copy, progress=False)
    assert {path.name: path.read_bytes() for path in digits_copy.iterdir()} == before
    assert [path.name for path in digits_copy.parent.iterdir()] == ["digits"]


def test_preparing_over_an_existing_folder_replaces_it(digits_copy):
    (digits_copy / "stray").write_text("somebody else's")
    with pytest.raises(FileError, match="as its prepared dataset: stray"):
        prepare_dataset("digits", digits_copy, progress=False)
    (digits_copy / "stray").unlink()
    (digits_copy / "summary.json").write_text("damaged")
    prepare_dataset("digits", digits_copy, progress=False)
    assert sorted(path.name for path in digits_copy.iterdir()) == [
        MARKER, "digest", "images.bin", "manifest.parquet", "summary.json",
    ]  # fmt: skip
    assert doctor(digits_copy) == []
    assert [path.name for path in digits_copy.parent.iterdir()] == ["digits"]


def test_two_preparations_of_one_folder_do_not_mix(tmp_path):
    with (tmp_path / ".digits.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FileError, match=r"another process writes .*digits"):
            prepare_dataset("digits", tmp_path / "digits", progress=False)
    prepare_dataset("digits", tmp_path / "digits", progress=False)
    assert doctor(tmp_path / "digits") == []


def test_a_full_disk_or_a_read_only_folder_is_explained(tmp_path, monkeypatch):
    import errno

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "images.bin")

    monkeypatch.setattr("probmetric.data.image_file._write_segment", full)
    with pytest.raises(DataError, match=r"No space left on device \(images\.bin\)\. Free space"):
        prepare_dataset("digits", tmp_path / "digits", progress=False)
    monkeypatch.undo()
    prepare_dataset("digits", tmp_path / "digits", progress=False)
    assert doctor(tmp_path / "digits") == []
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FileError, match=r"cannot write .*digits.*a file or link stands where a folder belongs"):
        prepare_dataset("digits", tmp_path / "file" / "digits", progress=False)
