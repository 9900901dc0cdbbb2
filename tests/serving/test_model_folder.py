"""A run becomes a folder that loads anywhere and answers as the run does."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from serving_helpers import ENSEMBLE, LAPLACE, PLAIN, resigned, undigested

import probmetric
from probmetric.data import open_images
from probmetric.data.loose import LooseImages
from probmetric.data.manifest import DataError
from probmetric.errors import ProbMetricError
from probmetric.io import FileError, write_tensors
from probmetric.runs.folder import RunFolder
from probmetric.serving import write_vectors
from probmetric.serving.card import card
from probmetric.serving.record import ModelRecord
from probmetric.uncertainty import Predictor


@pytest.mark.parametrize("run", [PLAIN, LAPLACE, ENSEMBLE])
def test_a_loaded_model_gives_the_embeddings_of_its_run(run, project, exported, elsewhere):
    stored = RunFolder(project / "results" / run).embeddings("test")
    store = open_images(project / "data/prepared/digits")
    model = probmetric.load(exported[run], device="cpu")
    found = model.embed([store[int(row)] for row in stored["index"]])
    np.testing.assert_allclose(found.mean.numpy(), stored["mean"], atol=1e-6)
    np.testing.assert_allclose(found.uncertainty.numpy(), stored["uncertainty"], rtol=1e-4)


def test_a_run_is_loaded_from_anywhere_as_its_folder_is(project, exported, elsewhere):
    by_path, by_folder = probmetric.load(project / "results" / PLAIN), probmetric.load(exported[PLAIN])
    assert by_path.digest == by_folder.digest
    assert by_path.classes == by_folder.classes == tuple(f"digit {number}" for number in range(10))


def test_the_folder_needs_neither_params_nor_data(project, exported, tmp_path, monkeypatch):
    shutil.copytree(exported[LAPLACE], tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert len(probmetric.load("moved").embed(np.zeros((32, 32), np.uint8))) == 1


def test_the_record_of_the_run_counts_and_not_what_params_say_now(project, tmp_path, monkeypatch):
    """Issue 19: `uncertainty: softmax`, added to a method later, turned a stored "less sure than 48 %" into 100 %."""
    for part in ("results", "data", "params.yaml"):
        source = project / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / part)
    params = (tmp_path / "params.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    before = probmetric.load(PLAIN).embed(np.full((32, 32), 90, np.uint8))
    (tmp_path / "params.yaml").write_text(params.replace("loss: arcface", "loss: cosine, uncertainty: softmax"))
    after = probmetric.load(PLAIN).embed(np.full((32, 32), 90, np.uint8))
    assert torch.equal(before.uncertainty, after.uncertainty)
    (tmp_path / "params.yaml").write_text(
        params.replace("arcface: {", "other: {").replace("base: arcface", "base: other")
    )
    assert torch.equal(probmetric.load(PLAIN).embed(np.full((32, 32), 90, np.uint8)).mean, before.mean)


def test_an_image_has_one_embedding_in_every_form(model, photos):
    from PIL import Image

    path = next(iter(photos[1]))
    with Image.open(path) as image:
        array = np.array(image)
    forms = [
        path,
        Path(path).read_bytes(),
        Image.fromarray(array),
        array,
        array[..., None],
        array / 255.0,
        torch.from_numpy(array)[None],
        np.stack([array] * 3, axis=-1),
    ]
    found = model.embed(forms)
    assert (found.mean - found.mean[0]).abs().max() < 1e-6


def test_samples_are_drawn_where_the_uncertainty_has_any(exported, model):
    image = np.full((32, 32), 90, np.uint8)
    found = probmetric.load(exported[LAPLACE]).embed(image, samples=True)
    assert found.samples.shape == (1, 8, 16)
    with pytest.raises(ProbMetricError, match="draws no samples"):
        model.embed(image, samples=True)


def test_no_image_is_refused_in_a_sentence(model, tmp_path):
    for use in (model.embed, model.preprocess, lambda _: write_vectors(model, LooseImages([]), tmp_path / "v.parquet")):
        with pytest.raises(DataError, match="there is no image to"):
            use([])


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (np.full((4, 4), 300), "expected uint8"),
        (np.full((4, 4), np.nan), "expected uint8"),
        (np.zeros((4, 4, 7), np.uint8), "expected an array"),
        (np.zeros((0, 4), np.uint8), "expected an array"),
        (b"no image", "is no image"),
        ("gone.png", "cannot be read"),
        ("a\0b.png", "cannot be read"),
        pytest.param(5000 * "x", "cannot be read", id="long name"),
        (os.curdir, "cannot be read"),
    ],
)
def test_what_is_no_image_is_refused_by_name(model, image, says):
    sound = np.zeros((32, 32), np.uint8)
    with pytest.raises(ProbMetricError, match=says):
        model.embed([sound, image])
    gallery = probmetric.Gallery.create(model, [sound, image], paths=["good", "bad"], on_error="skip")
    assert (gallery.paths, len(gallery.problems)) == (["good"], 1)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_any_precision_are_images(model, kind):
    found = model.embed([torch.full((1, 32, 32), 0.5, dtype=kind), np.full((32, 32), 0.5)]).mean
    torch.testing.assert_close(found[0], found[1])


def test_all_bad_images_are_named_at_once_with_what_to_do(model, tmp_path):
    (tmp_path / "b.psd").write_bytes(b"8BPS")
    with pytest.raises(ProbMetricError, match=r"2 of 3 images(.|\n)*a\.png(.|\n)*b\.psd.*convert it to JPEG or PNG"):
        model.embed(["a.png", np.zeros((32, 32), np.uint8), tmp_path / "b.psd"])


def test_the_card_says_data_protocol_metrics_and_licence(project, tmp_path):
    model = probmetric.load(project / "results" / PLAIN)
    text = (model.save(tmp_path / "m", license="CC0-1.0") / "README.md").read_text()
    metrics = RunFolder(project / "results" / PLAIN).metrics
    assert f"| Recall@1 | {metrics['retrieval/recall_at_1']:.4f} |" in text
    for part in ("license: CC0-1.0", "| test | 539 | 10 |", "closed set", "scanned digits"):
        assert part in text


def test_the_card_names_network_and_weights_so_that_others_can_take_the_same(model):
    fields = model.record.model_dump(mode="json")
    (member,) = fields["members"]
    member["settings"]["backbone"] = {"name": "timm", "tag": "tf_efficientnet_lite0.in1k", "head": "none"}
    member["facts"]["pretrained_sha256"] = "5793"
    text = card(ModelRecord.model_validate(fields))
    assert "\nbackbone timm (tag tf_efficientnet_lite0.in1k, head none), loss " in text
    assert "\nIt started from pretrained weights, SHA-256 `5793`.\n" in text


@pytest.mark.parametrize(
    ("auroc", "said"),
    [(0.009, "Do not use it"), (0.55, "Do not use it"), (0.6, "Good")],
)
def test_the_card_says_what_the_uncertainty_is_worth(model, auroc, said):
    fields = model.record.model_dump(mode="json")
    text = card(ModelRecord.model_validate(fields | {"metrics": {"sparsification/error_auroc": auroc}}))
    (line,) = [line for line in text.splitlines() if "wrong answers from right ones" in line]
    assert line.startswith(f"- {said} for")
    assert ("below chance" in line, "hardly above chance" in line) == (auroc < 0.5, auroc == 0.55)


def test_the_interval_of_a_share_is_wilsons():
    from probmetric.serving.card import _interval

    n, z = 100, 1.959964
    middle, half = (0.8 + z * z / 200) / (1 + z * z / n), z * (0.16 / n + (z / 200) ** 2) ** 0.5 / (1 + z * z / n)
    assert _interval("retrieval/recall_at_1", 0.8, n) == f"{middle - half:.4f} to {middle + half:.4f}"


def test_another_folder_is_not_overwritten(model, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ProbMetricError, match="did not write there as its model folder"):
        model.save(tmp_path / "mine")


def test_what_is_no_model_is_said(elsewhere):
    with pytest.raises(ProbMetricError, match=r"is no model: expected a folder with model\.json"):
        probmetric.load("empty")


def changed(record, path, value):
    *places, last = path
    for place in places:
        record = record[place]
    record[last] = value


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("format",), 2, "format"),
        (("members",), [], "members"),
        (("members", 0, "facts", "dim"), 10**9, "dim"),
        (("members", 0, "facts", "num_classes"), 10**7, "10000000 classes"),
        (("members", 0, "facts", "image_size"), 4000, "does not fit its record"),
        (("members", 0, "settings", "dim"), 17, "does not fit its record"),
        (("members", 0, "settings", "backbone"), {"name": "os.system", "options": {}}, "backbone.tag: unknown key"),
        (("uncertainty",), {"name": "laplace", "options": {}}, "needs a posterior"),
        (("transform", "view", "options"), {"erase": "rm"}, "erase"),
        (("files",), {"../../secret": "0"}, "lists the files"),
        (("files", "weights-0.safetensors"), "0" * 64, "not the file its record"),
        (("surprise",), 1, "surprise"),
    ],
)
def test_a_hostile_record_is_refused(exported, tmp_path, path, value, says):
    folder = shutil.copytree(exported[PLAIN], tmp_path / "m")
    record = undigested(folder / "model.json")
    changed(record, path, value)
    (folder / "model.json").write_text(resigned(record))
    with pytest.raises((ProbMetricError, ValueError), match=says):
        probmetric.load(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"format": 1}', "[" * 10**5, '{"members": {"a": 1}, "plugins": [1]}']
)
def test_a_record_that_is_none_is_refused(exported, tmp_path, text):
    folder = shutil.copytree(exported[PLAIN], tmp_path / "m")
    (folder / "model.json").write_text(text)
    with pytest.raises(ProbMetricError):
        probmetric.load(folder)


def test_a_model_cannot_make_python_import_a_module(exported, tmp_path, monkeypatch):
    folder = shutil.copytree(exported[PLAIN], tmp_path / "m")
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    record = undigested(folder / "model.json")
    record["plugins"] = ["evil"]
    record["members"][0]["settings"]["loss"] = {"name": "evil", "options": {}}
    (folder / "model.json").write_text(resigned(record))
    with pytest.raises(ProbMetricError, match=r"load_plugins\(\['evil'\]\)"):
        probmetric.load(folder)


def test_damaged_weights_are_noticed(exported, tmp_path):
    folder = shutil.copytree(exported[PLAIN], tmp_path / "m")
    file = folder / "weights-0.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(ProbMetricError, match="damaged"):
        probmetric.load(folder)


def test_embeddings_that_move_are_noticed_when_model_and_gallery_are_loaded(
    exported, photos, tmp_path, caplog, monkeypatch
):
    model = probmetric.load(exported[LAPLACE], device="cpu")
    gallery = probmetric.Gallery.create(model, photos[0])
    gallery = probmetric.Gallery.open(gallery.save(tmp_path / "gallery"))
    model.search(gallery, [next(iter(photos[1]))])
    assert "moved" not in caplog.text
    np.testing.assert_allclose(gallery.canary, model.canary, atol=1e-6)
    assert (gallery.canary @ gallery.canary.T)[0, 1:].max() < 0.999  # the images are told apart
    described = Predictor.describe

    def moved(self, parts):
        batch = described(self, parts)
        turned = batch.mean + 0.01 * batch.mean.roll(1, dims=1)
        return replace(batch, mean=turned / turned.norm(dim=1, keepdim=True))

    monkeypatch.setattr(Predictor, "describe", moved)
    again = probmetric.load(exported[LAPLACE], device="cpu")
    said = f"3 of 3 test images have moved since the model folder {exported[LAPLACE]} was made, by "
    assert said in caplog.text
    assert 1e-6 < float(caplog.text.split(said)[1].split()[0]) < 1e-4
    gallery = probmetric.Gallery.open(tmp_path / "gallery")
    for _ in range(2):
        again.search(gallery, [next(iter(photos[1]))])
    assert caplog.text.count("since this gallery was made") == 1
    certificate = gallery.certify(again, risk=0.9, confidence=0.5, score="cosine")
    assert "embeddings had moved from the gallery's by" in certificate.valid_for


def test_a_canary_takes_no_time_and_damaged_ones_are_refused(exported, photos, tmp_path):
    model = probmetric.load(exported[PLAIN], device="cpu")
    del model.checked_canary
    start = time.perf_counter()
    assert model.checked_canary.shape == (3, 16)
    assert time.perf_counter() - start < 0.5
    np.testing.assert_allclose(model.checked_canary, model.canary[:3], atol=1e-6)
    folder = probmetric.Gallery.create(model, photos[0]).save(tmp_path / "gallery")
    write_tensors(folder / "canary.safetensors", {"canary": np.full((8, 16), np.nan, np.float32)})
    with pytest.raises(FileError, match="canary"):
        probmetric.Gallery.open(folder)
