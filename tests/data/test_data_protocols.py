"""Oddities of published photographs, on miniatures, and on the real ones where they lie in ~/photos."""

from __future__ import annotations

import json
from pathlib import Path

import miniatures
import numpy as np
import pytest
from PIL import Image

from probmetric.config import RunSettings, parse
from probmetric.config.params import DataFolders
from probmetric.data import DataError, load_columns, load_manifest, load_metadata, prepare_dataset
from probmetric.data.places import located, positives
from probmetric.data.sources import REGISTRY, RawFiles
from probmetric.errors import ProbMetricError
from probmetric.runs.folder import RunFolder
from probmetric.runs.plan import Run, RunPlan
from probmetric.runs.steps import certify, make

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


@pytest.mark.parametrize(("line", "text"), [(1, "Person_a\t1\t1"), (3, "Person_a\t1\tPerson_a\t2")])
def test_a_pair_that_contradicts_itself_is_refused(tmp_path, line, text):
    root = faces(tmp_path / "raw" / "lfw")
    lines = (root / "pairs.txt").read_text().splitlines()
    lines[line] = text
    (root / "pairs.txt").write_text("\n".join(lines) + "\n")
    source = REGISTRY.create("lfw", protocol="view2", subset=True)
    with pytest.raises(DataError, match=rf"line {line + 1}: one image twice, or one person in a line of two people"):
        source.read(RawFiles("lfw", root, tmp_path, subset=True), seed=0)


def test_a_pair_names_images_of_its_people_whatever_lies_in_other_folders(tmp_path):
    root = faces(tmp_path / "raw" / "lfw")
    picture(root / "Person_b" / "Person_a_0001.jpg", 5)
    table = REGISTRY.create("lfw", protocol="view2", subset=True).read(
        RawFiles("lfw", root, tmp_path, subset=True), seed=0
    )
    people = table.columns["identity"]
    assert all((people[first] == people[second]) == same for first, second, same in table.pairs)


def test_the_first_view_of_lfw_is_as_it_was(tmp_path):
    raw = miniatures.build("lfw", tmp_path / "raw" / "lfw")
    folder = prepare_dataset("lfw", tmp_path / "lfw", raw=raw, subset=True, progress=False, workers=1)
    assert set(load_columns(folder, ["split"])["split"]) == {"train", "val", "test"}


def test_people_of_the_first_folds_train_and_the_pairs_of_the_others_are_verified(tmp_path):
    root = faces(tmp_path / "raw" / "lfw")
    options = {"protocol": "view2", "subset": True, "progress": False, "workers": 1}
    folder = prepare_dataset("lfw", tmp_path / "lfw", raw=root, training_folds=2, **options)
    columns = load_columns(folder, ["identity", "split"])
    used = {name[-1]: split for name, split in zip(columns["identity"], columns["split"], strict=True)}
    assert {used[letter] for letter in "abcd"} == {"train", "val"}
    assert used["e"] == used["f"] == used["r"] == "test"  # r: the stranger, who is in no pair
    pairs = load_metadata(folder)["pairs"]
    assert {columns["identity"][row] for first, second, _ in pairs for row in (first, second)} == {
        "Person_e",
        "Person_f",
    }
    assert len(pairs) == 4
    with pytest.raises(DataError, match=r"training_folds 3 of 3 in .* leave none to verify"):
        prepare_dataset("lfw", tmp_path / "no", raw=root, training_folds=3, **options)


def test_two_people_of_one_photograph_are_noted(tmp_path):
    """Of LFW: Bart_Hendricks and Ricky_Ray, Carlos_Beltran and Raul_Ibanez."""
    root = faces(tmp_path / "raw" / "lfw")
    (root / "Stranger" / "Stranger_0001.jpg").write_bytes((root / "Person_a" / "Person_a_0002.jpg").read_bytes())
    folder = prepare_dataset(
        "lfw", tmp_path / "lfw", raw=root, protocol="view2", subset=True, progress=False, workers=1
    )
    (note,) = [note for note in notes_of(folder) if "contradictory" in note]
    assert "Person a" in note
    assert "Stranger" in note


# ---- places: frames of walks in folders of areas


def tower(root: Path, floors: int = 6) -> Path:
    """Floors of a staircase of 12 frames and a hall of 7, named as in the tower; floor 6's hall is stored twice."""
    for floor in range(1, floors + 1):
        for name, count in (("stairs_main", 12), ("hall_c030", 7)):
            for frame in range(1, count + 1):
                seed = 10_000 * floor + 100 * count + frame
                picture(root / f"floor{floor}" / f"f{floor:02d}_{name}_frame_{frame:06d}.jpg", seed)
    for frame in range(1, 8):
        hall = root / f"floor{floors}" / f"f{floors:02d}_hall_c030_frame_{frame:06d}.jpg"
        (root / f"floor{floors}" / f"f{floors:02d}_other_alt_frame_{frame:06d}.jpg").write_bytes(hall.read_bytes())
    (root / "dataset.csv").write_text("image_path,label,split\n")
    return root


def test_walks_ask_every_fifth_frame_and_never_beside_it(tmp_path):
    folder = prepare_dataset("walks", tmp_path / "out", raw=tower(tmp_path / "tower"), progress=False, workers=1)
    listed = load_manifest(folder)
    assert set(listed.area[listed.split == "test"]) == {"floor4", "floor5", "floor6"}
    assert len(set(listed.area[listed.split == "val"])) == 2
    tested = listed[listed.split == "test"]
    for walk, frames in tested.groupby("sequence"):
        asked, searched = (set(frames.frame[frames.role == role]) for role in ("query", "database"))
        assert asked == ({5, 10} if "stairs" in walk else {5})
        assert not any(abs(one - other) < 2 for one in asked for other in searched)
    assert set(listed.frame[(listed.split == "train") & listed.sequence.str.contains("stairs")]) == set(range(1, 13))
    assert (listed.role[listed.split == "train"] == "").all()
    assert tested.groupby("label").sequence.nunique().eq(1).all()


def test_answers_along_a_walk_are_frames_within_three(tmp_path):
    listed = load_manifest(
        prepare_dataset("walks", tmp_path / "out", raw=tower(tmp_path / "tower"), progress=False, workers=1)
    )
    tested = listed[listed.split == "test"]
    columns, radius = located({name: tested[name].to_numpy() for name in ("sequence", "frame", "role")})
    queries, database, answers = positives(columns, radius=radius)
    for query, rows in zip(queries, answers, strict=True):
        same = tested.sequence.to_numpy()[database] == tested.sequence.to_numpy()[query]
        near = np.abs(tested.frame.to_numpy()[database] - tested.frame.to_numpy()[query]) <= 3
        assert set(rows) == set(np.flatnonzero(same & near))
    assert [len(rows) for rows in answers][:2] == [3, 4]  # of the hall 5 asks 2, 3 and 7; of the stairs 2, 3, 7, 8


def test_a_walk_that_is_stored_twice_is_left_out(tmp_path):
    folder = prepare_dataset("walks", tmp_path / "out", raw=tower(tmp_path / "tower"), progress=False, workers=1)
    assert "7 frames of floor6/f06_other_alt left out that are also frames of floor6/f06_hall_c030" in notes_of(folder)
    assert not load_manifest(folder).sequence.str.contains("other_alt").any()


@pytest.mark.parametrize("name", ["{}", "{:06d}", "frame_{}", "frame{:04d}"])
def test_frames_with_a_number_alone_are_one_walk_of_their_area(tmp_path, name):
    for floor in range(1, 7):
        for frame in range(1, 24):
            picture(tmp_path / "tower" / f"floor{floor}" / f"{name.format(frame)}.jpg", 100 * floor + frame)
    listed = load_manifest(
        prepare_dataset("walks", tmp_path / "out", raw=tmp_path / "tower", progress=False, workers=1)
    )
    assert (listed.sequence == listed.area).all()
    assert set(listed.area) == {f"floor{floor}" for floor in range(1, 7)}
    for _, frames in listed[listed.split == "test"].groupby("sequence"):
        assert set(frames.frame[frames.role == "query"]) == {5, 10, 15, 20}
        assert {2, 3, 12, 23} < set(frames.frame[frames.role == "database"])


def test_a_picture_without_a_number_is_no_frame(tmp_path):
    root = tower(tmp_path / "tower")
    picture(root / "floor1" / "plan.jpg", 1)
    with pytest.raises(DataError, match=r"floor1/plan.jpg' is no frame of a walk; names end in a number"):
        prepare_dataset("walks", tmp_path / "out", raw=root, progress=False, workers=1)


@pytest.mark.parametrize("number", ["9223372036854775808", "20261128170234000000"])
def test_a_number_beyond_64_bits_is_no_frame(tmp_path, number):
    root = tower(tmp_path / "tower")
    picture(root / "floor1" / f"hall_{number}.jpg", 1)
    with pytest.raises(DataError, match=rf"hall_{number}.jpg' is no frame of a walk; names end in a number below 2"):
        prepare_dataset("walks", tmp_path / "out", raw=root, progress=False, workers=1)


@pytest.mark.parametrize(("first", "step", "role"), [(0, 10, "database"), (2, 5, "query"), (1, 5, "query")])
def test_walks_in_which_nobody_asks_or_is_searched_are_refused(tmp_path, first, step, role):
    for floor in range(1, 7):
        for place in range(4):
            picture(tmp_path / f"tower/floor{floor}/hall_{first + step * place}.jpg", 10 * floor + place)
    with pytest.raises(DataError, match=rf"split val has no frame of role {role}: .* or change every"):
        prepare_dataset("walks", tmp_path / "out", raw=tmp_path / "tower", progress=False, workers=1)


def test_areas_are_in_natural_order_whatever_their_digits(tmp_path):
    root = tower(tmp_path / "tower")
    (root / "floor6").rename(root / "\u00b2")
    folder = prepare_dataset("walks", tmp_path / "out", raw=root, progress=False, workers=1)
    assert "\u00b2" in set(load_manifest(folder).area)


def test_too_few_areas_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"2 folder\(s\) of frames are too few to train, validate and test"):
        prepare_dataset("walks", tmp_path / "out", raw=tower(tmp_path / "tower", 2), progress=False, workers=1)


# ---- places: walks and frames in a table


def walks(root: Path, every: int = 8) -> Path:
    """Two walks of 12 frames a second; every fourth frame is searched, those between ask, never a neighbour."""
    lines = ["path,label,split,city,easting,northing,role,night"]
    for walk in ("east", "west"):
        for frame in range(12):
            path = f"{walk}/{frame:03d}.jpg"
            picture(root / path, 1000 * ord(walk[0]) + frame)
            role = ("database", "query")[frame // 2 % 2] if frame % 2 == 0 else "unused"
            lines.append(f"{path},{walk},test,{walk},{every * frame}.0,0.0,{role},false")
    (root / "walks.csv").write_text("\n".join(lines))
    return root / "walks.csv"


def test_frames_of_a_walk_are_places_by_columns_of_a_table(tmp_path):
    """A frame counts as 8 metres: within the 25 metres of an answer are three frames, and walks are cities."""
    table = walks(tmp_path / "tower")
    folder = prepare_dataset(
        "table", tmp_path / "out", raw=table, split="by_image", near_duplicates=False, progress=False
    )
    columns = load_columns(folder, ["city", "easting", "northing", "role", "path"])
    queries, database, answers = positives(columns)
    assert len(queries) == 6
    assert len(database) == 6
    assert not any("has another one of its class" in note for note in notes_of(folder))
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


ORDER = ["Wren", "Auk", "Tern", "Crow", "Gull", "Finch", "Kite", "Rail"]


@pytest.fixture
def birds(tmp_path):
    """A folder in the layout of cub100: `classes.txt` beside `images`, classes in an order of its own."""
    for number, name in enumerate(ORDER):
        for image in range(3):
            picture(tmp_path / "birds" / "images" / name / f"{image:04d}.jpg", 100 * number + image)
    lines = [f"{number}, {name}" for number, name in enumerate(ORDER)]
    (tmp_path / "birds" / "classes.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "birds" / "images"


def halves(out: Path, raw: Path, **options) -> tuple[set[str], set[str]]:
    listed = load_manifest(prepare_dataset("folder", out, raw=raw, progress=False, workers=1, **options))
    tests = listed.split == "test"
    return set(listed.class_name[~tests]), set(listed.class_name[tests])


def test_the_first_classes_of_a_listing_train(tmp_path, birds):
    assert halves(tmp_path / "a", birds, class_order="../classes.txt") == (set(ORDER[:4]), set(ORDER[4:]))
    assert halves(tmp_path / "b", birds, class_order="name") == (set(sorted(ORDER)[:4]), set(sorted(ORDER)[4:]))
    (birds.parent / "classes.txt").write_text("\n".join(reversed(ORDER)), encoding="utf-16")  # Notepad's "Unicode"
    assert halves(tmp_path / "c", birds, class_order="../classes.txt") == (set(ORDER[4:]), set(ORDER[:4]))


def test_a_listing_may_write_a_class_in_another_unicode_form_and_with_one_space(tmp_path, birds):
    (birds / "Tern").rename(birds / "caf\u00e9  au lait")
    lines = ["cafe\u0301 au lait" if name == "Tern" else name for name in ORDER]
    (birds.parent / "classes.txt").write_text("\n".join(lines))
    first, last = halves(tmp_path / "a", birds, class_order="../classes.txt")
    assert (first, last) == ({"Wren", "Auk", "caf\u00e9  au lait", "Crow"}, set(ORDER[4:]))


@pytest.mark.parametrize(("option", "value"), [("class_order", "name"), ("test_fraction", 0.2), ("val_fraction", 0.3)])
def test_other_splits_than_those_that_data_name_are_refused(tmp_path, birds, option, value):
    for name in ORDER:
        split = "train" if name in ORDER[:3] else "val" if name == ORDER[3] else "test"
        (birds.parent / "named" / split).mkdir(parents=True, exist_ok=True)
        (birds / name).rename(birds.parent / "named" / split / name)
    with pytest.raises(DataError, match=f"names splits, and {option} would make others; remove one of the two"):
        halves(tmp_path / "a", birds.parent / "named", **{option: value})


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (ORDER[1:], {}, "the class 'Wren' is listed 0 times"),
        ([*ORDER, "Auk"], {}, "the class 'Auk' is listed 2 times"),
        (ORDER, {"split": "by_image"}, "'class_order' is '../classes.txt', which counts with split='by_class' only"),
        (None, {}, r"classes.txt \(class_order\) cannot be read .*; name a text file with a class a line"),
    ],
)
def test_a_listing_that_does_not_fit_the_classes_is_refused(tmp_path, birds, lines, options, message):
    listing = birds.parent / "classes.txt"
    listing.unlink() if lines is None else listing.write_text("\n".join(lines))
    with pytest.raises(ProbMetricError, match=message):
        halves(tmp_path / "out", birds, class_order="../classes.txt", **options)


@pytest.mark.parametrize(
    ("source", "options", "decider"),
    [
        ("cub", {"fold": 2}, "protocol='mlrc' only; protocol is 'standard'"),
        ("lfw", {"training_folds": 5}, "view2' only; protocol is 'view1'"),
        ("sop", {"shorter_side": 128}, "store='pixels' only; store is 'files'"),
        ("folder", {"shorter_side": 128, "store": "files"}, "store='pixels' only; store is 'files'"),
    ],
)
def test_options_that_a_source_does_not_read_are_refused_where_they_are_written(source, options, decider):
    message = f"{next(iter(options))}' is .*{decider}. Leave it out, or change "
    with pytest.raises(ValueError, match=message):
        parse(DataFolders, {"on_request": {"mine": {"source": source, "raw": "x"} | options}}, "data")


def test_another_listing_has_the_data_prepared_again(birds):
    source = REGISTRY.create("folder", class_order="../classes.txt")
    root, files = source.raw_files(RawFiles("folder", birds, birds))
    assert (root / files[0]).resolve() == (birds.parent / "classes.txt").resolve()


def test_every_split_seed_draws_other_classes(tmp_path, birds):
    drawn = [halves(tmp_path / str(seed), birds, split_seed=seed) for seed in range(4)]
    assert len({frozenset(tests) for _, tests in drawn}) > 1
    assert halves(tmp_path / "again", birds, split_seed=1) == drawn[1]
    assert halves(tmp_path / "plain", birds) == drawn[0]


def test_the_folder_of_raw_files_may_be_named_by_a_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("WHERE", str(tmp_path))
    folders = parse(DataFolders, {"on_request": {"birds": {"source": "folder", "raw": "$WHERE/birds"}}}, "here")
    assert folders.raw_of(folders.on_request["birds"]) == tmp_path / "birds"
    home = parse(DataFolders, {"on_request": {"birds": {"source": "folder", "raw": "~/birds"}}}, "here")
    assert home.raw_of(home.on_request["birds"]) == Path.home() / "birds"


# ---- the real ones


@pytest.mark.skipif(not (PHOTOS / "ie_tower_256").is_dir(), reason="the photographs are not unpacked in ~/photos")
def test_the_walks_of_the_tower(tmp_path):
    table = REGISTRY.create("walks").read(RawFiles("walks", PHOTOS / "ie_tower_256", tmp_path), seed=0)
    assert (
        "46 frames of floor22/f22_central_alt left out that are also frames of floor22/f22_cafeteria_main"
        in table.notes
    )
    tested = table.columns["split"] == "test"
    assert (table.columns["role"][tested] == "query").sum() == 239


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


def test_places_whose_test_cities_have_no_positions_are_validated(tmp_path, monkeypatch):
    """As the public archive of MSLS has it: papers print what its validation cities say."""
    raw = miniatures.build("msls", tmp_path / "raw", "folder")
    for role in ("query", "database"):
        (raw / "test" / "miami" / role / "postprocessed.csv").unlink()
    folder = prepare_dataset("msls", tmp_path / "data/prepared/msls", raw=raw, subset=True, progress=False, workers=1)
    assert set(load_columns(folder, ["split"])["split"]) == {"train", "val"}
    assert "2 left out: folders of miami, whose positions are not public" in notes_of(folder)
    monkeypatch.chdir(tmp_path)
    metrics = evaluated("msls")
    assert 0 <= metrics["val/retrieval/recall_at_1"] <= 1
    assert not any(name.startswith(("retrieval", "ood")) for name in metrics)
    with pytest.raises(DataError, match="msls/frozen/seed0 has no answers to test images"):
        certify("msls/frozen/seed0", risk=0.2, confidence=0.9)


SETTINGS = {
    "method": "frozen",
    "backbone": {"name": "compact"},
    "view": {"name": "photos", "size": 24},
    "training": {"epochs": 0},
}


def evaluated(dataset: str) -> dict:
    """Return the metrics of a network as it was created."""
    name = f"{dataset}/frozen/seed0"
    settings = parse(RunSettings, SETTINGS | {"dataset": dataset}, "here")
    make(RunPlan(Run(name, name, settings), ""), ("train", "embed", "evaluate"))
    return RunFolder.named(name).metrics


def test_a_network_trained_elsewhere_is_run_on_data_without_training_images(tmp_path, monkeypatch):
    root = faces(tmp_path / "raw" / "lfw")
    prepare_dataset(
        "lfw", tmp_path / "data/prepared/lfw", raw=root, protocol="view2", subset=True, progress=False, workers=1
    )
    monkeypatch.chdir(tmp_path)
    metrics = evaluated("lfw")
    assert 0 <= metrics["verification/accuracy"] <= 1
    assert metrics["retrieval/queries_without_positives"] == 1
    name, changed = "lfw/frozen/seed0", {"dataset": "lfw", "training": {"epochs": 1}, "loss": {"name": "softmax"}}
    trained = parse(RunSettings, SETTINGS | changed, "here")
    with pytest.raises(DataError, match=r"lfw has 0 training class\(es\); training needs at least 2"):
        make(RunPlan(Run(name, name, trained), ""), ("train",))
