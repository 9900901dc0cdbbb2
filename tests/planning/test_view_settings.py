"""A run's view: the dataset's own, some options of it changed, or another by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from probmetric.config import ConfigError, Method, Params, load, parse
from probmetric.data.views import source_view
from probmetric.planning.expansion import Point, find_run, resolve

ROOT = Path(__file__).parents[2]


@pytest.fixture
def params(monkeypatch) -> Params:
    monkeypatch.chdir(ROOT)
    return load(Params, "params.yaml")


def view(params, spec=None, dataset="cub", **rest):
    methods = {"m": parse(Method, {"loss": "cosine"} | (spec or {}), "m")}
    return resolve(params, methods, Point(dataset=dataset, method="m", **rest)).settings.view


def test_without_a_word_it_is_the_datasets_own(params):
    assert view(params).name == "photos"
    found = find_run(params, "digits/arcface/seed0").settings
    assert found.plain()["view"] == source_view("digits")


def test_options_without_a_name_change_the_datasets_own_view(params):
    changed = view(params, {"view": {"size": 128}, "training": {"augment": "vmf"}}, "cars-vmf")
    assert (changed.name, changed.options["size"]) == ("photos", 128)
    assert changed.options["jitter"] == [0.3, 0.3, 0.3, 0.1]
    assert view(params, {"view": {"shift": 1}}, "glyphs").options == {"shift": 1, "rotation": 10.0, "scale": 0.12}


def test_a_named_view_has_its_own_defaults(params):
    found = view(params, {"view": {"name": "photos", "size": 384, "flip": False}}, "glyphs")
    assert (found.name, found.options) == ("photos", {"size": 384, "flip": False})


def test_naming_the_datasets_own_view_keeps_what_the_dataset_declares(params):
    """Frozen features and heads of photographs of places see the same images: whole ones."""
    whole = {"resize": 0, "crop": False, "flip": False, "size": 128}
    assert view(params, {"view": {"name": "photos", "size": 128}}, "photos-places").options == whole
    cropped = {"name": "photos", "size": 128, "crop": True}
    assert view(params, {"view": cropped}, "photos-places").options == whole | {"crop": True}
    runs = ("frozen/seed0", "contrastive+preset=photos/seed0")
    frozen, head = (find_run(params, f"photos-places/{run}").settings.view for run in runs)
    assert frozen == head


def test_an_override_makes_any_run_small(params):
    methods = {"m": parse(Method, {"loss": "cosine"}, "m")}
    run = resolve(params, methods, Point(dataset="cub", method="m", overrides={"view.size": 64, "view.resize": 80}))
    assert run.name == "cub/m+view.resize=80+view.size=64/seed0"
    assert run.settings.view.options == {"size": 64, "resize": 80}
    assert run.settings.plain()["view"] == {"name": "photos", "options": {"size": 64, "resize": 80}}
    assert run.encoder == run.name


def test_defaults_hold_for_every_method(params):
    smaller = params.model_copy(
        update={"defaults": parse(type(params.defaults), {"view": {"name": "photos", "size": 96}}, "defaults")}
    )
    assert view(smaller).options == {"size": 96}
    assert view(smaller, {"view": {"size": 32}}).options == {"size": 32}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"view": {"name": "photo"}}, "unknown view 'photo': did you mean 'photos'"),
        ({"view": {"name": "photos", "sise": 2}}, "view 'photos' has no option 'sise': did you mean 'size'"),
        ({"view": {"shift": 2}}, "view 'photos' has no option 'shift'"),
        ({"view": {"size": "big"}}, r"view 'photos': option 'size' is 'big' \(str\); expected int"),
        ({"view": {"scale": [0.5]}}, r"option 'scale' is \[0\.5\]; expected a list of 2 numbers"),
        ({"view": {"jitter": [0.1, 0.1, 0.1]}}, r"option 'jitter' is .*; expected a list of 4 numbers"),
        ({"view": {"jitter": ["a", 0, 0, 0]}}, r"option 'jitter' is .*; expected a list of 4 numbers"),
        ({"view": {"jitter": [-1, 0, 0, 0]}}, r"option 'jitter' is .*; allowed: a number at least 0"),
        ({"view": {"ratio": [0, 1]}}, r"option 'ratio' is \[0, 1\]; allowed: a number above 0"),
        ({"view": {"mean": [0.5, 0.5], "std": [1, 1]}}, r"option 'mean' is .*; expected a list of 0 or 1 or 3 numbers"),
        ({"view": {"mean": [0.5] * 3, "std": [1, 0, 1]}}, r"option 'std' is .*; allowed: a number above 0"),
        ({"view": {"name": "small", "mean": [0.5], "std": [0]}}, r"option 'std' is \[0\]; allowed: a number above 0"),
    ],
)
def test_wrong_views_are_answered(params, spec, message):
    with pytest.raises(ConfigError, match=message):
        view(params, spec)


def test_a_borrowed_encoder_keeps_its_view(params):
    methods = {
        "own": parse(Method, {"loss": "cosine", "view": {"size": 64}}, "own"),
        "m": parse(Method, {"base": "own", "uncertainty": "laplace"}, "m"),
    }
    assert resolve(params, methods, Point(dataset="cub", method="m")).settings.encoder().view.options == {"size": 64}
    with pytest.raises(ConfigError, match="`base: own` brings that method's encoder; remove view"):
        parse(Method, {"base": "own", "view": {"size": 2}}, "m")
