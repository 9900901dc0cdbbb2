"""The training step on real data: what it writes, and what stops it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from training_helpers import quick_settings

from probmetric.config import EncoderSettings
from probmetric.evaluation import retrieval_metrics
from probmetric.io import FileError, read_tensors, read_yaml
from probmetric.training import load_encoder, train_run
from probmetric.training.data import TrainingData
from probmetric.training.device import try_lock
from probmetric.training.forward import embed_all
from probmetric.training.loop import HISTORY_COLUMNS

CPU = torch.device("cpu")


def train(settings: EncoderSettings, prepared: Path, folder: Path, **options: object) -> Path:
    train_run(settings, prepared_folder=prepared, run_folder=folder, state_folder=folder / "state", **options)
    return folder


def read_history(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "history.csv").read_text().splitlines()))


def test_outputs_and_what_they_say(digits_open: Path, tmp_path: Path) -> None:
    settings = quick_settings(dataset="digits_open", loss={"name": "arcface"})
    folder = train(settings, digits_open, tmp_path / "run")
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.safetensors", "model_last.safetensors", "history.csv", "encoder.yaml"}
    rows = read_history(folder)
    assert list(rows[0])[: len(HISTORY_COLUMNS)] == list(HISTORY_COLUMNS)
    assert [int(row["step"]) for row in rows] == [6, 12, 18]
    record = read_yaml(folder / "encoder.yaml")
    assert EncoderSettings(**record["settings"]) == settings
    assert record["training"]["selected_value"] == max(float(row["val_metric"]) for row in rows)
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["data_digest"]) == 64


def test_selected_weights_have_the_recorded_metric(digits_open: Path, tmp_path: Path) -> None:
    """The validation metric is recomputed from the files, independently of the loop."""
    folder = train(quick_settings(epochs=4), digits_open, tmp_path / "run")
    encoder, _, settings = load_encoder(folder)
    data = TrainingData(digits_open, settings.training, seed=0, device=CPU)
    embeddings = embed_all(encoder, data.images_in_order("val"), torch.float32).numpy()
    similarity = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = similarity @ similarity.T
    np.fill_diagonal(similarity, -2.0)
    labels = data.val_labels.numpy()
    recall = float(np.mean(labels[similarity.argmax(axis=1)] == labels))
    record = read_yaml(folder / "encoder.yaml")
    assert recall == pytest.approx(record["training"]["selected_value"], abs=2 / len(labels))


def test_same_seed_same_weights_other_seed_others(digits: Path, tmp_path: Path) -> None:
    weights = [
        (train(quick_settings(seed=seed), digits, tmp_path / name) / "model.safetensors").read_bytes()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_patience_stops_and_keeps_the_better_weights(digits: Path, tmp_path: Path) -> None:
    """A rate that soon destroys the net: the selected weights are an earlier epoch's, not the last."""
    settings = quick_settings(
        epochs=40, patience=3, learning_rate=0.5, optimizer="sgd", momentum=0.99, schedule="constant"
    )
    folder = train(settings, digits, tmp_path / "run")
    record, rows = read_yaml(folder / "encoder.yaml")["training"], read_history(folder)
    assert len(rows) == record["epochs"] < 40
    assert record["selected_epoch"] == len(rows) - 1 - 3
    metrics = [float(row["val_metric"]) for row in rows]
    assert metrics[record["selected_epoch"]] == max(metrics)
    assert (folder / "model.safetensors").read_bytes() != (folder / "model_last.safetensors").read_bytes()


@pytest.mark.parametrize("changes", [{"loss": None}, {"epochs": 0}, {"loss": None, "backbone": {"name": "pixels"}}])
def test_untrained_encoders_are_written_too(digits: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    folder = train(quick_settings(**changes), digits, tmp_path / "run")
    encoder, loss, _ = load_encoder(folder, which="last")
    assert encoder(torch.zeros(2, 1, 32, 32)).shape == (2, encoder.dim)
    assert (loss is None) == (changes.get("loss", 0) is None)
    assert read_history(folder) == []


def test_loaded_encoder_is_the_trained_one(digits: Path, tmp_path: Path) -> None:
    folder = train(quick_settings(loss={"name": "proxy_anchor"}), digits, tmp_path / "run")
    for which, name in (("selected", "model.safetensors"), ("last", "model_last.safetensors")):
        encoder, loss, settings = load_encoder(folder, which=which)
        tensors, _ = read_tensors(folder / name, framework="torch")
        assert loss is not None
        assert not encoder.training
        assert not loss.training
        assert settings.loss is not None
        for part, module in (("encoder", encoder), ("loss", loss)):
            for key, value in module.state_dict().items():
                assert torch.equal(value, tensors[f"{part}.{key}"])


def test_closed_set_accuracy_selects(digits: Path, tmp_path: Path) -> None:
    folder = train(quick_settings(selection_metric="accuracy", epochs=5, learning_rate=1e-2), digits, tmp_path / "run")
    assert read_yaml(folder / "encoder.yaml")["training"]["selected_value"] > 0.4


@pytest.mark.parametrize(
    ("dataset", "loss", "reason"),
    [("digits_open", "cosine", "unseen"), ("digits", "contrastive", "no classifier")],
)
def test_accuracy_needs_a_classifier_and_seen_classes(
    dataset: str, loss: str, reason: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = quick_settings(selection_metric="accuracy", loss={"name": loss})
    with pytest.raises(ValueError, match=f"{reason}.*recall_at_1"):
        train(settings, request.getfixturevalue(dataset), tmp_path / "run")


def test_training_separates_digits(digits: Path, tmp_path: Path) -> None:
    settings = quick_settings(
        epochs=6, max_steps_per_epoch=None, learning_rate=3e-3, dim=16, backbone={"name": "compact"}
    )
    folder = train(settings, digits, tmp_path / "run")
    encoder, _, _ = load_encoder(folder)
    data = TrainingData(digits, settings.training, seed=0, device=CPU)
    embeddings = embed_all(encoder, data.images_in_order("val"), torch.float32)
    found = retrieval_metrics(embeddings.numpy(), data.val_labels.numpy(), ks=(1,), normalize=True)
    assert found["recall_at_1"] > 0.95


def test_a_second_process_is_turned_away(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "state").mkdir(parents=True)
    with try_lock(tmp_path / "run" / "state" / "lock") as held:
        assert held
        with pytest.raises(FileError, match=r"another process is training this run.*lock"):
            train(quick_settings(), digits, tmp_path / "run")


def test_unwritable_results_stop_before_training(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    epochs: list[object] = []
    with pytest.raises(FileError, match="file"):
        train_run(
            quick_settings(),
            prepared_folder=digits,
            run_folder=tmp_path / "file" / "run",
            state_folder=tmp_path / "state",
            on_epoch=epochs.append,
        )
    assert not epochs


@pytest.mark.parametrize("name", ["model.safetensors", "encoder.yaml"])
def test_damaged_run_files_are_named(digits: Path, tmp_path: Path, name: str) -> None:
    folder = train(quick_settings(epochs=1), digits, tmp_path / "run")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 3])
    with pytest.raises(FileError, match=name):
        load_encoder(folder)


def test_weights_of_another_net_are_named(digits: Path, tmp_path: Path) -> None:
    small = train(quick_settings(epochs=1), digits, tmp_path / "small")
    wide = train(quick_settings(epochs=1, backbone={"name": "compact", "width": 8}), digits, tmp_path / "wide")
    (small / "model.safetensors").write_bytes((wide / "model.safetensors").read_bytes())
    with pytest.raises(FileError, match=r"does not fit .*encoder\.yaml"):
        load_encoder(small)


def test_warm_up_trains_only_what_is_new(digits: Path, tmp_path: Path) -> None:
    first = train(quick_settings(epochs=1), digits, tmp_path / "first")
    weights = str(first / "model_last.safetensors")
    warm = quick_settings(epochs=1, dim=6, pretrained=weights, warmup_epochs=1, batch_norm="frozen")
    second = train(warm, digits, tmp_path / "second")
    before, _ = read_tensors(weights)
    after, _ = read_tensors(second / "model_last.safetensors")
    backbone = [name for name in before if name.startswith("encoder.layers.")]
    assert backbone
    assert all(np.array_equal(before[name], after[name]) for name in backbone)
    cold = train(warm.model_copy(update={"training": quick_settings(epochs=1).training}), digits, tmp_path / "c")
    after, _ = read_tensors(cold / "model_last.safetensors")
    assert not any(np.array_equal(before[name], after[name]) for name in backbone if name.endswith("weight"))
