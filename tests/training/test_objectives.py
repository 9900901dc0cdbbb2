"""Uncertainties that shape training: what the trainer hands them, what it stores, and resuming to the bit."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path

import pytest
import torch
from training_helpers import quick_settings

from probmetric.config import EncoderSettings
from probmetric.io import read_tensors, read_yaml
from probmetric.training.assemble import load_encoder
from probmetric.training.data import TrainingData, training_images
from probmetric.training.diagnosis import TrainingError
from probmetric.training.loop import TrainingStoppedError
from probmetric.training.run import train_run
from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty.laplace_online import OnlineLaplaceObjective

CPU = torch.device("cpu")
OBJECTIVES = ["laplace_online", "hib", "mc_dropout"]
FILES = ("model.safetensors", "model_last.safetensors")


def settings_with(objective: object, **changes: object) -> EncoderSettings:
    return quick_settings(**{"loss": "contrastive", "objective": objective} | changes)


def train(settings: EncoderSettings, prepared: Path, folder: Path, **options: object) -> Path:
    train_run(settings, prepared_folder=prepared, run_folder=folder, state_folder=folder / "state", **options)
    return folder


def weights(folder: Path, prefix: str) -> dict[str, torch.Tensor]:
    tensors, _ = read_tensors(folder / "model_last.safetensors", framework="torch")
    return {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_stopped_and_continued_equals_uninterrupted(digits: Path, tmp_path: Path, name: str) -> None:
    """Encoder, inner loss, curvature and variance head are the same bytes; so is every row of the history."""
    settings = settings_with(name, epochs=2)
    whole = train(settings, digits, tmp_path / "whole")

    def stop(row: dict[str, float]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingStoppedError, match="the state is saved"):
        train(settings, digits, tmp_path / "run", on_epoch=stop)
    steps: list[float] = []
    resumed = train(settings, digits, tmp_path / "run", on_epoch=lambda row: steps.append(row["step"]))
    assert steps == [12], "the first epoch is not repeated"
    for file in FILES:
        assert (resumed / file).read_bytes() == (whole / file).read_bytes(), file


@pytest.mark.parametrize(
    "objective",
    [{"name": "laplace_online", "train_samples": 0}, {"name": "mc_dropout", "rate": 0.0}],
    ids=lambda value: value["name"],
)
def test_an_objective_that_perturbs_nothing_trains_the_plain_encoder(
    digits: Path, tmp_path: Path, objective: dict[str, object]
) -> None:
    plain = train(settings_with(None, epochs=1), digits, tmp_path / "plain")
    shaped = train(settings_with(objective, epochs=1), digits, tmp_path / "shaped")
    expected, found = weights(plain, "encoder."), weights(shaped, "encoder.")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_that_perturbs_trains_another_encoder_from_the_same_start(
    digits: Path, tmp_path: Path, name: str
) -> None:
    plain = train(settings_with(None, epochs=1), digits, tmp_path / "plain")
    shaped = train(settings_with(name, epochs=1), digits, tmp_path / "shaped")
    starts = [
        weights(train(settings_with(o, epochs=0), digits, tmp_path / f"start{o}"), "encoder.") for o in (None, name)
    ]
    assert all(torch.equal(starts[0][key], starts[1][key]) for key in starts[0])
    expected, found = weights(plain, "encoder."), weights(shaped, "encoder.")
    assert not torch.equal(found["encoder.head.weight"], expected["encoder.head.weight"])


def test_the_curvature_follows_its_recursion_and_is_stored_with_the_weights(digits: Path, tmp_path: Path) -> None:
    """One step of H <- m H + update from H = N: at least m N everywhere, more somewhere, and read back whole."""
    memory = 0.5
    objective = {"name": "laplace_online", "memory": memory}
    folder = train(settings_with(objective, epochs=1, steps_per_epoch=1), digits, tmp_path / "run")
    images = read_yaml(folder / "encoder.yaml")["encoder"]["num_images"]
    assert images == 1069
    curvature = weights(folder, "loss.")["loss.weight_curvature"]
    assert float(curvature.min()) >= memory * images - 1e-3
    assert float(curvature.max()) > memory * images + 1

    encoder, loss, settings = load_encoder(folder, which="last")
    assert isinstance(loss, OnlineLaplaceObjective)
    assert settings.objective is not None
    assert settings.objective.options == {"memory": memory}
    assert int(loss.steps) == 1
    assert loss.scale == float(images) ** 2
    online = create_uncertainty("laplace_online")
    posterior = online.fit(encoder, [], loss=loss, generator=torch.Generator())
    assert torch.equal(posterior["weight_curvature"], curvature)


def test_diagnostics_of_the_objective_are_in_the_history(digits: Path, tmp_path: Path) -> None:
    folder = train(settings_with("laplace_online", epochs=2), digits, tmp_path / "run")
    rows = list(csv.DictReader((folder / "history.csv").read_text().splitlines()))
    assert all(0 < float(row["posterior_std_median"]) < 1 for row in rows)


def test_another_objective_does_not_continue_the_first_ones_checkpoint(digits: Path, tmp_path: Path) -> None:
    def stop(row: dict[str, float]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingStoppedError):
        train(settings_with("laplace_online", epochs=2), digits, tmp_path / "run", on_epoch=stop)
    steps: list[float] = []
    changed = settings_with({"name": "laplace_online", "memory": 0.5}, epochs=2)
    train(changed, digits, tmp_path / "run", on_epoch=lambda row: steps.append(row["step"]))
    assert steps == [6, 12]


def test_an_encoder_without_a_last_layer_is_refused(digits: Path, tmp_path: Path) -> None:
    settings = settings_with("mc_dropout", backbone="pixels", loss="proxy_anchor", dim=1024)
    with pytest.raises(TrainingError, match="use another backbone"):
        train(settings, digits, tmp_path / "run")


@pytest.mark.parametrize("objective", [None, {"name": "hib", "kl_weight": 0.1}])
def test_settings_are_read_as_they_were_described(objective: dict | None) -> None:
    settings = settings_with(objective)
    assert EncoderSettings(**settings.plain()) == settings


def test_passes_are_repeatable_streams(digits: Path, digits_open: Path) -> None:
    settings = quick_settings().training
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU)
    training, validation, plain = data.training_pass(), data.validation_pass(), data.plain_pass()
    for source in (training, validation, plain):
        assert iter(source) is not iter(source), "every pass starts anew"
        for (images, labels), (again, same) in zip(source, source, strict=True):
            assert torch.equal(images, again)
            assert torch.equal(labels, same)
    assert sum(len(labels) for _, labels in training) > len(data.labels) - data.settings.batch_size
    assert torch.equal(torch.cat([labels for _, labels in plain]), data.labels)
    assert torch.equal(torch.cat([labels for _, labels in validation]), data.val_labels)

    settings = quick_settings().training
    unseen = TrainingData(training_images(digits_open, settings), settings, seed=0, device=CPU)
    labels = torch.cat([labels for _, labels in unseen.validation_pass()])
    assert not unseen.closed_set
    assert int(labels.min()) == unseen.num_classes, "unseen classes are not numbered like training classes"
    same_class = unseen.val_labels[:, None] == unseen.val_labels
    assert torch.equal(labels[:, None] == labels, same_class)
