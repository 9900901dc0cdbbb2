"""Galleries: made, grown, shrunk, stored, searched."""

import csv
import json
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from serving_helpers import LAPLACE, PLAIN, resigned, undigested

import probmetric
from probmetric import cli
from probmetric.errors import ProbMetricError
from probmetric.serving.content import Content, digest_of_content
from probmetric.serving.gallery_files import write


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
    assert isinstance(stored.record["mean"], np.memmap)
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
    with pytest.raises(ProbMetricError, match=r"are not in the gallery, e\.g\. 5; name each image as answers do"):
        gallery.remove([5])
    gallery.save()
    again = probmetric.Gallery.open(tmp_path / "g")
    assert sorted(again.paths) == sorted(paths[3:8])
    assert again.digest != before
    assert len(list((tmp_path / "g").glob("[!.]*"))) == 4, "files of earlier states are gone"
    found = model.search(again, paths[:8], k=1)
    assert [answer.matches[0].path == path for answer, path in zip(found, paths[:8], strict=True)] == [False] * 3 + [
        True
    ] * 5
    with pytest.raises(ProbMetricError, match="not in the gallery"):
        again.remove(["never"])


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


def test_a_loose_image_beside_class_folders_is_named(model, tmp_path, caplog):
    from PIL import Image

    for name in ("cat/a.png", "dog/b.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("L", (32, 32)).save(tmp_path / name)
    gallery = probmetric.Gallery.create(model, tmp_path)
    assert "no class" not in caplog.text
    Image.new("L", (32, 32), 9).save(tmp_path / "cover.png")
    gallery.add(model, tmp_path)
    assert f"1 of 3 images have no class, such as {tmp_path}/cover.png: no answer has a P(right)" in caplog.text
    caplog.clear()
    probmetric.Gallery.create(model, [tmp_path / "cover.png"])
    assert "no class" not in caplog.text


def test_links_out_of_the_folder_are_not_followed_unless_told_to(model, exported, tmp_path, caplog, capsys):
    from PIL import Image

    (tmp_path / "in").mkdir()
    Image.new("L", (32, 32)).save(tmp_path / "in" / "a.png")
    Image.new("L", (32, 32)).save(tmp_path / "secret.png")
    (tmp_path / "in" / "b.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "in" / "c.png").symlink_to(tmp_path / "in" / "c.png")
    (tmp_path / "in" / "d.png").symlink_to("/nowhere/at/all")
    assert probmetric.Gallery.create(model, tmp_path / "in").paths == [str(tmp_path / "in" / "a.png")]
    assert f"left out: 3 link(s) that lead out of {tmp_path}/in, or nowhere, such as {tmp_path}/in/b.png" in caplog.text
    followed = [str(tmp_path / "g"), str(tmp_path / "in"), "--follow-links", "--on-error", "skip"]
    assert cli.main(["index", str(exported[PLAIN]), *followed]) == 0
    assert "2 images (2 added, 0 removed, 2 left out)" in capsys.readouterr().out


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
        {"vectors": "../../x.safetensors"},
        {"vectors": "vectors-1.safetensors/../../x"},
        {"images": "/etc/passwd"},
        {"dim": 8},
        {"dim": -1},
        {"format": 9},
        {"model": None},
        {"content": "0" * 64},
        {"trust": {"p_right": None}},
        {"trust": {"p_right": {"kind": "logistic"}, "apart": []}},
        {"trust": {"p_right": None, "apart": ["x"]}},
        {"surprise": 1},
    ],
)
def test_a_hostile_gallery_is_refused(gallery, tmp_path, change):
    folder = gallery.save(tmp_path / "g")
    values = undigested(folder / "gallery.json")
    (folder / "gallery.json").write_text(resigned(values | change))
    with pytest.raises(ProbMetricError):
        probmetric.Gallery.open(folder)


def test_a_file_without_its_digest_is_refused(gallery, exported, tmp_path):
    folder = gallery.save(tmp_path / "g")
    (folder / "gallery.json").write_text(json.dumps(undigested(folder / "gallery.json")))
    with pytest.raises(ProbMetricError, match="it has no digest"):
        probmetric.Gallery.open(folder)
    model = shutil.copytree(exported[PLAIN], tmp_path / "m")
    (model / "model.json").write_text(json.dumps(undigested(model / "model.json")))
    with pytest.raises(ProbMetricError, match="it has no digest"):
        probmetric.load(model)


def test_one_image_under_two_spellings_is_one(model, photos, tmp_path, monkeypatch):
    path = Path(next(iter(photos[1])))
    monkeypatch.chdir(path.parent)
    (tmp_path / "link.png").symlink_to(path)
    gallery = probmetric.Gallery.create(model, [str(path)])
    for spelling in (path.name, f"./{path.name}", f"../{path.parent.name}/{path.name}", path, tmp_path / "link.png"):
        gallery.add(model, [spelling])
        assert gallery.paths == [str(path)], "the first spelling stays"
    stored = probmetric.Gallery.open(gallery.save(tmp_path / "g"))
    monkeypatch.chdir(tmp_path)
    stored.add(model, [path, "link.png"])
    assert stored.paths == [str(path)]
    assert stored.remove("link.png") == 1


def test_a_folder_indexed_under_two_spellings_is_one_gallery(exported, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(photos[0].parent)
    index = ["index", str(exported[PLAIN]), str(tmp_path / "g")]
    for spelling in (str(photos[0]), photos[0].name, f"./{photos[0].name}/../{photos[0].name}"):
        assert cli.main([*index, spelling]) == 0
    assert sorted(probmetric.Gallery.open(tmp_path / "g").paths) == sorted(photos[1])
    count = len(photos[1])
    assert f"{count} images (0 added, {count} replaced, 0 removed)" in capsys.readouterr().out


def test_two_files_under_one_name_stay_both(model, photos, tmp_path, monkeypatch):
    first, second = list(photos[1])[:2]
    gallery = probmetric.Gallery(None)
    for folder, file in (("a", first), ("b", second)):
        (tmp_path / folder).mkdir()
        shutil.copy(file, tmp_path / folder / "x.png")
        monkeypatch.chdir(tmp_path / folder)
        gallery.add(model, ["x.png"])
    assert gallery.paths == ["x.png", str(tmp_path / "b" / "x.png")]
    shutil.copy(first, tmp_path / "b" / "x.png")
    gallery.add(model, ["x.png"])
    assert len(gallery) == 2, "a file that has changed replaces what it was"
    np.testing.assert_allclose(*gallery.record["mean"], atol=1e-5)


def test_a_folder_that_has_moved_is_the_same_images(model, photos, tmp_path, monkeypatch):
    shutil.copytree(photos[0], tmp_path / "a" / "photos")
    monkeypatch.chdir(tmp_path / "a")
    gallery = probmetric.Gallery.create(model, "photos")
    shutil.move(tmp_path / "a", tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b")
    gallery.add(model, "photos")
    assert len(gallery) == len(photos[1])


def test_images_without_names_do_not_replace_each_other(model):
    one, two, three = np.random.default_rng(0).integers(0, 255, (3, 32, 32), dtype=np.uint8)
    gallery = probmetric.Gallery.create(model, [one])
    gallery.add(model, [two, three])
    gallery.add(model, [one])
    assert sorted(gallery.paths) == ["image 0", "image 1", "image 2"]
    gallery.add(model, [two], paths=["image 0"])
    assert len(gallery) == 3, "names of the caller replace"


def test_a_number_of_5000_digits_is_said_in_a_sentence(gallery, tmp_path):
    folder = gallery.save(tmp_path / "g")
    text = (folder / "gallery.json").read_text()
    (folder / "gallery.json").write_text(text.replace('"dim": 16', f'"dim": {"1" * 5000}'))
    with pytest.raises(ProbMetricError, match=r"gallery\.json is damaged"):
        probmetric.Gallery.open(folder)


@pytest.mark.parametrize(
    ("name", "value"), [("mean", np.nan), ("mean", np.inf), ("mean", 5.0), ("uncertainty", np.nan)]
)
def test_rows_that_are_no_embeddings_are_refused_whatever_their_digest(gallery, tmp_path, name, value):
    """Somebody hostile writes the digest that the content asks for."""
    arrays = {key: array.copy() for key, array in gallery._content.tensors.items()}
    arrays[name][3] = value
    content = replace(gallery._content, **arrays)
    write(tmp_path, content, digest_of_content(content), None)
    with pytest.raises(ProbMetricError, match="row 3 is no embedding"):
        probmetric.Gallery.open(tmp_path)


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
    paths = [gallery.paths[0], *gallery.paths[:-1]]
    content = replace(gallery._content, paths=paths, class_names=paths)
    write(tmp_path, content, digest_of_content(content), None)
    with pytest.raises(ProbMetricError, match="names an image twice"):
        probmetric.Gallery.open(tmp_path)


@pytest.mark.parametrize("tensor", ["mean", "uncertainty", "looks"])
def test_damaged_vectors_are_noticed(gallery, tmp_path, tensor):
    folder = gallery.save(tmp_path / "g")
    file = next(folder.glob("vectors-*"))
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start + json.loads(data[8:start])[tensor]["data_offsets"][0] + 1] ^= 1
    file.unlink()  # the gallery that was saved has the file mapped
    file.write_bytes(data)
    with pytest.raises(ProbMetricError, match="damaged"):
        probmetric.Gallery.open(folder)


def test_a_gallery_does_not_grow_in_files_with_every_addition(model, photos, tmp_path):
    paths = list(photos[1])
    gallery = probmetric.Gallery.create(model, paths[:1])
    for path in paths[1:6]:
        gallery.save(tmp_path / "g")
        gallery = probmetric.Gallery.open(tmp_path / "g")
        gallery.add(model, path)
    gallery.save()
    assert len(list((tmp_path / "g").glob("[!.]*"))) == 4
    assert gallery.paths == paths[:6]


def test_what_a_killed_writer_left_goes_with_the_next_write(model, photos, tmp_path):
    paths = list(photos[1])
    gallery = probmetric.Gallery.create(model, paths[:1])
    gallery.save(tmp_path / "g")
    left, whole = tmp_path / "g/.images-7.parquet.x1y2.tmp", tmp_path / "g/.vectors-7.safetensors.x1y2.whole.tmp"
    left.mkdir()
    for path in (left / ".lock", left / "images-7.parquet", whole):
        path.touch()
    gallery.add(model, paths[1])
    gallery.save()
    assert not left.exists()
    assert not whole.exists()


def test_the_same_images_again_change_no_file(model, photos, tmp_path):
    """Hostile fault 6: what images look like was sampled anew with every addition."""

    def files():
        return {path.name: path.read_bytes() for path in (tmp_path / "g").iterdir()}

    gallery = probmetric.Gallery.create(model, photos[0])
    gallery.save(tmp_path / "g")
    before = files()
    again = probmetric.Gallery.open(tmp_path / "g")
    again.add(model, photos[0])
    again.save()
    assert files() == before


def test_the_same_images_from_another_folder_are_stored_with_their_new_places(tmp_path):
    rows, none = np.eye(3, dtype=np.float32), np.zeros(3, dtype=np.float32)
    content = Content("m", rows, none, np.empty((3, 0), np.float32), [*"123"], [*"aab"], ["old"] * 3, [""] * 3)
    folder = probmetric.Gallery(content).save(tmp_path / "g")
    probmetric.Gallery(replace(content, files=["new"] * 3)).save(folder)
    again = probmetric.Gallery.open(folder)
    assert again._content.files == ["new"] * 3
    assert [len(list(folder.glob(f"{kind}-*"))) for kind in ("vectors", "images")] == [1, 1]


def test_vectors_of_any_model_are_a_gallery(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 10)
    vectors = rng.normal(size=(30, 8))[labels] + 0.4 * rng.normal(size=(300, 8))
    gallery = probmetric.Gallery.from_vectors(5 * vectors, labels, [f"{row}.jpg" for row in range(300)])
    certificate = gallery.certify(risk=0.2)
    assert certificate.coverage > 0
    stored = probmetric.Gallery.open(gallery.save(tmp_path / "g"))
    assert (stored.digest, stored.certificates) == (gallery.digest, [certificate])
    for wrong in (vectors[0], np.zeros((2, 3)), vectors * np.nan):
        with pytest.raises(ProbMetricError, match=r"expected \(N, M\)|zero or not finite"):
            probmetric.Gallery.from_vectors(wrong)
    with pytest.raises(ProbMetricError, match="one of each"):
        probmetric.Gallery.from_vectors(vectors, labels[:3])


def test_vectors_need_no_torch():
    code = (
        "import sys, numpy as np; from probmetric import Gallery; g = Gallery.from_vectors(np.eye(60).repeat(3, 0)"
        " + .1 * np.random.default_rng(0).random((180, 60)), np.arange(60).repeat(3)); g.trust; "
        "print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


def test_two_writers_of_the_python_interface_do_not_ruin_a_gallery(model, photos, tmp_path):
    paths = list(photos[1])
    probmetric.Gallery.create(model, paths[:2]).save(tmp_path / "g")
    first, second = (probmetric.Gallery.open(tmp_path / "g") for _ in range(2))
    first.add(model, paths[2])
    second.add(model, paths[3])
    first.save()
    with pytest.raises(ProbMetricError, match="another process has changed the gallery"):
        second.save()
    with probmetric.Gallery.changing(tmp_path / "g") as gallery:
        gallery.add(model, paths[3])
    assert probmetric.Gallery.open(tmp_path / "g").paths == paths[:4]


def test_a_reader_beside_a_writer_sees_the_old_gallery_or_the_new_one(tmp_path):
    rows = np.eye(40, dtype=np.float32)
    probmetric.Gallery.from_vectors(rows).save(tmp_path / "g")
    ended = threading.Event()

    def writes():
        while not ended.is_set():
            with probmetric.Gallery.changing(tmp_path / "g") as gallery:
                if len(gallery) == 40:
                    gallery.remove("image 0")
                else:
                    gallery.take(rows[:1], ["image 0"], [""])

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(writes) for _ in range(2)]
        try:
            counts = {len(probmetric.Gallery.open(tmp_path / "g")) for _ in range(200)}
        finally:
            ended.set()
        for writer in writers:
            writer.result()
    assert counts <= {39, 40}


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


def test_two_that_change_a_gallery_at_once_wait_for_each_other(model, photos, tmp_path, caplog):
    place, (first, *others) = tmp_path / "g", sorted(photos[1])

    def change():
        with probmetric.Gallery.changing(place) as gallery:
            return gallery.add(model, others)

    with ThreadPoolExecutor(1) as pool:
        with probmetric.Gallery.changing(place) as gallery:
            second = pool.submit(change)
            while "another process changes" not in caplog.text:
                assert not second.done()
                time.sleep(0.01)
            gallery.add(model, [first])
        assert second.result() == len(others)
    assert probmetric.Gallery.open(place).paths == [first, *others]
    assert not list(tmp_path.glob(".g.lock"))


def test_a_first_save_that_failed_does_not_stand_in_the_way(gallery, tmp_path):
    saved = gallery.save(tmp_path / "g")
    (saved / "gallery.json").unlink()
    assert len(probmetric.Gallery.open(gallery.save(tmp_path / "g"))) == len(gallery)
    assert len(list(saved.glob("[!.]*"))) == 4


def test_a_folder_of_somebody_else_is_not_written_to(gallery, tmp_path):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "mine.txt").touch()
    with pytest.raises(ProbMetricError, match="did not write there as its gallery"):
        gallery.save(tmp_path / "g")


def test_the_commands(project, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(project)
    model, gallery = str(tmp_path / "m"), str(tmp_path / "g")
    image = next(iter(photos[1]))
    assert cli.main(["export", PLAIN, model]) == 0
    assert cli.main(["index", model, gallery, str(photos[0])]) == 0
    assert cli.main(["index", model, gallery, "digits", "--splits", "train,val"]) == 0
    assert cli.main(["index", model, gallery, "--remove", image]) == 0
    capsys.readouterr()
    assert cli.main(["search", model, gallery, image, "-k", "1", "--csv"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split(",")
    assert row[8] == "digits/0000"
    assert cli.main(["search", model, image]) == 2
    assert "has no images of its own" in capsys.readouterr().err


def test_prepared_datasets_are_looked_for_where_the_project_has_them(exported, project, elsewhere, capsys):
    (elsewhere / "params.yaml").write_text("data: {prepared: made}\ndatasets: [digits]\n")
    assert cli.main(["doctor"]) == 2
    assert "made holds no prepared dataset" in capsys.readouterr().err
    shutil.copytree(project / "data/prepared/digits", elsewhere / "made/digits")
    assert cli.main(["doctor"]) == 0
    assert "made/digits: healthy" in capsys.readouterr().out
    assert cli.main(["vectors", str(exported[PLAIN]), "digits", "out.parquet", "--splits", "val"]) == 0


def test_a_table_holds_no_formula(exported, model, tmp_path, capsys):
    """Hostile fault 19: a spreadsheet ran what a file or class was called."""
    from PIL import Image

    image = np.random.default_rng(0).integers(0, 255, (32, 32), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "query.png")
    name = "=cmd|' /C calc'!A0"
    probmetric.Gallery.create(model, [image], paths=[name], class_names=["@SUM(1)"]).save(tmp_path / "g")
    asked = ["search", str(exported[PLAIN]), str(tmp_path / "g"), str(tmp_path / "query.png"), "--csv"]
    assert cli.main(asked) == 0
    row = next(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert (row["path"], row["class_name"]) == (f"'{name}", "'@SUM(1)")


def test_a_search_imports_no_training_loop_evaluation_or_planning(exported, gallery, photos, tmp_path):
    asked = ["search", str(exported[PLAIN]), str(gallery.save(tmp_path / "g")), next(iter(photos[1]))]
    code = f"import sys; from probmetric import cli; assert cli.main({asked}) == 0; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    heavy = {"probmetric.training.run", "probmetric.runs.evaluate", "probmetric.planning.expansion", "pandas", "timm"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("splits", ["train", "test", "train,val,test"])
def test_a_run_finds_its_own_images_where_they_are_asked_for(project, photos, monkeypatch, capsys, splits):
    """Issue 19: of one's own training and validation photos 0 % were found."""
    from probmetric.data import load_columns

    columns = load_columns(project / "data/prepared/digits", ["split", "path"])
    wanted = {path: row for path, row in photos[1].items() if columns["split"][row] in splits.split(",")}
    monkeypatch.chdir(project)
    assert cli.main(["search", PLAIN, *wanted, "--splits", splits, "-k", "1", "--csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[8] for row in rows] == [columns["path"][row] for row in wanted.values()]
