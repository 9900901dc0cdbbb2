"""A run on disk: names of its files, what they hold when they are read back, and what is said of damaged ones."""

import math

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from probmetric.io import FileError, read_tensors, write_json, write_tensors, write_text, write_yaml
from probmetric.runs.folder import STEPS, RunFolder, finished_runs, flatten

RERUN = r"; delete the run folder and run the workflow again\.$"
ROWS = {"mean": np.eye(3), "uncertainty": np.arange(3.0), "label": np.arange(3), "index": np.arange(3)}


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def metadata(file):
    return read_tensors(file)[1]


def test_the_names_of_a_runs_files_are_those_of_the_guide(run):
    """Scripts of users, results of earlier releases and the guide name them."""
    written = {step: [str(file.relative_to(run.path)) for file in run.step_files(step)] for step in STEPS}
    assert written == {
        "train": ["model.safetensors", "model_last.safetensors", "history.csv", "encoder.yaml"],
        "fit": ["posterior.safetensors"],
        "embed": [
            *(f"embeddings/{part}.safetensors" for part in ("val", "test", "ood", "last")),
            "embeddings/timing.json",
        ],
        "evaluate": ["metrics.json", "curves.json", "matches.safetensors", "run.yaml"],
    }
    aside = {"history.csv", "encoder.yaml", "timing.json", "run.yaml"}
    for step in STEPS:
        assert run.step_results(step) == tuple(file for file in run.step_files(step) if file.name not in aside)
        assert run.made_file(step) == run.path / "made" / f"{step}.json"
    assert run.weights_file() == run.weights_file("selected")
    assert RunFolder.named("digits/mine/seed0").path.as_posix() == "results/digits/mine/seed0"
    assert RunFolder.named("digits/mine/seed0", run.path).path == run.path / "digits/mine/seed0"


def test_training_is_read_back(run):
    selected, last = {"encoder.x": np.ones(2)}, {"encoder.x": np.zeros(2)}
    history = [{"epoch": 0, "seconds": 9.0}, {"epoch": 1, "seconds": 1.0, "val": 0.5}, {"epoch": 2, "seconds": 2.0}]
    record = {"settings": {"seed": 1}, "encoder": {}, "training": {"epochs": 3, "selected_epoch": 1}}
    run.write_training(selected, last, history, record, ["epoch", "lr"])
    assert run.trained
    assert not run.finished
    assert torch.equal(run.weights()["encoder.x"], torch.ones(2, dtype=torch.float64))
    assert torch.equal(run.weights("last")["encoder.x"], torch.zeros(2, dtype=torch.float64))
    assert [metadata(run.weights_file(which)) for which in ("selected", "last")] == [{"epoch": "1"}, {"epoch": "2"}]
    assert run.history_file.read_bytes() == b"epoch,seconds,val\n0,9.0,\n1,1.0,0.5\n2,2.0,\n"
    assert run.history[:2] == [{"epoch": 0, "seconds": 9, "val": None}, {"epoch": 1, "seconds": 1, "val": 0.5}]
    assert run.encoder == record
    run.write_timing({"embedding/test_seconds": 0.25})
    training = {"training/epoch_seconds": 1.5, "training/seconds": 12.0, "training/epochs": 3.0}
    assert run.times == training | {"embedding/test_seconds": 0.25}


def test_a_run_that_trained_nothing_has_a_history_without_rows(run):
    assert (run.history, run.times, run.curves) == ([], {}, {})
    record = {"training": {"epochs": 0, "selected_epoch": -1}}
    run.write_training({"a": np.ones(1)}, {"a": np.ones(1)}, [], record, ["epoch", "lr"])
    assert run.history_file.read_text() == "epoch,lr\n"
    assert (run.history, run.times) == ([], {})


def test_times_of_one_epoch_are_its_own(run):
    write_text(run.history_file, "epoch,seconds\n0,\n1,4\n")
    assert run.times == {"training/epoch_seconds": 4.0, "training/seconds": 4.0, "training/epochs": 1.0}


def test_posterior_and_embeddings_are_read_back(run):
    run.write_posterior({"precision": np.full(1, 2.0)}, "laplace")
    assert torch.equal(run.posterior()["precision"], torch.tensor([2.0], dtype=torch.float64))
    assert metadata(run.posterior_file) == {"uncertainty": "laplace"}
    run.write_embeddings("test", ROWS, {"sources": "a"})
    found = run.embeddings("test")
    assert found.metadata == {"sources": "a"}
    assert run.metadata("test")["sources"] == "a"
    assert found.tensors.keys() == ROWS.keys()
    assert found["mean"].tolist() == ROWS["mean"].tolist()
    part = run.tensors("test", "label", "samples", "mean")
    assert {name: values.tolist() for name, values in part.items()} == {
        name: ROWS[name].tolist() for name in ("label", "mean")
    }
    assert run.holds("test", *ROWS)
    assert not run.holds("test", "mean", "samples")


def test_a_split_that_was_not_embedded_holds_nothing(run):
    assert (run.tensors("ood", "mean"), run.holds("ood"), run.metadata("ood")) == ({}, False, {})
    run.embeddings_file("ood").parent.mkdir()
    save_file(ROWS, run.embeddings_file("ood"))
    assert (run.holds("ood"), run.metadata("ood")) == (True, {})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"mean": np.eye(3), "label": np.arange(3)},
            " lacks uncertainty, index; delete it and run the embed step again",
        ),
        (ROWS | {"label": np.arange(4)}, ": label has 4 rows, mean has 3; run the embed step again"),
        (ROWS | {"uncertainty": np.array([0, 1, math.nan])}, ": uncertainty of row 2 is not finite; mend the run"),
        (ROWS | {"mean": np.array([[1.0, 0], [math.inf, -math.inf], [math.nan, 0]])}, ": mean of row 1 is not finite"),
    ],
)
def test_embeddings_that_cannot_be_right_are_refused(run, tensors, message):
    write_tensors(run.embeddings_file("val"), tensors)
    with pytest.raises((FileError, ValueError), match=f"^{run.embeddings_file('val')}{message}"):
        run.embeddings("val")


def test_large_numbers_and_no_rows_are_embeddings(run):
    for rows in (ROWS | {"mean": np.full((3, 2), 1e308)}, {name: values[:0] for name, values in ROWS.items()}):
        write_tensors(run.embeddings_file("val"), rows)
        assert run.embeddings("val")["mean"].tolist() == rows["mean"].tolist()


def test_embeddings_cut_short_are_named_by_every_reader(run):
    file = run.embeddings_file("test")
    write_tensors(file, ROWS)
    file.write_bytes(file.read_bytes()[:-1])
    for read in (run.tensors, run.holds, run.metadata):
        with pytest.raises(FileError, match=rf"^{file} is damaged or truncated \(.*\){RERUN}"):
            read("test")


def test_an_evaluation_is_read_back(run):
    record = {"run": "a", "settings": {"fidelity": "as_published", "loss": {"scale": 8}, "dim": None}}
    metrics, curves = {"ood/auroc": None, "retrieval/recall_at_1": 0.5}, {"roc": {"fpr": [0.0, 1.0]}}
    run.write_evaluation(metrics, curves, record)
    assert run.finished
    assert (run.metrics, run.curves, run.record) == (metrics, curves, record)
    assert list(run.text_files) == ["run.yaml", "metrics.json", "curves.json"]
    assert run.fidelity == "as_published"
    assert run.find("loss.scale", "settings.loss.scale", "run") == 8
    assert run.find("settings.dim", "run.name") is None
    assert run.find("settings.dim", default=3) == 3
    with pytest.raises(FileError, match=rf"^{run.matches_file} is missing; run the evaluate step\."):
        run.matches()
    found = {"test": {"right": np.array([True, False])}, "ood/a": {"doubt.own:gap": np.arange(2.0)}}
    run.write_matches(found, {"p_right": "{}"})
    read, metadata = run.matches()
    assert metadata == {"p_right": "{}"}
    assert {where: {name: held.tolist() for name, held in parts.items()} for where, parts in read.items()} == {
        "test": {"right": [True, False]},
        "ood/a": {"doubt.own:gap": [0.0, 1.0]},
    }


@pytest.mark.parametrize("record", [{"fidelity": "as_published", "settings": {"fidelity": "x"}}, {"settings": {}}])
def test_a_record_that_says_no_fidelity_is_corrected(run, record):
    write_yaml(run.record_file, {"run": "a"} | record)
    assert run.fidelity == record.get("fidelity", "corrected")


@pytest.mark.parametrize(
    ("name", "text", "read", "message"),
    [
        ("encoder.yaml", "[1]", "encoder", r" is damaged \(expected names with values, found list\)"),
        ("encoder.yaml", "encoder: a", "encoder", r" is damaged or cut short \(it lacks settings, training\)"),
        ("run.yaml", "settings: {}", "record", r" is damaged or cut short \(it lacks run\)"),
        ("history.csv", "seconds\n1\n", "history", r" is damaged or cut short \(it lacks epoch\)"),
        ("history.csv", "epoch\none\n", "history", ": 'one' is not a number"),
        ("history.csv", "epoch,seconds\n1,2,3\n", "history", r" is damaged \(a line has not 2 columns\)"),
        ("metrics.json", '{"a": "b"}', "metrics", r" is damaged \(a should be a valid number\)"),
        ("curves.json", '{"a": 1}', "curves", r" is damaged \(a should be a valid dictionary\)"),
        ("embeddings/timing.json", '{"a": []}', "times", r" is damaged \(a should be a valid number\)"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(run, name, text, read, message):
    write_text(run.path / name, text)
    with pytest.raises(FileError, match=f"^{run.path / name}{message}{RERUN}"):
        getattr(run, read)


@pytest.mark.parametrize("made", [None, [], {}, {"files": ["metrics.json"]}, {"files": {"run.yaml": "ab"}}], ids=str)
def test_a_record_that_says_nothing_of_a_file_holds_nothing_against_it(run, made):
    write_json(run.metrics_file, {"a": 1.0})
    write_json(run.made_file("evaluate"), made)
    assert run.metrics == {"a": 1.0}


def test_a_file_that_its_step_did_not_write_so_is_refused(run):
    write_json(run.metrics_file, {"a": 1.0})
    write_json(run.made_file("evaluate"), {"files": {"metrics.json": "ab"}})
    wrong = f"^{run.metrics_file} is not as evaluate wrote it: damaged or edited; restore it, or delete the run folder"
    with pytest.raises(FileError, match=wrong):
        _ = run.metrics


def test_finished_runs_are_those_with_metrics_in_the_order_of_their_names(run):
    names = ["digits/b/seed1", "digits/b/seed0", "digits/a/seed0", "digits/c/seed0"]
    folders = [RunFolder.named(name, run.path) for name in names]
    for folder in folders[:3]:
        write_json(folder.metrics_file, {})
    found = finished_runs([*folders, str(folders[0].path), folders[1].path])
    assert [folder.key.run for folder in found] == ["digits/a/seed0", "digits/b/seed0", "digits/b/seed1"]


def test_nested_settings_become_dotted_names():
    assert flatten({"loss": {"scale": 32, "guide": {"name": "a"}}, 1: [2], "none": {}}) == {
        "loss.scale": 32,
        "loss.guide.name": "a",
        "1": [2],
    }
