"""Identity of a step's results, and their record."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probmetric.io import FileError, write_json, write_tensors, write_text
from probmetric.runs.folder import RunFolder
from probmetric.runs.identity import Ingredients
from probmetric.runs.made import Made, forget, read_made, record, restore_metrics
from probmetric.runs.plan import write_if_changed

RUN = "digits/mine/seed0"
PLAIN = Ingredients(
    "evaluate",
    1,
    settings={"seed": 0, "loss.margin": 0.3},
    data={"digits": "aa"},
    code={"probmetric.losses.arcface": "bb", "probmetric.directional": "cc"},
    upstream={"embeddings": "dd"},
)
OTHER = {
    "step": {"step": "embed"},
    "version": {"version": 2},
    "setting": {"settings": {"seed": 0, "loss.margin": 0.4}},
    "data": {"data": {"digits": "ab"}},
    "dataset": {"data": {"glyphs": "aa"}},
    "code": {"code": {"probmetric.losses.arcface": "bc", "probmetric.directional": "cc"}},
    "upstream": {"upstream": {"embeddings": "xx"}},
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def finish(ingredients: Ingredients, value: float) -> Made:
    for file in RunFolder.named(RUN).step_files(ingredients.step):
        write_json(file, {"retrieval/recall_at_1": value})
    return record(RUN, ingredients, release="1.0")


@pytest.mark.parametrize(
    ("step", "name", "read"),
    [
        ("train", "history.csv", lambda run: run.history),
        ("train", "history.csv", lambda run: run.times),
        ("train", "encoder.yaml", lambda run: run.encoder),
        ("embed", "embeddings/timing.json", lambda run: run.times),
        ("evaluate", "metrics.json", lambda run: run.metrics),
        ("evaluate", "curves.json", lambda run: run.curves),
        ("evaluate", "run.yaml", lambda run: run.record),
    ],
)
@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text(path.read_text().replace("1", "2"))])
def test_a_text_file_that_is_not_as_its_step_wrote_it_is_refused(step, name, read, change):
    texts = {"history.csv": "epoch,seconds\n1,1\n", "timing.json": '{"embedding/test_seconds": 1}'}
    texts |= {"encoder.yaml": "{settings: {a: 1}, encoder: a, training: {}}", "run.yaml": "{run: a, settings: {a: 1}}"}
    texts |= {"metrics.json": '{"retrieval/recall_at_1": 1}', "curves.json": '{"sparsification": {"accuracy": [1]}}'}
    run = RunFolder.named(RUN)
    for file in run.step_files(step):
        write_text(file, texts.get(file.name, ""))
    record(RUN, replace(PLAIN, step=step), release="1.0")
    read(run)
    change(run.path / name)
    if step == "embed" and change is Path.unlink:  # embeddings need not be kept
        assert read(RunFolder.named(RUN)) == {}
        return
    with pytest.raises(FileError, match=name):
        read(RunFolder.named(RUN))


TENSORS = {"mean": np.eye(2, dtype=np.float32), "uncertainty": np.ones(2), "label": np.arange(2), "index": np.arange(2)}


@pytest.mark.parametrize(
    ("step", "name", "read"),
    [
        ("train", "model.safetensors", lambda run: run.weights()),
        ("fit", "posterior.safetensors", lambda run: run.posterior()),
        ("embed", "embeddings/test.safetensors", lambda run: run.embeddings("test")),
        ("embed", "embeddings/test.safetensors", lambda run: run.tensors("test", "mean")),
        ("evaluate", "matches.safetensors", lambda run: run.matches()),
    ],
)
def test_tensors_of_another_run_are_refused(step, name, read):
    run = RunFolder.named(RUN)
    for file in run.step_files(step):
        write_tensors(file, TENSORS) if file.suffix == ".safetensors" else write_text(file, "{}")
    record(RUN, replace(PLAIN, step=step), release="1.0")
    read(run)
    write_tensors(run.path / name, TENSORS | {"uncertainty": np.zeros(2)})
    with pytest.raises(FileError, match=rf"{name} is not as {step} wrote it"):
        read(run)


@pytest.mark.parametrize("change", OTHER)
def test_whatever_decides_a_result_decides_its_identity(change):
    other = replace(PLAIN, **OTHER[change])
    assert other.identity != PLAIN.identity


def test_a_module_that_only_moved_changes_nothing():
    moved = replace(PLAIN, code={"probmetric.elsewhere": "bb", "probmetric.directional": "cc"})
    assert moved.identity == PLAIN.identity


def test_a_record_is_read_as_it_was_written_and_forgotten():
    made = finish(PLAIN, 0.5)
    assert (made.ingredients, made.release) == (PLAIN, "1.0")
    assert read_made(RUN, "evaluate") == made
    file = RunFolder.named(RUN).made_file("evaluate")
    said = json.loads(file.read_text())
    assert said["identity"] == PLAIN.identity
    del said["files"]
    write_json(file, said)
    assert read_made(RUN, "evaluate") is None
    forget(RUN, "evaluate")
    assert read_made(RUN, "evaluate") is None
    forget(RUN, "evaluate")


def test_what_later_steps_compute_with_decides_the_output_and_every_file_is_noted():
    made, run = finish(PLAIN, 0.5), RunFolder.named(RUN)
    files = run.step_files("evaluate")
    assert made.files == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    write_json(run.record_file, {"retrieval/recall_at_1": 0.6})
    assert record(RUN, PLAIN, release="1.0").output == made.output, "the record of a run holds times"
    assert finish(PLAIN, 0.6).output != made.output


def test_lost_metrics_are_written_again_from_the_record():
    assert not restore_metrics(RUN)
    finish(PLAIN, 0.1)
    run = RunFolder.named(RUN)
    before = run.metrics_file.read_bytes()
    run.metrics_file.unlink()
    assert restore_metrics(RUN)
    assert run.metrics_file.read_bytes() == before
    assert RunFolder.named(RUN).metrics == {"retrieval/recall_at_1": 0.1}


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff", b"[" * 100_000], ids=range(5))
def test_a_plan_is_written_over_whatever_else_the_file_holds(content):
    path = Path("plan.json")
    path.write_bytes(content)
    write_if_changed(path, {"run": RUN}, again=True)
    assert json.loads(path.read_bytes()) == {"run": RUN}
    write_if_changed(path, {"run": RUN}, again=True)
    assert json.loads(path.read_bytes()) == {"run": RUN, "again": 1}
    write_if_changed(path, {"run": "another"})
    assert json.loads(path.read_bytes()) == {"run": "another", "again": 1}
