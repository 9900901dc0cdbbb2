"""Oddities of published photographs, on miniatures, and on the real ones where they lie in ~/photos."""

from __future__ import annotations

import json
from pathlib import Path

import miniatures
import numpy as np
import pytest
from PIL import Image

from probmetric.data import DataError, load_columns, load_manifest, load_metadata, prepare_dataset
from probmetric.data.places import positives
from probmetric.data.sources import REGISTRY, RawFiles

PHOTOS = Path.home() / "photos"


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, quality=95)


def notes_of(folder: Path) -> list[str]:
    return json.loads((folder / "summary.json").read_text())["notes"]


# ---- faces: the ten folds of LFW


def faces(root: Path, folds: int = 3, count: int = 2) -> Path:
    """People with two images each and strangers with one; `pairs.txt` beside their folders."""
    people = [f"Person_{letter}" for letter in "abcdef"]
    for number, name in enumerate(people):
        for image in (1, 2):
            picture(root / name / f"{name}_{image:04d}.jpg", 10 * number + image)
    picture(root / "Stranger" / "Stranger_0001.jpg", 99)
    lines = [f"{folds}\t{count}"]
    for fold in range(folds):
        pair = people[fold * count : (fold + 1) * count]
        lines += [f"{name}\t1\t2" for name in pair]
        lines += [f"{pair[0]}\t{image}\t{pair[1]}\t{image}" for image in range(1, count + 1)]
    (root / "pairs.txt").write_text("\n".join(lines) + "\n")
    return root


def test_the_folds_of_lfw_take_turns_as_verification_shares_pairs_out(tmp_path):
    root = faces(tmp_path / "raw" / "lfw")
    folder = prepare_dataset(
        "lfw", tmp_path / "lfw", raw=root, protocol="view2", subset=True, progress=False, workers=1
    )
    columns = load_columns(folder, ["identity", "split"])
    assert set(columns["split"]) == {"test"}
    pairs = load_metadata(folder)["pairs"]
    assert len(pairs) == 12
    genuine = [pair for pair in pairs if pair[2]]
    assert [columns["identity"][first] for first, _, _ in genuine] == [f"Person_{letter}" for letter in "acebdf"]
    for kind in (0, 1):  # the k-th pair of a kind is of fold k mod 3
        chosen = [pair for pair in pairs if pair[2] == kind]
        folds = ["abcdef".index(columns["identity"][first][-1]) // 2 for first, _, _ in chosen]
        assert folds == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("line", [1, 3, 5])
def test_a_list_whose_folds_are_incomplete_is_refused(tmp_path, line):
    root = faces(tmp_path / "raw" / "lfw")
    lines = (root / "pairs.txt").read_text().splitlines()
    del lines[line]
    (root / "pairs.txt").write_text("\n".join(lines) + "\n")
    source = REGISTRY.create("lfw", protocol="view2", subset=True)
    with pytest.raises(DataError, match=r"pairs.txt is no list of pairs .*announced 3 2 of each kind"):
        source.read(RawFiles("lfw", root, tmp_path, subset=True), seed=0)


def test_the_first_view_of_lfw_is_as_it_was(tmp_path):
    raw = miniatures.build("lfw", tmp_path / "raw" / "lfw")
    folder = prepare_dataset("lfw", tmp_path / "lfw", raw=raw, subset=True, progress=False, workers=1)
    assert set(load_columns(folder, ["split"])["split"]) == {"train", "val", "test"}


# ---- places: walks and frames in a table


def walks(root: Path, every: int = 8) -> Path:
    """Two walks of 12 frames a second; every fourth frame is searched, those between ask, never a neighbour."""
    lines = ["path,label,split,city,easting,northing,role,night"]
    for walk in ("east", "west"):
        for frame in range(12):
            path = f"{walk}/{frame:03d}.jpg"
            picture(root / path, 1000 * ord(walk[0]) + frame)
            role = ("database", "query")[frame // 2 % 2] if frame % 2 == 0 else "unused"
            lines.append(f"{path},{walk},query,{walk},{every * frame}.0,0.0,{role},false")
    (root / "walks.csv").write_text("\n".join(lines))
    return root / "walks.csv"


def test_frames_of_a_walk_are_places_by_columns_of_a_table(tmp_path):
    """A frame counts as 8 metres: within the 25 metres of an answer are three frames, and walks are cities."""
    table = walks(tmp_path / "tower")
    text = table.read_text().replace(",test,", ",query,")
    table.write_text(text)
    folder = prepare_dataset(
        "table", tmp_path / "out", raw=table, split="by_image", near_duplicates=False, progress=False
    )
    columns = load_columns(folder, ["city", "easting", "northing", "role", "path"])
    queries, database, answers = positives(columns)
    assert len(queries) == 6
    assert len(database) == 6
    for query, rows in zip(queries, answers, strict=True):
        walk, frame = columns["city"][query], columns["easting"][query] / 8
        for row in database[rows]:
            assert columns["city"][row] == walk
            assert 0 < abs(columns["easting"][row] / 8 - frame) <= 3
        assert len(rows) == sum(0 < abs(other - frame) <= 3 for other in (0, 4, 8))


def test_frames_that_two_walks_share_are_told(tmp_path):
    table = walks(tmp_path / "tower")
    (table.parent / "west" / "003.jpg").write_bytes((table.parent / "east" / "007.jpg").read_bytes())
    prepare_dataset("table", tmp_path / "out", raw=table, split="by_image", store="files", progress=False)
    (note,) = [note for note in notes_of(tmp_path / "out") if "contradictory" in note]
    assert "east/007.jpg (east), west/003.jpg (west)" in note


# ---- birds: an order of classes that is not that of their names, a flag that is inverted


def test_a_table_decides_which_classes_train_a_folder_goes_by_a_draw(tmp_path):
    """`classes.txt` of cub100 orders classes as nobody else does, and its flag 0 trains: a table says either."""
    order = ["Wren", "Auk", "Tern", "Crow", "Gull", "Finch", "Kite", "Rail"]
    for number, name in enumerate(order):
        for image in range(4):
            picture(tmp_path / "birds" / name / f"{image}.jpg", 100 * number + image)
    lines = ["path,label,split"]
    for number, name in enumerate(order):
        lines += [f"{name}/{image}.jpg,{name},{'train' if number < 4 else 'test'}" for image in range(4)]
    (tmp_path / "birds" / "halves.csv").write_text("\n".join(lines))
    listed = load_manifest(
        prepare_dataset("table", tmp_path / "a", raw=tmp_path / "birds/halves.csv", val_fraction=0.3, progress=False)
    )
    assert set(listed.class_name[listed.split == "test"]) == {"Gull", "Finch", "Kite", "Rail"}
    flags = {f"{name}/{image}.jpg": image % 2 for name in order for image in range(4)}
    rows = [f"{path},{path.split('/')[0]},{('train', 'test')[flag]}" for path, flag in flags.items()]
    (tmp_path / "birds" / "flags.csv").write_text("\n".join(["path,label,split", *rows]))
    listed = load_manifest(
        prepare_dataset("table", tmp_path / "b", raw=tmp_path / "birds/flags.csv", split="by_image", progress=False)
    )
    assert all((split == "test") == flags[path] for path, split in zip(listed.path, listed.split, strict=True))


# ---- the real ones


@pytest.mark.slow
@pytest.mark.skipif(not (PHOTOS / "cars196_224").is_dir(), reason="the photographs are not unpacked in ~/photos")
def test_eleven_pairs_of_cars_stand_under_two_labels(tmp_path):
    prepare_dataset("folder", tmp_path / "cars", raw=PHOTOS / "cars196_224", store="files", progress=False, workers=1)
    assert any(note.startswith("22 image(s) are contradictory") for note in notes_of(tmp_path / "cars"))


@pytest.mark.slow
@pytest.mark.skipif(not (PHOTOS / "ie_tower_256").is_dir(), reason="the photographs are not unpacked in ~/photos")
def test_the_tower_is_read_by_its_own_table(tmp_path):
    table = PHOTOS / "ie_tower_256" / "dataset.csv"
    options = {"path_column": "image_path", "split": "by_image", "store": "files"}
    listed = load_manifest(prepare_dataset("table", tmp_path / "t", raw=table, progress=False, workers=1, **options))
    assert listed.role.value_counts().to_dict() == {"gallery": 2373, "query": 504}
    assert listed.class_name.nunique() == 25


@pytest.mark.skipif(not (PHOTOS / "lfw_a_112").is_dir(), reason="the photographs are not unpacked in ~/photos")
def test_the_six_thousand_pairs_of_lfw_are_listed(tmp_path):
    source = REGISTRY.create("lfw", protocol="view2")
    table = source.read(RawFiles("lfw", PHOTOS / "lfw_a_112", tmp_path), seed=0)
    assert len(table.columns["path"]) == 13_233
    assert sum(same for _, _, same in table.pairs) == 3_000
    assert len(table.pairs) == 6_000
