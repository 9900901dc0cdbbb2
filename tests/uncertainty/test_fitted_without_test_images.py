"""The promise after training: posteriors, prior, temperature and P(right) never see a test image or its label."""

from __future__ import annotations

from pathlib import Path

import pytest

from canary import with_other_test_images
from probmetric.config import Method, Params, load, parse
from probmetric.data import choosing
from probmetric.planning.expansion import Point, every_method, resolve
from probmetric.runs import steps
from probmetric.runs.evaluate import run_answers
from probmetric.runs.folder import RunFolder
from probmetric.runs.plan import RunPlan
from probmetric.trust.answers import p_right_of

ROOT = Path(__file__).parents[2]
SMALL = {"dim": 8, "backbone.width": 4, "training.epochs": 2, "training.steps_per_epoch": 4}
SCALED = parse(Method, {"base": "softmax", "uncertainty": "temperature"}, "scaled")


@pytest.fixture
def fitted(prepared_dataset, tmp_path, monkeypatch):
    """Trains and fits a method on a dataset, and on the same with other test images and labels; gives both runs."""
    monkeypatch.chdir(ROOT)
    params = load(Params, "params.yaml").model_copy(update={"ood": {}})
    methods = every_method(params) | {"scaled": SCALED}

    def fit(dataset: str, method: str, *, leak: bool = False, **options: object) -> list[RunFolder]:
        prepared, result = prepared_dataset(dataset), []
        for name, folder in (("same", prepared), ("other", with_other_test_images(prepared, tmp_path / "changed"))):
            place = tmp_path / name
            (place / "data/prepared").mkdir(parents=True)
            (place / "data/prepared" / dataset).symlink_to(folder)
            monkeypatch.chdir(place)
            changes = SMALL | {f"uncertainty.{key}": value for key, value in options.items()}
            run = resolve(params, methods, Point(dataset=dataset, method=method, overrides=changes))
            base = resolve(params, methods, Point(dataset=dataset, method=methods[method].base, overrides=SMALL))
            steps.train(RunPlan(base))
            with monkeypatch.context() as opened:
                if leak:
                    opened.setitem(choosing.SPLITS, "validation", {"train": ("train",), "val": ("test",)})
                steps.fit(RunPlan(run))
            steps.embed(RunPlan(run))
            result.append(RunFolder(place / "results" / run.name))
        return result

    return fit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "method", "options"),
    [
        ("digits", "scaled", {}),
        ("digits_open", "laplace", {"samples": 4}),
        ("digits_open", "lam_validated", {"samples": 4}),
        ("digits_open", "pfe", {"samples": 4, "epochs": 1}),
    ],
)
def test_what_is_fitted_does_not_depend_on_test_images(fitted, monkeypatch, dataset, method, options):
    same, other = fitted(dataset, method, **options)
    assert same.posterior_file.read_bytes() == other.posterior_file.read_bytes()
    assert same.embeddings_file("test").read_bytes() != other.embeddings_file("test").read_bytes()
    maps = [p_right_of(run_answers(run)) for run in (same, other)]
    assert maps[0].plain() == maps[1].plain()


@pytest.mark.slow
def test_a_temperature_fitted_to_test_images_would_be_noticed(fitted):
    """The canary dies: with the test split opened for choosing the two posteriors differ."""
    same, other = fitted("digits", "scaled", leak=True)
    assert same.posterior_file.read_bytes() != other.posterior_file.read_bytes()
