"""`probmetric data status` says what is there, what is missing and what to do."""

import os

import miniatures
import pytest

from probmetric.data import dataset_status, format_status, list_datasets, prepare_dataset
from probmetric.data.raw import RawFiles


def data_status(raw, prepared, names=()):
    return [dataset_status(name, name, raw, prepared) for name in names or list_datasets()]


def test_an_empty_disk(tmp_path):
    rows = {row.name: row for row in data_status(tmp_path / "raw", tmp_path / "prepared")}
    assert list(rows) == list_datasets()
    for name in ("digits", "digits_open", "glyphs", "glyphs_closed", "symbols", "letters_exact"):
        assert rows[name].state == "embedded"
        assert rows[name].next_command == f"probmetric data ensure {name}"
    for name in miniatures.NAMES:
        assert rows[name].state == "missing"
        assert rows[name].missing
        assert str(tmp_path / "raw" / name) in rows[name].next_command
    assert rows["cub"].images == 11_788
    assert rows["svhn"].images == 73_257 + 26_032
    text = format_status(list(rows.values()))
    for expected in ("CUB_200_2011.tgz", "Stanford_Online_Products.zip", "1.1 GB", "CaltechDATA"):
        assert expected in text


@pytest.mark.parametrize(
    ("name", "layout"), [(n, layout) for n in miniatures.NAMES if n != "msls" for layout in miniatures.LAYOUTS[n]]
)
def test_every_layout_is_recognised_as_ready(tmp_path, name, layout):
    miniatures.build(name, tmp_path / "raw" / name, layout)
    (row,) = data_status(tmp_path / "raw", tmp_path / "prepared", [name])
    assert (row.state, row.missing, row.next_command) == ("ready", (), f"probmetric data ensure {name}")


def test_half_of_a_dataset_is_incomplete(tmp_path):
    raw = miniatures.build("cars", tmp_path / "raw", "archive")
    (raw / "car_ims.tgz").unlink()
    (row,) = data_status(raw, tmp_path / "prepared", ["cars"])
    assert (row.state, row.present, row.missing) == ("incomplete", ("cars_annos.mat",), ("car_ims.tgz | car_ims",))
    assert "put car_ims.tgz into" in row.next_command


def test_a_prepared_dataset_is_prepared(tmp_path):
    prepare_dataset("digits", tmp_path / "digits", progress=False)
    (row,) = data_status(tmp_path, tmp_path, ["digits"])
    assert (row.state, row.images) == ("prepared", 1797)
    assert row.next_command == f"probmetric doctor {tmp_path / 'digits'}"


def test_files_of_the_same_name_are_told_apart_by_their_folder(tmp_path):
    miniatures.build("mnist", tmp_path / "raw" / "MNIST" / "raw")
    rows = {row.name: row.state for row in data_status(tmp_path / "raw", tmp_path, ["mnist", "fashion_mnist"])}
    assert rows == {"mnist": "ready", "fashion_mnist": "missing"}
    miniatures.build("fashion_mnist", tmp_path / "raw" / "fashion_mnist")
    for name in ("mnist", "fashion_mnist"):
        prepare_dataset(name, tmp_path / name, raw=tmp_path / "raw", workers=1, subset=True, progress=False)
    assert (tmp_path / "mnist" / "images.bin").read_bytes() != (tmp_path / "fashion_mnist" / "images.bin").read_bytes()


def test_files_of_a_common_name_outside_any_home_are_nobodys(tmp_path):
    miniatures.build("mnist", tmp_path / "raw", "folder")
    names = ["mnist", "fashion_mnist"]
    assert [row.state for row in data_status(tmp_path / "raw", tmp_path, names)] == ["missing", "missing"]
    (tmp_path / "raw").rename(tmp_path / "MNIST")  # `raw: .../MNIST` names the folder itself
    assert [row.state for row in data_status(tmp_path / "MNIST", tmp_path, names)] == ["ready", "missing"]


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"images": "many"}', "[" * 100_000], ids=range(5))
def test_a_damaged_summary_is_said(tmp_path, content):
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "manifest.parquet").write_bytes(b"")
    (folder / "summary.json").write_text(content)
    (row,) = data_status(tmp_path, tmp_path, ["digits"])
    assert (row.state, row.next_command) == ("damaged", f"probmetric doctor {folder}")


def test_folders_are_listed_once_however_many_names_are_looked_for(tmp_path, monkeypatch):
    """A folder per person, as of LFW: listing them again for every name took most of `probmetric experiments`."""
    for name in ("b/inner", "a", ".hidden/inner"):
        (tmp_path / name).mkdir(parents=True)
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda place: listed.append(place) or scandir(place))
    files = RawFiles("lfw", tmp_path, tmp_path / "work")
    places = [tmp_path / "lfw", *(tmp_path / place for place in ("", "", "a", "b", "b/inner"))]
    for name in ("lfw.tgz", "pairs.txt"):
        assert list(files.candidates(name)) == [place / name for place in places]
    assert listed == [tmp_path / "lfw", tmp_path, tmp_path / "a", tmp_path / "b"]
