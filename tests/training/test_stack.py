"""Seeds trained as one stacked model are, to rounding, the runs trained alone.

Compared in float64: in float32 rounding alone turns an activation on or off now and then, and the gradient of a net of
four channels jumps by some per cent where that happens.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import quick_settings

from probmetric.config import EncoderSettings
from probmetric.losses import REGISTRY, create_loss, list_losses
from probmetric.models import create_encoder
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.loop import Trainer, TrainingStoppedError
from probmetric.training.stack import fit_stacked

SEEDS = (0, 1, 5)
CPU = torch.device("cpu")


def exact(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64, whatever it is given."""
    module.double()
    module.register_forward_pre_hook(lambda _, given: tuple(tensor.double() for tensor in given))
    return module


def trainer(folder: Path, prepared: Path, settings: EncoderSettings, seed: int, **options: Any) -> Trainer:
    torch.manual_seed(seed)
    data = TrainingData(training_images(prepared, settings.training), settings.training, seed=seed, device=CPU)
    sizes = {"in_channels": data.in_channels, "image_size": data.image_size}
    encoder = create_encoder(settings.backbone.name, dim=8, **sizes, **settings.backbone.options)
    encoder.set_batch_norm(settings.training.batch_norm)
    encoder = encoder.to(memory_format=torch.channels_last)
    loss = create_loss(settings.loss.name, num_classes=data.num_classes, dim=8, **settings.loss.options)
    if settings.training.precision == "float32":
        exact(encoder.layers), exact(encoder.head), loss.double()
        loss.wants_warm_start = False
    given = {"seed": seed, "device": CPU, "identity": f"{seed}", "progress_bar": False} | options
    return Trainer(settings.training, encoder, loss, data, checkpoints=Checkpoints(folder / f"{seed}"), **given)


def trainers(folder: Path, prepared: Path, settings: EncoderSettings, **options: Any) -> list[Trainer]:
    return [trainer(folder, prepared, settings, seed, **options) for seed in SEEDS]


def assert_equal(stacked: list[Trainer], alone: list[Trainer], tolerance: float = 1e-5) -> None:
    """Weights, moments, histories and choices; what counts is equal, what is computed is near."""
    for one, other in zip(stacked, alone, strict=True):
        for name in ("encoder", "loss"):
            found, expected = (getattr(t, name).state_dict() for t in (one, other))
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
        found, expected = (t.optimizer.state_dict()["state"] for t in (one, other))
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
        for key in ("epoch", "step", "step_in_epoch", "finished", "skipped", "best_epoch"):
            assert getattr(one.progress, key) == getattr(other.progress, key), key
        for row, same in zip(one.progress.history, other.progress.history, strict=True):
            assert row.keys() == same.keys()
            for key in row.keys() - {"seconds", "images_per_second", "peak_memory_mb", "val_metric"}:
                assert row[key] == pytest.approx(same[key], rel=tolerance, abs=tolerance), key
            assert row["val_metric"] == pytest.approx(same["val_metric"], abs=0.05)
        torch.testing.assert_close(one.best, other.best, atol=tolerance, rtol=tolerance)


def both(
    folder: Path, prepared: Path, settings: EncoderSettings, **options: Any
) -> tuple[list[Trainer], list[Trainer]]:
    stacked = trainers(folder / "stacked", prepared, settings, **options)
    assert fit_stacked(stacked) == stacked
    alone = trainers(folder / "alone", prepared, settings, **options)
    for each in alone:
        each.fit()
    return stacked, alone


@pytest.mark.parametrize("name", list_losses())
def test_stacked_seeds_are_the_seeds_alone(tmp_path: Path, digits: Path, name: str, caplog: Any) -> None:
    settings = quick_settings(loss=name, epochs=2, steps_per_epoch=3, learning_rate=1e-3, precision="float32")
    with caplog.at_level(logging.WARNING):
        assert_equal(*both(tmp_path, digits, settings))
    assert "one after the other" not in caplog.text


USUAL: dict[str, Any] = {"loss": "proxy_anchor", "epochs": 2, "steps_per_epoch": 3, "precision": "float32"}
OPTIMISERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "adamw on matrices": {"optimizer": "adamw", "weight_decay": 0.1, "weight_decay_on": "matrices"},
    "rmsprop": {"optimizer": "rmsprop", "learning_rate": 1e-4},
    "nesterov, clipped": {"optimizer": "sgd", "nesterov": True, "gradient_clip": 0.05, "learning_rate": 0.1},
    "frozen": {"batch_norm": "frozen", "schedule": "multistep", "milestones": (1,)},
    "early": {"patience": 1, "optimizer": "sgd", "learning_rate": 3.0, "epochs": 6},
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_way_to_train(tmp_path: Path, digits: Path, name: str) -> None:
    settings = quick_settings(**USUAL | OPTIMISERS[name])
    assert_equal(*both(tmp_path, digits, settings))


def float_options(name: str) -> dict[str, float]:
    """The options of a loss that are floats, with their defaults where these are numbers."""
    options = REGISTRY.options(name).values()
    return {o.name: o.default for o in options if "float" in o.types and isinstance(o.default, (int, float))}


@pytest.mark.parametrize("name", list_losses())
def test_runs_with_other_numbers_are_the_runs_alone(tmp_path: Path, digits: Path, name: str, caplog: Any) -> None:
    """Every float of the loss a little smaller from run to run, rates, decay and clipping too."""
    usual = {"loss": name, "epochs": 2, "steps_per_epoch": 3, "precision": "float32", "optimizer": "adamw"}
    given = []
    for k, clip in enumerate((0.5, None, 5.0)):
        numbers = {"learning_rate": 1e-3 * 2**k, "weight_decay": 0.1 * k, "gradient_clip": clip}
        options = {option: value * (1 - 0.1 * k) for option, value in float_options(name).items()}
        given.append(quick_settings(**usual | numbers | {"loss": {"name": name, **options}}))
    assert len({settings.stackable for settings in given}) == 1
    stacked, alone = ([trainer(tmp_path / at, digits, s, seed) for seed, s in enumerate(given)] for at in ("a", "b"))
    with caplog.at_level(logging.WARNING):
        assert fit_stacked(stacked, same_loss=False) == stacked
    for each in alone:
        each.fit()
    assert_equal(stacked, alone)
    assert "one after the other" not in caplog.text


def test_what_differs_in_more_than_numbers_has_no_stack() -> None:
    usual = {"loss": "proxy_anchor", "learning_rate": 1e-3}
    others = [{"learning_rate": 2e-3}, {"loss": {"name": "proxy_anchor", "margin": 0.2}}]
    refused = [{"epochs": 7}, {"loss": {"name": "proxy_anchor", "fidelity": "as_published"}}, {"loss": "proxy_nca"}]
    same = [
        quick_settings(**usual | change).stackable == quick_settings(**usual).stackable for change in others + refused
    ]
    assert same == [True, True, False, False, False]


@pytest.mark.parametrize("loss", ["proxy_anchor", "vmf"])
def test_bfloat16_and_warm_starts(tmp_path: Path, digits: Path, loss: str) -> None:
    for one, other in zip(*both(tmp_path, digits, quick_settings(loss=loss, epochs=1, precision="bf16")), strict=True):
        assert one.progress.history[0]["train_loss"] == pytest.approx(other.progress.history[0]["train_loss"], rel=0.02)


@pytest.mark.parametrize("loss", ["proxy_anchor", "vmf"])
def test_stopped_stacks_go_on_alone_and_runs_alone_in_a_stack(tmp_path: Path, digits: Path, loss: str) -> None:
    """A checkpoint does not tell how it was made."""
    settings = quick_settings(**USUAL | {"loss": loss})
    alone = trainers(tmp_path / "alone", digits, settings)
    for each in alone:
        each.fit()
    for name, begin, go_on in (("first", fit_stacked, one_by_one), ("then", one_by_one, fit_stacked)):
        asked = iter(range(100))
        stopping = trainers(tmp_path / name, digits, settings, should_stop=lambda asked=asked: next(asked) >= 3)
        if begin is one_by_one:
            for each in stopping:
                each.should_stop = lambda each=each: each.progress.step == 3
        with pytest.raises(TrainingStoppedError):
            begin(stopping)
        resumed = trainers(tmp_path / name, digits, settings)
        go_on(resumed)
        assert_equal(resumed, alone)


def one_by_one(given: list[Trainer]) -> None:
    """Each to its end, or to where it is stopped."""
    stopped = None
    for each in given:
        try:
            each.fit()
        except TrainingStoppedError as error:
            stopped = error
    if stopped:
        raise stopped


def poison(given: Trainer, step: int, value: float) -> None:
    """Make the loss, or with an infinite `value` its gradient only, useless in one step."""
    inner = given.loss.value

    def poisoned(embeddings: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        found = inner(embeddings, *arguments, **options)
        return found * value if given.progress.step == step else found

    given.loss.vectorises, given.loss.value = False, poisoned


def test_a_run_that_fails_leaves_the_others(tmp_path: Path, digits: Path, caplog: Any) -> None:
    settings = quick_settings(**USUAL)
    stacked, alone = (trainers(tmp_path / name, digits, settings) for name in ("stacked", "alone"))
    for each in stacked:
        poison(each, 2, float("nan") if each.seed == 1 else 1.0)
    finished = fit_stacked(stacked)
    assert [each.seed for each in finished] == [0, 5]
    assert "seed 1 leaves the stack: the loss is nan at epoch 0, step 2" in caplog.text
    for each in alone:
        each.fit()
    assert_equal(finished, [alone[0], alone[2]])


class _Burst(torch.autograd.Function):
    """Identity with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * float("inf")


def test_a_skipped_step_is_skipped_by_one_run_alone(tmp_path: Path, digits: Path) -> None:
    settings = quick_settings(**USUAL)
    stacked, alone = (trainers(tmp_path / name, digits, settings) for name in ("stacked", "alone"))
    for each in (*stacked, *alone):
        inner = each.loss.value

        def value(embeddings: torch.Tensor, *rest: Any, each: Trainer = each, inner: Any = inner, **more: Any) -> Any:
            burst = each.seed == 5 and each.progress.step == 1
            return inner(_Burst.apply(embeddings) if burst else embeddings, *rest, **more)

        each.loss.vectorises, each.loss.value = False, value
    assert fit_stacked(stacked) == stacked
    for each in alone:
        each.fit()
    assert [each.progress.history[0]["skipped_steps"] for each in stacked] == [0, 0, 1]
    assert_equal(stacked, alone)


def test_what_cannot_be_stacked_is_trained_one_after_the_other(tmp_path: Path, digits: Path, caplog: Any) -> None:
    """Dropout draws from one stream for all, so its masks would not be those of the runs alone."""
    settings = quick_settings(**USUAL, backbone={"name": "compact", "width": 4, "dropout": 0.3})
    assert_equal(*both(tmp_path, digits, settings), tolerance=0.0)
    assert "3 runs are trained one after the other: vmap: called random operation" in caplog.text
