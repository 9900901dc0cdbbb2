"""The training step on real data: what it writes, and what stops it."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from training_helpers import quick_settings

from canary import with_other_test_images
from probmetric.config import EncoderSettings, RunSettings
from probmetric.data import DataError, load_columns
from probmetric.data.choosing import Role, open_for_choosing
from probmetric.data.views.photos import Photos
from probmetric.io import FileError, alone, read_tensors, read_yaml, sha256_file, write_tensors
from probmetric.launch import ALONE
from probmetric.losses._base import Loss
from probmetric.models import create_encoder
from probmetric.retrieval import retrieval_metrics
from probmetric.runs.embed import embed_splits, embed_training_images
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import RESULTS
from probmetric.runs.plan import Run
from probmetric.serving.model_folder import _training_classes
from probmetric.training.assemble import load_encoder
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images, training_view
from probmetric.training.diagnosis import NonFiniteGradientError
from probmetric.training.forward import embed, embed_split
from probmetric.training.loop import Conduct, Trainer, TrainingStoppedError
from probmetric.training.progress import HISTORY_COLUMNS
from probmetric.training.run import train_run

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


def test_a_log_says_how_far_training_is(
    digits_open: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("probmetric.training.loop.SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level("INFO", "probmetric"):
        folder = train(quick_settings(dataset="digits_open", loss={"name": "arcface"}), digits_open, tmp_path / "run")
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch ")]
    rows = read_history(folder)
    assert told == [
        f"epoch {number} of {len(rows)}, validation map_at_r {float(row['val_metric']):.3f}"
        for number, row in enumerate(rows, 1)
    ]
    assert len(told) > 1


def test_selected_weights_have_the_recorded_metric(digits_open: Path, tmp_path: Path) -> None:
    """The validation metric is recomputed from the files, independently of the loop."""
    folder = train(quick_settings(epochs=4, selection_metric="recall_at_1"), digits_open, tmp_path / "run")
    encoder, _, settings = load_encoder(folder)
    data = TrainingData(training_images(digits_open, settings.training), settings.training, seed=0, device=CPU)
    embeddings = embed_split(encoder, data, "val").numpy()
    similarity = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = similarity @ similarity.T
    np.fill_diagonal(similarity, -2.0)
    labels = data.val_labels.numpy()
    recall = float(np.mean(labels[similarity.argmax(axis=1)] == labels))
    record = read_yaml(folder / "encoder.yaml")
    assert recall == pytest.approx(record["training"]["selected_value"], abs=2 / len(labels))


def test_batches_made_several_at_once_are_those_made_alone(digits: Path) -> None:
    """Wherever an epoch is taken up again."""
    settings = quick_settings().training
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU)
    for start in (0, 2):
        made = list(data.epoch_batches(3, start))
        assert len(made) == data.steps_per_epoch - start
        for positions, images, labels in made:
            alone, own = data.batch(positions, epoch=3)
            assert torch.equal(images, alone)
            assert images.stride() == alone.stride()
            assert torch.equal(labels, own)


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


@pytest.mark.parametrize(
    ("metrics", "epoch", "warning"),
    [
        ([0.4, 1.0, 1.0, 1.0, 1.0], 4, "the validation metric is saturated: 1 since epoch 2 of 5"),
        ([0.4, 0.9, 0.8, 0.9, 0.7], 3, ""),
        ([0.9, 0.8, 0.8, 0.7, 0.7], 0, "the weights are of epoch 1 of 5, the first fifth of training"),
    ],
)
def test_of_equal_epochs_the_latest_is_kept_and_a_choice_that_says_little_is_named(
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    metrics,
    epoch,
    warning,
) -> None:
    """Digits' recall@1 was 1.000 after 3 to 9 of 45 epochs, and the first such epoch was kept."""
    values = iter(metrics)
    monkeypatch.setattr("probmetric.training.loop.validate", lambda *_: next(values))
    folder = train(quick_settings(epochs=5, steps_per_epoch=1), digits, tmp_path / "run")
    record = read_yaml(folder / "encoder.yaml")["training"]
    assert (record["selected_epoch"], record["selection_warning"]) == (epoch, warning)
    assert (warning in caplog.text) if warning else ("selection_metric" not in caplog.text)


def test_epochs_are_chosen_by_a_metric_that_does_not_saturate() -> None:
    assert quick_settings().training.selection_metric == "map_at_r"


@pytest.mark.parametrize(
    ("dataset", "selection"), [("digits", "validation"), ("digits_open", "validation"), ("digits_open", "refit")]
)
def test_nothing_that_is_chosen_depends_on_test_images(
    dataset: str, selection: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The promise itself, by a canary: other test images and labels, the same weights and choices to the bit."""
    prepared = request.getfixturevalue(dataset)
    settings = quick_settings(dataset=dataset, epochs=4, selection=selection)
    first = train(settings, prepared, tmp_path / "first")
    second = train(settings, with_other_test_images(prepared, tmp_path / "other"), tmp_path / "second")
    for name in ("model.safetensors", "model_last.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    found = [read_yaml(folder / "encoder.yaml")["training"] for folder in (first, second)]
    assert found[0] | {"seconds": 0} == found[1] | {"seconds": 0}
    assert [row["val_metric"] for row in read_history(first)] == [row["val_metric"] for row in read_history(second)]


def test_selection_as_published_leaks_and_says_so(digits_open: Path, tmp_path: Path) -> None:
    """The canary dies: with other test images the history of the metric that chooses is another."""
    settings = quick_settings(dataset="digits_open", epochs=4, selection="as_published")
    first = train(settings, digits_open, tmp_path / "first")
    second = train(settings, with_other_test_images(digits_open, tmp_path / "other"), tmp_path / "second")
    assert (first / "model_last.safetensors").read_bytes() == (second / "model_last.safetensors").read_bytes()
    metrics = [[row["val_metric"] for row in read_history(folder)] for folder in (first, second)]
    assert metrics[0] != metrics[1]
    record = read_yaml(first / "encoder.yaml")
    assert "leaks" in record["training"]["selection"]
    assert record["encoder"]["num_classes"] == 5
    assert EncoderSettings(**quick_settings().plain()).training.selection == "validation"


def test_refit_trains_as_many_epochs_again_on_training_and_validation_images(digits_open: Path, tmp_path: Path) -> None:
    settings = {"dataset": "digits_open", "epochs": 4, "learning_rate": 3e-3}
    plain = train(quick_settings(**settings), digits_open, tmp_path / "plain")
    again = train(quick_settings(**settings, selection="refit"), digits_open, tmp_path / "refit")
    chosen, refitted = (read_yaml(folder / "encoder.yaml") for folder in (plain, again))
    assert refitted["training"]["selected_epoch"] == chosen["training"]["selected_epoch"]
    assert [row["val_metric"] for row in read_history(again)] == [row["val_metric"] for row in read_history(plain)]
    assert (chosen["encoder"]["num_classes"], refitted["encoder"]["num_classes"]) == (3, 5)
    assert refitted["encoder"]["num_images"] > chosen["encoder"]["num_images"]
    assert (again / "model.safetensors").read_bytes() != (plain / "model.safetensors").read_bytes()
    _, loss, _ = load_encoder(again)
    assert loss is not None
    settings = quick_settings(selection="refit").training
    later = TrainingData(training_images(digits_open, settings), settings, seed=0, device=CPU)
    assert (later.num_classes, later.has_validation) == (5, False)
    assert not (again / "state").exists() or not list((again / "state").iterdir())


def test_after_a_refit_classes_are_numbered_as_the_loss_numbers_them(
    digits_open: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its proxies are those of training and validation classes together, which lie between one another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prepared").symlink_to(digits_open.parent)
    changes = {"prepared": "prepared", "dataset": digits_open.name, "loss": "proxy_anchor", "epochs": 1}
    settings = RunSettings(**quick_settings(**changes, selection="refit").plain())
    run = Run("digits_open/quick/seed0", "digits_open/quick/seed0", settings)
    train_run(
        settings.encoder(), prepared_folder=digits_open, run_folder=RESULTS / run.name, state_folder=tmp_path / "state"
    )
    columns = load_columns(digits_open, ["label", "split", "class_name"])
    train = columns["label"][columns["split"] == "train"]
    learnt = np.unique(columns["label"][columns["split"] != "test"])
    assert learnt.tolist() != [*np.unique(train), *np.setdiff1d(learnt, train)]
    _, labels, proxies = embed_training_images(run)
    assert learnt[labels].tolist() == train.tolist()
    assert proxies is not None
    assert learnt[proxies[1]].tolist() == learnt.tolist()
    embed_splits(run, ALONE)
    assert RunFolder.named(run.name).embeddings("val").said("classes", list[int], []) == learnt.tolist()
    names = [columns["class_name"][columns["label"] == label][0] for label in learnt]
    assert _training_classes(digits_open, "refit") == names


def test_refit_repeats_the_rates_of_the_first_training(
    digits_open: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second training has no validation images by which it could see a plateau."""
    metrics = iter([0.5, 0.4, 0.3, 0.2, 0.9, 0.1])
    monkeypatch.setattr("probmetric.training.loop.validate", lambda *_: next(metrics))
    rates: list[float] = []
    settings = quick_settings(
        dataset="digits_open", selection="refit", epochs=6, schedule="plateau", plateau_patience=1, gamma=0.5
    )
    folder = train(settings, digits_open, tmp_path / "run", on_epoch=lambda row: rates.append(row["lr"]))
    selection, again = rates[:6], rates[6:]
    assert [rate / rates[0] for rate in selection] == [1, 1, 1, 0.5, 0.5, 0.5]
    assert again == selection[:5]
    assert len(read_history(folder)) == 6


def test_test_images_cannot_be_opened_by_what_chooses(digits: Path) -> None:
    settings = quick_settings().training
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU)
    columns = load_columns(digits, ["label", "split"])
    test = np.flatnonzero(columns["split"] == "test")
    with pytest.raises(DataError, match="of a split that this step must not see"):
        data.sources["train"].store.load(test[:3])
    with pytest.raises(DataError, match="without test images"):
        data.sources["train"].store[int(test[0])]


@pytest.mark.parametrize(
    ("role", "train_on", "choose_on", "refused"),
    [
        ("validation", ["train"], ["val"], ["test"]),
        ("pooled", ["train", "val"], [], ["test"]),
        ("leaking", ["train", "val"], ["test"], []),
    ],
)
def test_a_step_that_chooses_gets_the_splits_of_its_role(
    digits: Path, role: Role, train_on: list[str], choose_on: list[str], refused: list[str]
) -> None:
    opened, columns = open_for_choosing(digits, role), load_columns(digits, ["label", "split"])
    for use, splits in (("train", train_on), ("val", choose_on)):
        rows = np.flatnonzero(np.isin(columns["split"], splits))
        assert np.array_equal(opened[use].index, rows)
        assert np.array_equal(opened[use].labels, columns["label"][rows])
        assert len(opened[use].store.load(rows[:3])) == len(rows[:3])
    for split in refused:
        with pytest.raises(DataError, match="of a split that this step must not see"):
            opened["val"].store.load(np.flatnonzero(columns["split"] == split)[:3])


@pytest.mark.parametrize("loss", ["vmf", "el_nivmf"])
def test_losses_that_draw_choose_alike_after_a_stop_at_the_end_of_an_epoch(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    settings = quick_settings(loss=loss, epochs=3, steps_per_epoch=2, selection_metric="accuracy")
    whole = train(settings, digits, tmp_path / "whole")
    step = Trainer._step
    monkeypatch.setattr(
        Trainer, "_step", lambda made, *batch: (step(made, *batch)[0] or made.progress.step == 3, False)
    )
    with pytest.raises(TrainingStoppedError):
        train(settings, digits, tmp_path / "run")
    monkeypatch.setattr(Trainer, "_step", step)
    resumed = train(settings, digits, tmp_path / "run")
    values = [[row["val_metric"] for row in read_history(folder)] for folder in (whole, resumed)]
    assert values[0] == values[1]


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
    settings = quick_settings(epochs=6, steps_per_epoch=None, learning_rate=3e-3, dim=16, backbone={"name": "compact"})
    folder = train(settings, digits, tmp_path / "run")
    encoder, _, _ = load_encoder(folder)
    data = TrainingData(training_images(digits, settings.training), settings.training, seed=0, device=CPU)
    embeddings = embed_split(encoder, data, "val")
    found = retrieval_metrics(embeddings.numpy(), data.val_labels.numpy(), ks=(1,), normalize=True)
    assert found["recall_at_1"] > 0.95


def test_a_second_process_is_turned_away(digits: Path, tmp_path: Path) -> None:
    with (
        alone(tmp_path / "run" / "state"),
        pytest.raises(FileError, match=r"another process is training this run.*last checkpoint.*\.state\.lock.*wait"),
    ):
        train(quick_settings(), digits, tmp_path / "run")
    train(quick_settings(), digits, tmp_path / "run")
    assert not (tmp_path / "run" / "state").exists()
    assert not list((tmp_path / "run").glob(".*.lock"))


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


def test_images_read_by_threads_give_the_same_weights(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = train(quick_settings(), digits, tmp_path / "held")
    monkeypatch.setattr("probmetric.training.data.IN_MEMORY_BYTES", 0)
    read = train(quick_settings(), digits, tmp_path / "read")
    assert (held / "model.safetensors").read_bytes() == (read / "model.safetensors").read_bytes()


def test_bfloat16_features_keep_a_float32_head(digits: Path, tmp_path: Path) -> None:
    settings = quick_settings(precision="bf16", epochs=5, learning_rate=1e-2)
    folder = train(settings, digits, tmp_path / "run")
    encoder, _, _ = load_encoder(folder)
    images = torch.rand(4, 1, 32, 32)
    half, full = (embed(encoder, images, precision) for precision in (torch.bfloat16, torch.float32))
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, rtol=0.1, atol=0.05 * float(full.detach().abs().max()))
    rows = read_history(folder)
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])


@pytest.mark.parametrize("loss", ["cosine", {"name": "nir", "blocks": 2, "depth": 2, "width": 8}])
def test_sigterm_saves_the_state_and_the_next_call_goes_on(digits: Path, tmp_path: Path, loss: object) -> None:
    settings = quick_settings(epochs=4, loss=loss)
    whole = train(settings, digits, tmp_path / "whole")

    def terminate(row: dict[str, float]) -> None:
        if row["epoch"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingStoppedError, match=r"epoch 2 after step 13; the state is saved"):
        train(settings, digits, tmp_path / "run", on_epoch=terminate)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    steps: list[float] = []
    resumed = train(settings, digits, tmp_path / "run", on_epoch=lambda row: steps.append(row["step"]))
    assert steps == [18, 24]
    names = ("model.safetensors", "model_last.safetensors")
    assert all((whole / name).read_bytes() == (resumed / name).read_bytes() for name in names)
    times = {"seconds", "images_per_second", "peak_memory_mb"}
    histories = [[{k: row[k] for k in row.keys() - times} for row in read_history(each)] for each in (whole, resumed)]
    assert histories[0] == histories[1]


def test_steps_with_non_finite_gradients_are_skipped_and_counted(digits: Path, tmp_path: Path) -> None:
    """The loss is finite but one gradient entry is not: parameters stay as they are, the counter rises."""

    class Poisoned(torch.autograd.Function):
        @staticmethod
        def forward(_context: object, values: torch.Tensor) -> torch.Tensor:
            return values.clone()

        @staticmethod
        def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * float("inf")

    class Spoilt(Loss):
        calls = 0

        def compute(self, embeddings: torch.Tensor, labels: torch.Tensor, generator: object) -> torch.Tensor:
            self.calls += 1
            spoilt = Poisoned.apply(embeddings) if self.calls in (2, 5) else embeddings
            return spoilt.square().mean()

    settings = quick_settings(epochs=1).training
    encoder, loss = create_encoder("compact", dim=4, in_channels=1, width=4), Spoilt(num_classes=10, dim=4)
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU)
    trainer = Trainer(encoder, loss, data, Conduct(Checkpoints(tmp_path), "x"))
    row = trainer.fit().history[0]
    assert row["skipped_steps"] == 2
    assert np.isfinite(row["grad_norm"])
    assert all(torch.isfinite(p).all() for p in encoder.parameters())

    class AlwaysSpoilt(Spoilt):
        def compute(self, embeddings: torch.Tensor, labels: torch.Tensor, generator: object) -> torch.Tensor:
            return Poisoned.apply(embeddings).square().mean()

    forever = settings.model_copy(update={"epochs": 99})
    data = TrainingData(training_images(digits, forever), forever, seed=0, device=CPU)
    trainer = Trainer(encoder, AlwaysSpoilt(num_classes=10, dim=4), data, Conduct(Checkpoints(tmp_path), "y"))
    with pytest.raises(NonFiniteGradientError, match=r"20 steps in a row.*encoder\.layers.*learning_rate"):
        trainer.fit()


def test_photographs_are_cropped_by_their_recipe(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger images than the network's input: random crops train, central crops validate, threads change nothing."""
    recipe = Photos(size=16, resize=20, mean=(0.0,) * 3, std=(1.0,) * 3)
    options = {"size": 16, "resize": 20, "mean": [0.0] * 3, "std": [1.0] * 3}
    settings = quick_settings(view={"name": "photos", "options": options})
    assert training_view(settings, digits) == recipe
    data = TrainingData(training_images(digits, settings.training, view=recipe), settings.training, seed=0, device=CPU)
    assert (data.image_size, data.in_channels) == (16, 1)
    first, again, later = (data.batch(torch.arange(5), epoch=epoch)[0] for epoch in (0, 0, 1))
    assert first.shape == (5, 1, 16, 16)
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    one, two = (torch.cat(list(data.plain_batches("val"))) for _ in range(2))
    assert torch.equal(one, two)
    several = train(settings, digits, tmp_path / "threads")
    for module in ("training.data", "data.images"):
        monkeypatch.setattr(f"probmetric.{module}.loading_threads", lambda _device: 0)
    single = train(settings, digits, tmp_path / "single")
    assert (several / "model.safetensors").read_bytes() == (single / "model.safetensors").read_bytes()


def test_timm_backbone_from_a_local_weight_file(digits: Path, tmp_path: Path) -> None:
    """Recipe of the proxy papers in small: published weights, frozen batch norm, one warm-up epoch, GeM pooling."""
    import timm

    tag, weights = "test_resnet.r160_in1k", tmp_path / "weights.safetensors"
    torch.manual_seed(0)
    write_tensors(weights, timm.create_model(tag, in_chans=1).state_dict())
    backbone = {"name": "timm", "tag": tag, "pool": "gem"}
    settings = quick_settings(
        backbone=backbone,
        pretrained=str(weights),
        loss={"name": "proxy_anchor"},
        batch_norm="frozen",
        warmup_epochs=1,
        epochs=2,
        schedule="multistep",
        milestones=(1,),
        gamma=0.3,
    )
    state = torch.random.get_rng_state()
    folder = train(settings, digits, tmp_path / "run")
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's generator is left alone"
    assert read_yaml(folder / "encoder.yaml")["encoder"]["pretrained_sha256"] == sha256_file(weights)
    rates = [float(row["lr"]) for row in read_history(folder)]
    assert rates == pytest.approx([1e-3, 3e-4])
    started, _ = read_tensors(weights)
    weights.unlink()
    trained = load_encoder(folder, which="last")[0].state_dict()
    changed = {
        name for name, value in started.items() if not np.array_equal(trained.get(f"backbone.{name}", value), value)
    }
    assert any(name.endswith("conv1.weight") for name in changed), "the second epoch trains the backbone"
    assert not any("running" in name for name in changed), "frozen statistics"
