"""Galleries: made, grown, shrunk, stored, searched."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from serving_helpers import LAPLACE, PLAIN, undigested

import probmetric
from probmetric import cli
from probmetric.errors import ProbMetricError
from probmetric.serving import _gallery_files, _row_sums


@pytest.fixture(scope="module")
def gallery(model, photos):
    return probmetric.Gallery.create(model, photos[0])


def test_every_image_finds_itself(model, gallery, photos):
    answers = model.search(gallery, list(photos[1]), k=2)
    assert [answer.matches[0].path for answer in answers] == list(photos[1])
    assert all(answer.matches[0].similarity > 0.9999 for answer in answers)


def test_the_class_is_the_folder(gallery):
    assert gallery.class_names[0] == gallery.paths[0].split("/")[-2]


def test_a_stored_gallery_answers_alike_and_is_mapped(model, gallery, photos, tmp_path):
    stored = probmetric.Gallery.open(gallery.save(tmp_path / "g"))
    assert isinstance(stored.rows().base, np.memmap) or isinstance(stored.rows(), np.memmap)
    images = list(photos[1])[:3]
    assert model.search(stored, images) == model.search(gallery, images)
    assert stored.digest == gallery.digest


def test_images_are_added_replaced_and_removed(model, photos, tmp_path):
    paths = list(photos[1])
    gallery = probmetric.Gallery.create(model, paths[:4])
    gallery.save(tmp_path / "g")
    gallery = probmetric.Gallery.open(tmp_path / "g")
    before = gallery.digest
    gallery.add(model, paths[2:8])
    assert sorted(gallery.paths) == sorted(paths[:8])
    assert gallery.remove(paths[:3]) == 3
    gallery.save()
    again = probmetric.Gallery.open(tmp_path / "g")
    assert sorted(again.paths) == sorted(paths[3:8])
    assert again.digest != before
    assert len(list((tmp_path / "g").iterdir())) == 4, "files of earlier states are gone"
    found = model.search(again, paths[:8], k=1)
    assert [answer.matches[0].path == path for answer, path in zip(found, paths[:8], strict=True)] == [False] * 3 + [
        True
    ] * 5
    with pytest.raises(ProbMetricError, match="not in the gallery"):
        again.remove(["never"])


def test_exact_neighbours_are_those_of_the_engine():
    from probmetric.retrieval import nearest_neighbours
    from probmetric.retrieval.exact import exact_neighbours

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 6)).astype(np.float32)
    rows[100:200] = rows[:100] + 1e-7 * rng.normal(size=(100, 6))  # near-ties
    rows[300:310] = rows[0]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = nearest_neighbours(rows[:50], rows, k=12, method="exact")
    found = exact_neighbours(rows[:50], [rows[:130], rows[130:131], rows[131:]], k=12)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.similarity, expected.similarity)


def test_rows_that_are_none_are_refused():
    from probmetric.retrieval.exact import exact_neighbours

    rows = np.eye(3, dtype=np.float32)
    for damage in (np.nan, 7.0):
        broken = rows.copy()
        broken[0, 0] = damage
        with pytest.raises(ValueError, match=r"not finite|norm"):
            exact_neighbours(rows[:1], [broken], k=1)
    with pytest.raises(ValueError, match="k is 4"):
        exact_neighbours(rows, [rows], k=4)


def test_another_models_gallery_is_refused(exported, gallery, photos):
    other = probmetric.load(exported[LAPLACE])
    with pytest.raises(ProbMetricError, match="made by another model"):
        other.search(gallery, list(photos[1])[:1])
    with pytest.raises(ProbMetricError, match="made by another model"):
        gallery.add(other, list(photos[1])[:1])


def test_bad_files_are_left_out_and_listed(model, photos, tmp_path):
    from PIL import Image

    Image.new("L", (32, 32)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ProbMetricError, match=r"2 of 3 images(.|\n)*bad\.png(.|\n)*empty\.jpg"):
        probmetric.Gallery.create(model, tmp_path)
    gallery = probmetric.Gallery.create(model, tmp_path, on_error="skip")
    assert gallery.paths == [str(tmp_path / "good.png")]
    assert sorted(name for name, _ in gallery.problems) == [str(tmp_path / "bad.png"), str(tmp_path / "empty.jpg")]


def test_a_torch_dataset_is_a_gallery(model):
    import torch

    class Own(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return torch.full((1, 32, 32), 40 * index, dtype=torch.uint8), index % 2

    gallery = probmetric.Gallery.create(model, Own())
    assert gallery.class_names == ["0", "1", "0", "1", "0"]


def test_links_out_of_the_folder_are_not_followed_and_said(model, photos, tmp_path, caplog):
    from PIL import Image

    (tmp_path / "in").mkdir()
    Image.new("L", (32, 32)).save(tmp_path / "in" / "a.png")
    Image.new("L", (32, 32)).save(tmp_path / "secret.png")
    (tmp_path / "in" / "b.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "in" / "c.png").symlink_to(tmp_path / "in" / "c.png")
    (tmp_path / "in" / "d.png").symlink_to("/nowhere/at/all")
    assert probmetric.Gallery.create(model, tmp_path / "in").paths == [str(tmp_path / "in" / "a.png")]
    assert f"left out: 3 link(s) that lead out of {tmp_path}/in, or nowhere, such as {tmp_path}/in/b.png" in caplog.text


def test_a_name_that_is_no_utf8_can_be_stored(model, photos, tmp_path):
    import os
    import shutil

    (tmp_path / "in").mkdir()
    shutil.copy(next(iter(photos[1])), os.fsencode(tmp_path / "in") + b"/caf\xe9.png")
    gallery = probmetric.Gallery.create(model, tmp_path / "in")
    stored = probmetric.Gallery.open(gallery.save(tmp_path / "g"))
    assert len(stored) == 1
    assert stored.paths == gallery.paths


@pytest.mark.parametrize(
    "change",
    [
        {"rows": ["../../x.safetensors"]},
        {"entries": "/etc/passwd"},
        {"dim": 8},
        {"dim": -1},
        {"rows": []},
        {"format": 9},
        {"model": None},
    ],
)
def test_a_hostile_gallery_is_refused(gallery, tmp_path, change):
    folder = gallery.save(tmp_path / "g")
    values = undigested(folder / "gallery.json")
    (folder / "gallery.json").write_text(json.dumps(values | change))
    with pytest.raises(ProbMetricError):
        probmetric.Gallery.open(folder)


@pytest.mark.parametrize(
    ("name", "value"), [("mean", np.nan), ("mean", np.inf), ("mean", 0.0), ("mean", 5.0), ("uncertainty", np.nan)]
)
def test_rows_that_are_no_embeddings_are_refused_whatever_their_file_is_called(gallery, tmp_path, name, value):
    """Somebody hostile gives a file the name its content asks for."""
    from probmetric.io import write_tensors
    from probmetric.serving._gallery_files import Part

    folder = gallery.save(tmp_path / "g")
    tensors = {"mean": np.array(gallery.rows()), "uncertainty": np.array(gallery.uncertainty)}
    tensors[name][3] = value
    made = Part(**tensors)
    write_tensors(folder / made.name, tensors)
    index = undigested(folder / "gallery.json")
    (folder / "gallery.json").write_text(json.dumps(index | {"rows": [made.name]}))
    with pytest.raises(ProbMetricError, match="row 3 is no embedding"):
        probmetric.Gallery.open(folder)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("option", [[], ["--csv"]])
def test_names_in_a_gallery_do_not_steer_the_terminal(exported, model, tmp_path, monkeypatch, capsys, option, terminal):
    from PIL import Image

    image, name = np.random.default_rng(0).integers(0, 255, (32, 32), dtype=np.uint8), "\x1b[31mred\n  1.000  no class"
    Image.fromarray(image).save(tmp_path / "query.png")
    probmetric.Gallery.create(model, [image], paths=[name], class_names=["\x07"]).save(tmp_path / "g")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert cli.main(["search", str(exported[PLAIN]), str(tmp_path / "g"), str(tmp_path / "query.png"), *option]) == 0
    said = capsys.readouterr().out
    raw = bool(option) and not terminal  # what reads a table needs the names as they are
    assert ("\x1b" in said) == raw
    assert ("\\x1b[31mred" in said) == (not raw)
    assert option or "red\\n  1.000  no class" in said


def test_a_gallery_that_names_an_image_twice_is_refused(gallery, tmp_path):
    from probmetric.serving._gallery_files import _write_entries

    folder = gallery.save(tmp_path / "g")
    entries = _write_entries(folder, [gallery.paths[0], *gallery.paths[:-1]], gallery.class_names)
    index = undigested(folder / "gallery.json")
    (folder / "gallery.json").write_text(json.dumps(index | {"entries": entries}))
    with pytest.raises(ProbMetricError, match="names an image twice"):
        probmetric.Gallery.open(folder)


def test_damaged_rows_are_noticed(gallery, tmp_path):
    folder = gallery.save(tmp_path / "g")
    file = next(folder.glob("rows-*"))
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ProbMetricError, match="damaged"):
        probmetric.Gallery.open(folder)


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("tensor", ["mean", "uncertainty", None])
def test_damaged_rows_of_a_large_file_are_noticed_before_an_answer(model, photos, tmp_path, monkeypatch, sums, tensor):
    monkeypatch.setattr(_gallery_files, "VERIFIED_BYTES", 0 if sums else 2**20)
    folder = probmetric.Gallery.create(model, photos[0]).save(tmp_path / "g")
    file = next(folder.glob("rows-*"))
    monkeypatch.setattr(_gallery_files, "VERIFIED_BYTES", 0)
    if tensor:
        data = bytearray(file.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        data[start + json.loads(data[8:start])[tensor]["data_offsets"][0] + 5] ^= 1
        file.write_bytes(data)
    opened = probmetric.Gallery.open(folder)
    if tensor is None:
        assert model.search(opened, sorted(photos[1])[:3], any_image=True)
        return
    for asked in (lambda: model.search(opened, sorted(photos[1])[:3]), lambda: opened.remove(opened.paths[:1])):
        with pytest.raises(ProbMetricError, match="is damaged"):
            asked()


@pytest.mark.parametrize("damage", ["bit", "zeros", "exchanged", "shorter", "end"])
def test_sums_of_rows_change_with_them(monkeypatch, damage):
    monkeypatch.setattr(_row_sums, "BLOCK_BYTES", 8192)
    rows = np.random.default_rng(0).standard_normal((3001, 7)).astype(np.float32)
    sums = _row_sums.row_sums(rows)
    flat = rows.copy().reshape(-1).view(np.uint8)
    assert _row_sums.changed_row(rows, sums) is None
    if damage == "bit":
        flat[20_000] ^= 128
    elif damage == "zeros":
        flat[20_480:24_576] = 0
    elif damage == "exchanged":
        flat[16_384:32_768] = np.roll(flat[16_384:32_768], 8192)
    elif damage == "end":
        flat[-1] ^= 1
    changed = flat.view(np.float32).reshape(rows.shape)
    found = _row_sums.changed_row(changed[:2600] if damage == "shorter" else changed, sums)
    assert found == {"end": 2925, "shorter": 2340}.get(damage, 585)


def test_doubt_is_the_share_of_surer_validation_images(project, model, gallery, photos):
    from probmetric.runs.folder import RunFolder

    known = RunFolder(project / "results" / PLAIN).embeddings("val")["uncertainty"]
    answer = model.search(gallery, next(iter(photos[1])))[0]
    assert answer.doubt == pytest.approx(
        np.mean(known < answer.uncertainty) / 2 + np.mean(known <= answer.uncertainty) / 2
    )
    sure = model.search(gallery, next(iter(photos[1])), withhold=0.0)[0]
    assert sure.withheld
    assert sure.reason == "less sure than 0 % of the validation images"


@pytest.mark.parametrize(("arguments", "says"), [({"k": 0}, "k is 0"), ({"withhold": 1.5}, "it is a share")])
def test_wrong_arguments_are_refused(model, gallery, photos, arguments, says):
    with pytest.raises(ProbMetricError, match=says):
        model.search(gallery, next(iter(photos[1])), **arguments)


def test_two_that_change_a_gallery_at_once_wait_for_each_other(exported, model, photos, tmp_path, caplog):
    from probmetric.io import alone
    from probmetric.serving import commands

    place, (first, *others) = tmp_path / "g", sorted(photos[1])
    index = partial(commands.index, str(exported[PLAIN]), [Path(path) for path in others], place)
    with ThreadPoolExecutor(1) as pool:
        with alone(place):
            second = pool.submit(index)
            while "another process changes" not in caplog.text:
                assert not second.done()
                time.sleep(0.01)
            probmetric.Gallery.create(model, [first]).save(place)
        assert second.result() == f"{place}: {len(photos[1])} images ({len(others)} added, 0 removed)"
    assert not list(tmp_path.glob(".g.lock"))


def test_a_first_save_that_failed_does_not_stand_in_the_way(gallery, tmp_path):
    saved = gallery.save(tmp_path / "g")
    (saved / "gallery.json").unlink()
    (saved / "trust.json").unlink(missing_ok=True)
    assert len(probmetric.Gallery.open(gallery.save(tmp_path / "g"))) == len(gallery)
    (tmp_path / "g" / "gallery.json").unlink()
    (tmp_path / "g" / "mine.txt").touch()
    with pytest.raises(ProbMetricError, match="is no gallery"):
        gallery.save(tmp_path / "g")


def test_the_commands(project, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(project)
    model, gallery = str(tmp_path / "m"), str(tmp_path / "g")
    image = next(iter(photos[1]))
    assert cli.main(["export", PLAIN, model]) == 0
    assert cli.main(["index", model, str(photos[0]), "--gallery", gallery]) == 0
    assert cli.main(["index", model, "digits", "--splits", "train,val", "--gallery", gallery]) == 0
    assert cli.main(["index", model, "--gallery", gallery, "--remove", image]) == 0
    capsys.readouterr()
    assert cli.main(["search", model, gallery, image, "-k", "1", "--csv"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split(",")
    assert row[-1] == "digits/0000"
    assert cli.main(["search", model, image]) == 2
    assert "has no images of its own" in capsys.readouterr().err


@pytest.mark.parametrize("splits", ["train", "test", "train,val,test"])
def test_a_run_finds_its_own_images_where_they_are_asked_for(project, photos, monkeypatch, capsys, splits):
    """Issue 19: of one's own training and validation photos 0 % were found."""
    from probmetric.data import load_columns

    columns = load_columns(project / "data/prepared/digits", ["split", "path"])
    wanted = {path: row for path, row in photos[1].items() if columns["split"][row] in splits.split(",")}
    monkeypatch.chdir(project)
    assert cli.main(["search", PLAIN, *wanted, "--splits", splits, "-k", "1", "--csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[-1] for row in rows] == [columns["path"][row] for row in wanted.values()]
