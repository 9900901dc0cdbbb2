"""A CSV or Parquet file that lists images is a dataset."""

from __future__ import annotations

import json
import runpy
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from probmetric.data import DataError, doctor, load_manifest, load_metadata, open_images, prepare_dataset
from probmetric.data.raw import RawFiles
from probmetric.data.sources.table import TableOfImages, columns_of, listed_in


def pictures(root, count=24):
    generator = np.random.default_rng(0)
    (root / "a").mkdir(parents=True)
    for number in range(count):
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(root / "a" / f"{number}.png")
    return [f"a/{number}.png" for number in range(count)]


def prepared(file, folder, **options):
    return load_manifest(prepare_dataset("table", folder, raw=file, progress=False, workers=1, **options))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_table_is_a_dataset(tmp_path, kind):
    columns = {
        "path": pictures(tmp_path),
        "label": [f"class {number % 4}" for number in range(24)],
        "price": [0.5 * number for number in range(24)],
        "code": [f"{number:03}" for number in range(24)],
    }
    file = tmp_path / f"shop.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(columns), file)
    else:
        mark = "," if kind == "csv" else "\t"
        lines = [mark.join(columns), *(mark.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    found = prepared(file, tmp_path / "shop", split="by_image").set_index("path")
    assert len(found) == 24
    assert found.loc["a/7.png", "price"] == 3.5
    assert found.loc["a/7.png", "code"] == "007"
    assert found.loc["a/7.png", "class_name"] == "class 3"
    assert load_metadata(tmp_path / "shop")["protocol"] == "closed_set"
    assert doctor(tmp_path / "shop") == []


@pytest.mark.parametrize(
    ("cells", "strengths"),
    [(["0.50", "", "1e-3"], [0.5, np.nan, 0.001]), (["0", "1", "2"], [0, 1, 2]), (["low", "0.5", ""], None)],
)
def test_strengths_of_distortions_are_numbers_where_all_that_is_written_is_one(tmp_path, cells, strengths):
    lines = [f"{path},{number % 4},{cells[number % 3]}" for number, path in enumerate(pictures(tmp_path))]
    (tmp_path / "s.csv").write_text("\n".join(["path,label,blur", *lines]))
    blur = prepared(tmp_path / "s.csv", tmp_path / "s", split="by_image").set_index("path").blur
    kept = [blur[f"a/{number}.png"] for number in range(3)]
    if strengths is None:
        assert kept == cells
    else:
        np.testing.assert_array_equal(kept, strengths)


def test_named_splits_and_groups_are_kept(tmp_path):
    paths = pictures(tmp_path)
    splits = ["train"] * 12 + ["val"] * 4 + ["test"] * 8
    lines = [f"{path},{number // 4},{split}" for number, (path, split) in enumerate(zip(paths, splits, strict=True))]
    (tmp_path / "s.csv").write_text("\n".join(["file,kind,part", *lines]))
    names = {"path_column": "file", "label_column": "kind", "split_column": "part"}
    assert prepared(tmp_path / "s.csv", tmp_path / "shop", **names)["split"].tolist() == splits
    others = [f"{path},{number % 4},,test" for number, path in enumerate(paths)]
    (tmp_path / "o.csv").write_text("\n".join(["path,label,part,split", *others]))
    drawn = prepared(tmp_path / "o.csv", tmp_path / "drawn", split="by_image", split_column="part")["split"]
    assert set(drawn) == {"train", "val", "test"}
    bare = [f"{path},{number // 4},," for number, path in enumerate(paths)]
    (tmp_path / "empty.csv").write_text("\n".join(["path,label,split,group", *bare]))  # as `probmetric vectors` writes
    assert set(prepared(tmp_path / "empty.csv", tmp_path / "unsplit", split="by_image")["split"]) == {
        *["train", "val", "test"]
    }
    lines = [f"{path},{number % 2},{number // 2 % 6 * 2 + number % 2}" for number, path in enumerate(paths)]
    (tmp_path / "g.csv").write_text("\n".join(["path,label,group", *lines]))
    found = prepared(tmp_path / "g.csv", tmp_path / "grouped", split="by_group")
    assert found.groupby("group")["split"].nunique().max() == 1
    named = [f"{line},{'test' if number % 5 == 0 else 'train'}" for number, line in enumerate(lines)]
    (tmp_path / "n.csv").write_text("\n".join(["path,label,group,split", *named]))
    with pytest.raises(DataError, match=r"\d+ group\(s\) are in several splits \(.*set split: by_image"):
        prepared(tmp_path / "n.csv", tmp_path / "named", split="by_group")
    assert set(prepared(tmp_path / "n.csv", tmp_path / "named", split="by_image")["split"]) == {"train", "val", "test"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lists nothing"),
        ("path,label\n", "lists nothing"),
        (
            "path,kind\na/0.png,x\n",
            "has no column 'label' of texts or numbers; it has 'path', 'kind'. .*init --label-column",
        ),
        ("path,label,label\na,b,c\n", "named twice"),
        ("path,label\na/0.png\n", "line 2: 1 of 2 columns"),
        ("path,label\n../../etc/passwd,x\na/0.png,y", "row 1: .* leaves the folder"),
        ("path,label\na/0.png,y\n/etc/passwd,x", "row 2: .* leaves the folder"),
        ("path,label\na/0.png,\n", "row 1 has no label"),
        ('path,label\n"a/0.png,x\n', "no readable CSV"),
        ("path,label,split\na/0.png,x,train\na/1.png,x,train\na/2.png,y,exam\na/3.png,y,test", "split 'exam'"),
        (
            "path,label\na/0.png,x\na/0.png,x\na/1.png,x\na/2.png,x\na/3.png,y\na/4.png,y\na/3.png,y",
            "rows 1 and 2 list one image",
        ),
        ("path,label\na/0.png,x\na/1.png,x\na/2.png,y\na/./0.png,y", "rows 1 and 4 list one image"),
        ("path,label\na/0.png,x\na/1.png,x\na//1.png,y\na/2.png,y", "rows 2 and 3 list one image"),
        ("path,label\na/0.png,x\na/1.png, x\na/2.png,y\na/3.png,y", "row 2: the label ' x' begins or ends with"),
        ("path,label\na/0.png,1\na/1.png,1.0\na/2.png,y\na/3.png,y", "row 2: the label '1.0' is '1' elsewhere"),
        ("path;label\na/0.png;x\na/1.png", "line 3: 1 of 2 columns"),
        ("path, label\na/0.png,x\n", "has no column 'label' .*it has 'path', ' label'"),
        ("path,label,split\na/0.png,x,train\na/1.png,y,\na/2.png,y,test", r"s\.csv: row 2 has no split; mend it"),
        ("path,label\na/0.png,x\na/1.png,nan", "row 2 has no label"),
        (f"path,label\na/0.png,{'x' * 200_000}\n", "line 2: no readable CSV"),
        ("path,label\na/0\0.png,x\na/0.png,y", "row 1: .* leaves the folder"),
        ("path,label\na/0.png,x\na/1.png,x\na/2.png,y\na/3.png,y\na/4.png,y", "no image to validate on"),
        ("path,label\na/0.png,x\na/1.png,x", "too few"),
    ],
)
def test_a_hostile_table_is_refused(tmp_path, text, says):
    pictures(tmp_path, 5)
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_image")


@pytest.mark.parametrize("column", ["split", "group"])
def test_a_column_that_is_named_must_be_there(tmp_path, column):
    lines = [f"{path},{number % 4},train" for number, path in enumerate(pictures(tmp_path))]
    (tmp_path / "s.csv").write_text("\n".join(["path,label,part", *lines]))
    with pytest.raises(DataError, match=rf"no column 'prat' .* it has .*'part'\. Name it: `{column}_column: "):
        prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_image", **{f"{column}_column": "prat"})


def test_groups_are_named_in_a_column_and_an_image_without_one_is_alone(tmp_path):
    lines = [f"{path},{number % 2}" for number, path in enumerate(pictures(tmp_path))]
    (tmp_path / "s.csv").write_text("\n".join(["path,label", *lines]))
    with pytest.raises(DataError, match="names no groups; fill the column that the option group_column names, or set"):
        prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_group")
    grouped = [f"{line},{'shot' if number < 4 else ''}" for number, line in enumerate(lines)]
    (tmp_path / "s.csv").write_text("\n".join(["path,label,group", *grouped]))
    listed = prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_group", near_duplicates=False)
    alone = listed[listed["group"] == ""]
    assert len(alone) == 20
    assert alone.groupby("class_name")["split"].nunique().tolist() == [3, 3]


def test_a_column_of_lists_is_no_label(tmp_path):
    paths = pictures(tmp_path, 4)
    pq.write_table(pa.table({"path": paths, "label": [["x", "y"], ["x"], ["y"], []]}), tmp_path / "s.parquet")
    with pytest.raises(DataError, match="no column 'label' of texts or numbers; it has 'path'"):
        prepared(tmp_path / "s.parquet", tmp_path / "shop")


@pytest.mark.parametrize(
    "before",
    ["C:\\shop\\photos\\", "photos\\", "/home/other/photos/", "processed/", "./", "\\\\server\\share\\"],
)
def test_paths_of_a_table_written_elsewhere_are_found_by_what_follows_their_first_folders(tmp_path, before):
    mark = "\\" if "\\" in before else "/"
    lines = [f"{before}{path.replace('/', mark)},{number % 4}" for number, path in enumerate(pictures(tmp_path))]
    (tmp_path / "s.csv").write_text("\n".join(["path,label", *lines]))
    listed = prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_image", near_duplicates=False)
    assert sorted(path.lstrip("./") for path in listed["path"]) == sorted(f"a/{number}.png" for number in range(24))
    assert doctor(tmp_path / "shop") == []
    (tmp_path / "a/7.png").unlink()
    with pytest.raises(DataError, match=r"row 8: '(\./)?a/7.png' is not in the folder .*; 1 of 24 images are missing"):
        prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_image")


@pytest.mark.parametrize("before", ["", "/home/other/"])
def test_a_path_in_another_unicode_form_than_that_of_the_file_is_found(tmp_path, before):
    paths = pictures(tmp_path)
    (tmp_path / "a/0.png").rename(tmp_path / "a/caf\u00e9.png")
    (tmp_path / "a/1.png").rename(tmp_path / "a/the\u0301.png")
    paths[:2] = ["a/cafe\u0301.png", "a/th\u00e9.png"]
    lines = [f"{before}{path},{number % 4}" for number, path in enumerate(paths)]
    (tmp_path / "s.csv").write_text("\n".join(["path,label", *lines]))
    listed = prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_image", near_duplicates=False)
    assert {"a/caf\u00e9.png", "a/the\u0301.png"} <= set(listed["path"])
    assert len(listed) == 24


def test_the_folder_of_the_images_may_be_written_from_home_and_hold_a_link_in_a_circle(tmp_path, monkeypatch):
    lines = [f"{path},{number % 4}" for number, path in enumerate(pictures(tmp_path / "home/im"))]
    (tmp_path / "home/im/a/circle.png").symlink_to("circle.png")
    (tmp_path / "s.csv").write_text("\n".join(["path,label", *lines]))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert len(prepared(tmp_path / "s.csv", tmp_path / "shop", images="~/im", split="by_image")) == 24


@pytest.mark.parametrize("path", ["a/999.png", "C:\\gone\\1.png", "/gone/1.png", "b/1.png"])
def test_a_missing_image_is_named_with_its_row_when_the_table_is_read(tmp_path, path):
    lines = [f"{name},{number % 4}" for number, name in enumerate(pictures(tmp_path))]
    lines[3] = f"{path},3"
    (tmp_path / "s.csv").write_text("\n".join(["path,label", *lines]))
    source, files = TableOfImages(split="by_image"), RawFiles("table", tmp_path / "s.csv", tmp_path)
    with pytest.raises(DataError, match=r"row 4: .*; 1 of 24 images are missing; mend the rows, name the folder"):
        source.read(files, seed=0)
    table = TableOfImages(split="by_image", on_error="skip").read(files, seed=0)
    assert len(table.columns["path"]) == 23
    assert any("1 row(s) left out whose image is missing, e.g. row 4" in note for note in files.notes)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (pa.array([True, False] * 12), {"True", "False"}),
        (pa.array([1.0, 2.0] * 12), {"1", "2"}),
        (pa.array([Decimal("1.00"), Decimal("2.00")] * 12), {"1", "2"}),
        (pa.array(["x", "y"] * 12, pa.large_string()), {"x", "y"}),
        (pa.array(["x", "y"] * 12, pa.string_view()), {"x", "y"}),
        (pa.array(["x", "y"] * 12).dictionary_encode(), {"x", "y"}),
        (pa.array([7, 8] * 12).dictionary_encode(), {"7", "8"}),
        (pa.array([b"x", b"y"] * 12), {"x", "y"}),
        (pa.array([date(2026, 1, 1), date(2026, 1, 2)] * 12), {"2026-01-01", "2026-01-02"}),
        (pa.array(["caf\u00e9", "cafe\u0301", "tea", "tea"] * 6), {"caf\u00e9", "tea"}),
    ],
    ids=["truth", "float", "decimal", "large", "view", "dictionary", "numbers", "bytes", "dates", "unicode forms"],
)
def test_any_column_of_names_is_a_label(tmp_path, labels, names):
    table = pa.table({"path": pictures(tmp_path), "label": labels})
    try:
        pq.write_table(table, tmp_path / "s.parquet")
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow writes no such column")
    assert set(prepared(tmp_path / "s.parquet", tmp_path / "shop", split="by_image")["class_name"]) == names


def test_columns_of_bytes_are_left_out_also_where_the_first_cell_is_empty(tmp_path):
    table = {"path": pictures(tmp_path), "label": ["x", "y"] * 12, "thumb": pa.array([None, b"1"] * 12)}
    pq.write_table(pa.table(table), tmp_path / "s.parquet")
    assert "thumb" not in prepared(tmp_path / "s.parquet", tmp_path / "shop", split="by_image")


@pytest.mark.parametrize(
    ("name", "mark", "encoding"),
    [
        ("s.csv", ";", "utf-8-sig"),
        ("s.csv", "\t", "utf-8"),
        ("S.TSV", "\t", "utf-16"),
        ("s.csv", "|", "utf-16-be"),
        ("s.tsv", ",", "utf-8"),
    ],
)
def test_tables_of_other_programs_are_read(tmp_path, name, mark, encoding):
    splits = ("Train", "validation", "TESTING")
    paths = [path if number % 2 else str(tmp_path / path) for number, path in enumerate(pictures(tmp_path))]
    lines = [f"{path}{mark}caf\u00e9 {n % 4}{mark}{splits[n // 4 % 3]}" for n, path in enumerate(paths)]
    text = "\n".join([f"path{mark}label{mark}split", *lines])
    start = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / name).write_bytes((start + text).encode(encoding))
    listed = prepared(tmp_path / name, tmp_path / "shop", split="by_image", near_duplicates=False)
    assert set(listed["class_name"]) == {f"caf\u00e9 {number}" for number in range(4)}
    assert listed["split"].value_counts().to_dict() == {"train": 8, "val": 8, "test": 8}


@pytest.mark.parametrize("trains", [True, False])
def test_query_and_gallery_are_test_images_of_two_roles(tmp_path, trains):
    paths = pictures(tmp_path)
    splits = [("train" if trains and number < 12 else ("query", "gallery")[number // 4 % 2]) for number in range(24)]
    lines = [f"{path},{number % 4},{split}" for number, (path, split) in enumerate(zip(paths, splits, strict=True))]
    (tmp_path / "s.csv").write_text("\n".join(["path,label,split", *lines]))
    listed = prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_image", near_duplicates=False)
    roles = listed.set_index("path")["role"].to_dict()
    assert roles == {path: split.replace("train", "") for path, split in zip(paths, splits, strict=True)}
    assert (listed["split"] == "test").sum() == (12 if trains else 24)


def test_the_same_pixels_under_two_classes_are_told(tmp_path):
    paths = pictures(tmp_path)
    (tmp_path / "a" / "1.png").write_bytes((tmp_path / "a" / "0.png").read_bytes())
    (tmp_path / "a" / "5.png").write_bytes((tmp_path / "a" / "9.png").read_bytes())
    lines = [f"{path},{number % 4}" for number, path in enumerate(paths)]
    (tmp_path / "s.csv").write_text("\n".join(["path,label", *lines]))
    prepared(tmp_path / "s.csv", tmp_path / "shop", split="by_image", store="files")
    notes = json.loads((tmp_path / "shop" / "summary.json").read_text())["notes"]
    (note,) = [note for note in notes if "contradictory" in note]
    assert note.startswith("2 image(s) are contradictory duplicates")
    assert "a/0.png (0), a/1.png (1)" in note


def test_what_is_no_table_is_said(tmp_path):
    with pytest.raises(DataError, match=r"x\.csv is no file, or ends in none"):
        prepared(tmp_path / "x.csv", tmp_path / "shop")
    (tmp_path / "x.xlsx").touch()
    with pytest.raises(DataError, match=r"is no file, or ends in none of \.csv, \.tsv, \.parquet"):
        prepared(tmp_path / "x.xlsx", tmp_path / "shop")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="cannot be read"):
        prepared(tmp_path / "x.parquet", tmp_path / "shop")
    (tmp_path / "latin.csv").write_bytes("path,label\ncaf\xe9.png,x".encode("latin-1"))
    with pytest.raises(DataError, match=r"byte 0xe9 is not UTF-8; save the file as UTF-8 \(Excel: `CSV UTF-8`\)"):
        prepared(tmp_path / "latin.csv", tmp_path / "shop")
    (tmp_path / "wide.csv").write_bytes("path,label\na/0.png,x".encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"wide\.csv, line 2: byte 0x78 is not UTF-16-LE; save"):
        prepared(tmp_path / "wide.csv", tmp_path / "shop")
    for name in ("folder.csv", "folder.parquet"):
        (tmp_path / name).mkdir()
        with pytest.raises(DataError, match="is no"):
            prepared(tmp_path / name, tmp_path / "shop")


@pytest.mark.parametrize(
    "labels",
    [
        [None, *"xxxyyyy"],
        [float("nan"), 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0],
        pa.array([None, 1, 1, 1, 2, 2, 2, 2]),
        pa.nulls(8),
    ],
)
def test_a_missing_label_is_no_class(tmp_path, labels):
    pictures(tmp_path, 8)
    pq.write_table(pa.table({"path": [f"a/{n}.png" for n in range(8)], "label": labels}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="row 1 has no label"):
        prepared(tmp_path / "t.parquet", tmp_path / "shop", split="by_image")


def test_a_missing_group_is_no_group(tmp_path):
    """Images without a group stayed together, as those of the group nan."""
    lines = [f"{path},{n % 4},{['nan', 'NaN', '', 'None', 'walk'][n % 5]}" for n, path in enumerate(pictures(tmp_path))]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,group", *lines]))
    names = {role: role for role in ("path", "label", "split", "group")}
    groups = listed_in(tmp_path / "t.csv", names, columns_of(tmp_path / "t.csv"))["group"]
    assert groups.tolist() == ["walk" if n % 5 == 4 else "" for n in range(len(lines))]


def test_columns_called_as_ours_do_not_change_what_is_stored(tmp_path):
    pictures(tmp_path, 8)
    lines = [f"a/{n}.png,{n % 2 if n < 7 else 'alone'},1,2,3,guest" for n in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,length,offset,sha256,role", *lines]))
    listed = prepared(tmp_path / "t.csv", tmp_path / "shop", split="by_image")
    assert set(listed["class_name"]) == {"0", "1"}  # min_images counts for all that are no queries of ours
    assert doctor(tmp_path / "shop") == []
    stored = open_images(tmp_path / "shop")
    assert all(stored[row].shape == (40, 50, 3) for row in range(7))


def vectors(count=60, dim=10):
    rows = np.random.default_rng(1).normal(size=(count, dim)).astype(np.float32)
    return rows, np.array([f"kind {number % 6}" for number in range(count)])


def written(folder, kind):
    rows, labels = vectors()
    file = folder / f"v.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"vector": list(rows), "label": labels.tolist(), "price": np.arange(60)}), file)
    elif kind == "npz":
        np.savez(file, vectors=rows, label=labels, price=np.arange(60), source_row=np.zeros(60, int))
    elif kind == "npy":
        np.save(file, rows)
        lines = [f"{label},{number},none" for number, label in enumerate(labels)]
        file.with_suffix(".csv").write_text("\n".join(["label,price,vector", *lines]))
    else:
        from probmetric.io import write_tensors

        write_tensors(file, {"mean": rows, "label": np.arange(60) % 6, "price": np.arange(60)})
    return file


@pytest.mark.parametrize("kind", ["parquet", "npz", "npy", "safetensors"])
def test_vectors_are_a_dataset(tmp_path, kind):
    from probmetric.data.views import view_of

    file = written(tmp_path, kind)
    folder = prepare_dataset("embeddings", tmp_path / "v", raw=file, progress=False, split="by_image")
    manifest, store, view = load_manifest(folder), open_images(folder), view_of(folder)
    assert doctor(folder) == []
    found = view.normalise(view.load_plain(store.load(np.arange(60)))).flatten(1).numpy()
    np.testing.assert_array_equal(found[:, :10], vectors()[0][manifest["price"]])
    assert not found[:, 10:].any()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vectors": np.zeros((60, 3, 2))}, r"expected \(N, M\) numbers"),
        ({"vectors": np.full((60, 3), np.nan)}, "is not finite"),
        ({"vectors": np.zeros((59, 3))}, "60 entries of label for 59 vectors"),
        ({"vectors": np.array(["x"] * 60)}, r"expected \(N, M\) numbers"),
        ({"vectors": np.array([{}] * 60)}, "without objects"),
        ({"other": np.zeros((60, 3))}, "has no vectors"),
        ({"vectors": np.full((60, 3), 1e300)}, "is not finite in float32"),
        ({"vectors": np.zeros((0, 3))}, r"expected \(N, M\) numbers"),
        ({"vectors": np.ones((60, 3), complex)}, r"expected \(N, M\) numbers"),
        ({"vectors": np.ones((60, 3)), "label": np.full(60, np.nan)}, r"row 1 has no label; mend it \(60 such\)"),
        ({"vectors": np.ones((60, 3)), "label": np.array([b"\xff"] * 60)}, "a label is not UTF-8"),
        ({"vectors": np.ones((60, 3)), "path": np.array(["x"] * 60)}, "list one image"),
        ({"vectors": np.ones((60, 3)), "label": np.ones((60, 2))}, r"no column 'label' .*; it has 'price'\."),
        ({"vectors": np.ones((60, 3)), "label": np.ones(60, complex)}, r"no column 'label' .*; it has 'price'\."),
    ],
)
def test_hostile_vectors_are_refused(tmp_path, change, says):
    np.savez(tmp_path / "v.npz", **{"label": np.arange(60) % 6, "price": np.arange(60), **change})
    with pytest.raises(DataError, match=says):
        prepare_dataset("embeddings", tmp_path / "v", raw=tmp_path / "v.npz", progress=False)


def test_labels_of_bytes_are_text(tmp_path):
    pairs = {"phase": np.ones(60, complex), "pair": np.ones(60, dtype=[("a", "i4"), ("b", "i4")])}
    np.savez(tmp_path / "v.npz", vectors=vectors()[0], label=vectors()[1].astype(bytes), **pairs)
    folder = prepare_dataset("embeddings", tmp_path / "v", raw=tmp_path / "v.npz", progress=False, split="by_image")
    frame = load_manifest(folder)
    assert set(frame["class_name"]) == {f"kind {number}" for number in range(6)}
    assert not set(frame.columns) & set(pairs)


def test_lists_that_differ_in_length_are_refused_also_where_they_would_fill_a_matrix(tmp_path):
    ragged = [[1.0, 2.0, 3.0], [4.0], *([float(number), 2.0] for number in range(58))]
    pq.write_table(pa.table({"vector": ragged, "label": np.arange(60) % 6}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match="lists that differ in length"):
        prepare_dataset("embeddings", tmp_path / "v", raw=tmp_path / "v.parquet", progress=False)


@pytest.mark.parametrize("kind", ["parquet", "npz", "npy", "safetensors"])
@pytest.mark.parametrize("damage", ["empty", "half", "noise", "zip"])
def test_damaged_files_of_vectors_are_named(tmp_path, kind, damage):
    file = written(tmp_path, kind)
    whole = file.read_bytes()
    noise = np.random.default_rng(0).bytes(500)
    file.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "noise": noise, "zip": b"PK\x03\x04junk"}[damage])
    with pytest.raises(DataError, match=rf"v\.{kind}"):
        prepare_dataset("embeddings", tmp_path / "v", raw=file, progress=False, split="by_image")


def test_a_file_that_claims_more_than_there_is_memory_is_refused(tmp_path):
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 768), }".ljust(117) + b"\n"
    (tmp_path / "v.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(100))
    (tmp_path / "v.csv").write_text("label\n1")
    with pytest.raises(DataError, match="Unable to allocate"):
        prepare_dataset("embeddings", tmp_path / "v", raw=tmp_path / "v.npy", progress=False)


def test_vectors_of_a_kind_numpy_does_not_know_are_refused_with_the_way_out(tmp_path):
    import torch
    from safetensors.torch import save_file

    rows = torch.from_numpy(vectors()[0]).bfloat16()
    save_file({"vector": rows, "label": torch.arange(60) % 6}, tmp_path / "v.safetensors")
    with pytest.raises(DataError, match="vectors as float32"):
        prepare_dataset("embeddings", tmp_path / "v", raw=tmp_path / "v.safetensors", progress=False)


def test_the_example_distorts_test_images_by_strengths_that_are_kept(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    for number in range(48):
        file = tmp_path / "raw" / f"class {number // 6}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(60, 200, (40, 50, 3), dtype=np.uint8)).save(file)
    prepare_dataset("folder", tmp_path / "clean", raw=tmp_path / "raw", progress=False, workers=1)
    monkeypatch.setattr(sys, "argv", ["", *(str(tmp_path / name) for name in ("clean", "raw", "distorted"))])
    runpy.run_path(str(Path(__file__).parents[2] / "examples/distort_photos.py"), run_name="__main__")
    clean, table = load_manifest(tmp_path / "clean"), prepared(tmp_path / "distorted/images.csv", tmp_path / "d")
    assert table.class_name.tolist() == clean.class_name.tolist()
    assert table.split.tolist() == clean.split.tolist()
    tested = table.split == "test"
    assert (table.sha256 == clean.sha256).tolist() == (~tested).tolist()
    strengths = table[["blur", "occlusion", "noise"]].to_numpy()
    np.testing.assert_allclose(3 * table.distortion**2, (strengths * strengths).sum(axis=1), rtol=1e-12)
    assert (strengths[~tested] == 0).all()
    assert ((strengths[tested] > 0) & (strengths[tested] < 1)).all()
