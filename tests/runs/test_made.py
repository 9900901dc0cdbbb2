"""Identity of a step's results, their record, and the files kept beside them."""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probmetric.io import FileError, write_json, write_tensors, write_text
from probmetric.io.folders import mark_folder
from probmetric.runs import made as made_module
from probmetric.runs.folder import RunFolder
from probmetric.runs.made import Ingredients, Made, files_there, forget, read_made, record, restore, superseded

RUN = "digits/mine/seed0"
PLAIN = Ingredients(
    "evaluate",
    1,
    settings={"seed": 0, "loss.margin": 0.3},
    data={"digits": "aa"},
    code={"probmetric.losses.arcface": "bb", "probmetric.directional": "cc"},
    upstream={"embeddings": "dd"},
    cohorts=("ee",),
)
OTHER = {
    "step": {"step": "embed"},
    "version": {"version": 2},
    "setting": {"settings": {"seed": 0, "loss.margin": 0.4}},
    "data": {"data": {"digits": "ab"}},
    "dataset": {"data": {"glyphs": "aa"}},
    "code": {"code": {"probmetric.losses.arcface": "bc", "probmetric.directional": "cc"}},
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def finish(ingredients: Ingredients, value: float) -> Made:
    for file in RunFolder.named(RUN).step_files(ingredients.step):
        write_json(file, {"value": value})
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
    with pytest.raises(FileError, match=name):
        read(RunFolder.named(RUN))


TENSORS = {"mean": np.eye(2, dtype=np.float32), "uncertainty": np.ones(2), "label": np.arange(2), "index": np.arange(2)}


@pytest.mark.parametrize(
    ("step", "name", "read"),
    [
        ("train", "model.safetensors", lambda run: run.weights()),
        ("fit_posterior", "posterior.safetensors", lambda run: run.posterior()),
        ("embed", "embeddings/test.safetensors", lambda run: run.embeddings("test")),
        ("embed", "embeddings/test.safetensors", lambda run: run.tensors("test", "mean")),
        ("evaluate", "matches.safetensors", lambda run: run.matches()),
    ],
)
def test_tensors_of_another_run_are_refused(step, name, read):
    run = RunFolder.named(RUN)
    for file in run.step_files(step):
        write_tensors(file, TENSORS) if file.suffix == ".safetensors" else write_text(file, "")
    record(RUN, replace(PLAIN, step=step), release="1.0")
    read(run)
    write_tensors(run.path / name, TENSORS | {"uncertainty": np.zeros(2)})
    with pytest.raises(FileError, match=rf"{name} is not as {step} wrote it"):
        read(run)


def value() -> float:
    return json.loads(RunFolder.named(RUN).metrics_file.read_text())["value"]


@pytest.mark.parametrize("change", OTHER)
def test_whatever_decides_a_result_decides_its_identity_and_cohort(change):
    other = replace(PLAIN, **OTHER[change])
    assert other.identity != PLAIN.identity
    assert other.cohort != PLAIN.cohort


def test_identity_and_cohort_are_those_of_every_release():
    """Other digests of the same ingredients would make every finished run stale."""
    assert (PLAIN.identity[:16], PLAIN.cohort[:16]) == ("32be8f8ae541e6cb", "0739fa1229e9d770")


def test_seeds_share_a_cohort_not_an_identity():
    other = replace(PLAIN, settings={"seed": 1, "loss.margin": 0.3}, upstream={"embeddings": "xx"})
    assert other.identity != PLAIN.identity
    assert other.cohort == PLAIN.cohort
    assert replace(PLAIN, upstream={"embeddings": "xx"}).identity != PLAIN.identity
    assert replace(PLAIN, cohorts=("xx",)).cohort != PLAIN.cohort


def test_a_module_that_only_moved_changes_nothing():
    moved = replace(PLAIN, code={"probmetric.elsewhere": "bb", "probmetric.directional": "cc"})
    assert moved.identity == PLAIN.identity
    assert moved.cohort == PLAIN.cohort


def test_a_record_is_read_as_it_was_written_and_forgotten():
    made = finish(PLAIN, 0.5)
    assert (made.ingredients, made.release) == (PLAIN, "1.0")
    assert read_made(RUN, "evaluate") == made
    file = RunFolder.named(RUN).made_file("evaluate")
    said = json.loads(file.read_text())
    assert (said["identity"], said["cohort"]) == (PLAIN.identity, PLAIN.cohort)
    del said["files"]
    write_json(file, said)
    assert read_made(RUN, "evaluate") == replace(made, files={}), "records of the first release name no files"
    forget(RUN, "evaluate")
    assert read_made(RUN, "evaluate") is None
    forget(RUN, "evaluate")


def test_what_later_steps_compute_with_decides_the_output_and_every_file_is_noted():
    made, run = finish(PLAIN, 0.5), RunFolder.named(RUN)
    files = run.step_files("evaluate")
    assert made.files == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    write_json(run.record_file, {"value": 0.6})
    assert record(RUN, PLAIN, release="1.0").output == made.output, "the record of a run holds times"
    assert finish(PLAIN, 0.6).output != made.output
    assert files_there(RUN, "evaluate")
    run.curves_file.unlink()
    assert not files_there(RUN, "evaluate")


@pytest.mark.parametrize("links", [True, False])
def test_going_back_brings_the_kept_files(links, monkeypatch):
    def refused(*_arguments):
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    other = replace(PLAIN, version=2)
    finish(PLAIN, 0.5)
    assert not restore(RUN, PLAIN), "the latest: who deletes it wants it computed"
    finish(other, 0.6)
    assert [path.name for path in superseded()] == [PLAIN.identity[:16]]
    assert restore(RUN, PLAIN)
    assert value() == 0.5
    found = read_made(RUN, "evaluate")
    assert found
    assert found.identity == PLAIN.identity
    assert [path.name for path in superseded()] == [other.identity[:16]]
    assert restore(RUN, other)
    assert value() == 0.6


def test_going_back_that_is_interrupted_leaves_no_record_beside_files_of_another(monkeypatch):
    finish(PLAIN, 0.5)
    finish(replace(PLAIN, version=2), 0.6)

    def killed(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(RUN, PLAIN)
    assert read_made(RUN, "evaluate") is None
    assert restore(RUN, PLAIN)
    assert value() == 0.5


def test_a_half_kept_copy_is_none():
    finish(PLAIN, 0.5)
    finish(replace(PLAIN, version=2), 0.6)
    kept = made_module.KEPT / RUN / "evaluate" / PLAIN.identity[:16]
    (kept / "complete").unlink()
    assert not restore(RUN, PLAIN)
    assert value() == 0.6


def test_keeping_again_replaces_what_a_broken_copy_left():
    kept = made_module.KEPT / RUN / "evaluate" / PLAIN.identity[:16]
    mark_folder(kept, made_module.KEPT_RESULTS, ["stray"])
    (kept / "stray").touch()
    finish(PLAIN, 0.5)
    assert not (kept / "stray").exists()


def test_kept_files_of_what_is_no_step_are_superseded():
    finish(PLAIN, 0.5)
    shutil.copytree(made_module.KEPT / RUN / "evaluate", made_module.KEPT / RUN / "judge")
    run = RunFolder.named(RUN)
    shutil.copyfile(run.made_file("evaluate"), run.path / "made/judge.json")
    assert [path.parent.name for path in superseded()] == ["judge"]
