"""Configuration errors say where, the value, what is allowed and the nearest match, without loading PyTorch."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from probmetric.config import (
    ConfigError,
    EncoderSettings,
    Evaluation,
    Experiment,
    Grid,
    Method,
    Params,
    RunSettings,
    SearchRange,
    Training,
    Tuning,
    load,
    parse,
)
from probmetric.io import read_yaml
from probmetric.planning.workflow import write_schemas

ROOT = Path(__file__).parents[2]


@pytest.fixture
def params() -> dict:
    return read_yaml(ROOT / "params.yaml")


def test_repository_configuration_is_valid(params):
    assert parse(Params, params, "params.yaml").experiments == ("demo",)


@pytest.mark.parametrize("path", sorted((ROOT / "workflow/experiments").rglob("*.yaml")), ids=lambda path: path.stem)
def test_experiment_files_are_valid(path):
    assert load(Experiment, path).title


WRONG = [
    ({"methodz": {}}, ["methodz", "did you mean 'methods'"]),
    ({"datasets": ["digitz"]}, ["digitz", "did you mean 'digits'", "glyphs"]),
    ({"noise": {"datasets": ["glyphs"], "variants": ["noise1.4"]}}, ["noise.variants", "'noise1.4'", "between 0"]),
    ({"noise": {"datasets": ["glyphs"], "variants": ["uniform0.20"]}}, ["is written 'noise0.2'"]),
    ({"noise": {"datasets": ["sop"], "variants": ["noise0.2"]}}, ["noise.datasets", "sop"]),
    ({"data": {"on_request": {"a": {"source": "cubb"}}}}, ["data.on_request.a", "did you mean 'cub'"]),
    ({"data": {"on_request": {"a": {"source": "cub", "protokol": "vmf"}}}}, ["did you mean 'protocol'"]),
    ({"data": {"on_request": {"digits": {"source": "digits"}}}}, ["'digits' is in `datasets` and in"]),
    ({"ood": {"digits": ["digits"]}}, ["ood.digits names 'digits' itself", "name other datasets"]),
    ({"datasets": "digits"}, ["datasets: should be a list, as in [a, b] (found 'digits')"]),
    ({"data": {"prepared": "~/data"}}, ["data.prepared", "'~/data' has one of ~ $ { }, which are not expanded"]),
    ({"methods": {"a": {"loss": "proxy_anchr"}}}, ["methods.a.loss", "did you mean 'proxy_anchor'"]),
    ({"methods": {"a": {"loss": {"name": "proxy_anchor", "scal": 1}}}}, ["'scal'", "did you mean 'scale'"]),
    ({"methods": {"a": {"loss": {"name": "proxy_anchor", "scale": "high"}}}}, ["'scale'", "'high'", "float"]),
    ({"methods": {"a": {"uncertainty": "laplac"}}}, ["did you mean 'laplace'"]),
    ({"methods": {"a": {"base": "b"}}}, ["methods.a.base", "'b'"]),
    ({"methods": {"a": {"training": {"epoch": 3}}}}, ["methods.a.training.epoch", "did you mean 'epochs'"]),
    ({"defaults": {"backbone": "compakt"}}, ["did you mean 'compact'"]),
    ({"defaults": {"training": {"epochs": -1}}}, ["defaults.training.epochs", "-1", "greater than or equal to 0"]),
    ({"defaults": {"dim": 1}}, ["params.yaml: defaults.dim: an embedding has 2 to 65,536 numbers, not 1; or write"]),
    ({"defaults": {"dim": 10**12}}, ["defaults.dim: an embedding has 2 to 65,536 numbers, not 1000000000000"]),
    (
        {"defaults": {"training": {"epochs": True}}},
        ["defaults.training.epochs: found True, which is yes or no; write"],
    ),
    ({"defaults": {"training": {"learning_rates": {"head": True}}}}, ["learning_rates.head: found True, which is yes"]),
    ({"evaluation": {"ks": [True, 2]}}, ["evaluation.ks: found [True, 2], which is yes or no"]),
    ({"data": {"seed": False}}, ["data.seed: found False, which is yes or no"]),
    ({"methods": {"a": {"training": {"gradient_clip": True}}}}, ["methods.a.training.gradient_clip: found True"]),
    ({"methods": {"a": {"search": {"dim": {"low": True, "high": 9}}}}}, ["methods.a.search.dim.low: found True"]),
    ({"presets": {"a": {"seeds": True, "set": {"dim": 3}}}}, ["presets.a.seeds: found True"]),
    ({"evaluation": {"ks": [0]}}, ["evaluation.ks.0", "greater than or equal to 1", "found 0"]),
]


@pytest.mark.parametrize(("change", "expected"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_settings_are_named_with_the_fix(params, change, expected):
    with pytest.raises(ConfigError) as error:
        parse(Params, params | change, "params.yaml")
    for text in expected:
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (Grid, {"datasets": ["digits"], "methods": ["m"], "seeds": [True]}),
        (Grid, {"datasets": ["digits"], "methods": ["m"], "noise": False}),
        (Tuning, {"title": "t", "dataset": "digits", "methods": ["m"], "trials": True}),
    ],
)
def test_yes_and_no_are_no_numbers(model, values):
    with pytest.raises(ConfigError, match="which is yes or no; write a number"):
        parse(model, values, "test.yaml")


def test_yes_and_no_stay_where_they_are_meant():
    assert parse(SearchRange, {"choices": [True, False]}, "t").choices == (True, False)
    assert parse(Method, {"pretrained": True, "training": {"nesterov": True}}, "t").pretrained is True


def test_a_method_with_a_base_may_not_describe_an_encoder(params):
    params["methods"]["laplace"] = {"base": "contrastive", "loss": "cosine", "uncertainty": "laplace"}
    with pytest.raises(ConfigError, match="remove loss"):
        parse(Params, params, "params.yaml")


def test_settings_survive_json(params):
    settings = RunSettings(dataset="digits", method="cosine", loss={"name": "proxy_nca_pp", "fidelity": "as_published"})
    assert RunSettings(**json.loads(json.dumps(settings.plain()))) == settings
    assert isinstance(settings.encoder(), EncoderSettings)


def test_checking_a_configuration_does_not_load_torch():
    code = (
        "import sys; from probmetric.config import Params, load; load(Params, 'params.yaml'); "
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_committed_schemas_are_current(tmp_path):
    for path in write_schemas(tmp_path):
        committed = ROOT / "workflow/schemas" / path.name
        assert path.read_text() == committed.read_text(), "run `make schemas`"


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("learning_rate", math.inf, "finite number"),
        ("learning_rate", math.nan, "finite number"),
        ("learning_rate", 1e30, "less than or equal to 10000"),
        ("weight_decay", math.inf, "finite number"),
        ("weight_decay", 1e30, "less than or equal to 10000"),
        ("gradient_clip", math.inf, "finite number"),
        ("epochs", 10**30, "less than or equal to 1000000"),
        ("steps_per_epoch", 10**30, "less than or equal to 1000000"),
        ("batch_size", 10**30, "less than or equal to 1048576"),
        ("milestones", [-3], "greater than or equal to 0"),
    ],
)
def test_numbers_of_training_out_of_range_are_refused_by_name(option: str, value: object, allowed: str):
    with pytest.raises(ConfigError, match=rf"x.yaml: {option}.*{allowed}.*found"):
        parse(Training, {option: value}, "x.yaml")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"milestones": [5]}, "schedule: multistep and milestones belong together"),
        ({"schedule": "multistep"}, "schedule: multistep and milestones belong together"),
        (
            {"freeze": "trunk", "learning_rates": {"trunk": 1e-6}},
            "with freeze: trunk, learning_rates.trunk has no effect",
        ),
        ({"freeze": "trunk", "layer_decay": 0.75}, "with freeze: trunk, layer_decay has no effect"),
    ],
)
def test_settings_of_training_that_would_do_nothing_are_refused(values: dict[str, object], says: str):
    with pytest.raises(ConfigError, match=says):
        parse(Training, values, "x.yaml")


@pytest.mark.parametrize(("option", "value"), [("seed", 2**40), ("calibration_bins", 10**30), ("ks", [10**30])])
def test_numbers_of_the_evaluation_out_of_range_are_refused_by_name(option: str, value: object):
    with pytest.raises(ConfigError, match=rf"x.yaml: {option}.*less than or equal to.*found"):
        parse(Evaluation, {option: value}, "x.yaml")


def test_one_number_is_no_list_of_seeds():
    with pytest.raises(
        ConfigError, match=r"x.yaml: seeds: 3 is no list of seeds; write \[3\] for seed 3, or \[0, 1, 2\]"
    ):
        parse(Grid, {"datasets": ["digits"], "methods": ["m"], "seeds": 3}, "x.yaml")
    assert parse(Grid, {"datasets": ["digits"], "methods": ["m"], "seeds": [3]}, "x.yaml").seeds == (3,)


@pytest.mark.parametrize("empty", [{"noise": []}, {"set": {"dim": []}}])
def test_an_empty_list_that_would_plan_no_run_is_refused(empty):
    with pytest.raises(ConfigError, match=r"x.yaml: (noise|set\.dim): should have at least 1 item"):
        parse(Grid, {"datasets": ["digits"], "methods": ["m"], **empty}, "x.yaml")


def test_an_experiment_without_a_metric_could_not_be_reported():
    runs = [{"datasets": ["digits"], "methods": ["cosine"]}]
    with pytest.raises(ConfigError, match=r"e\.yaml: metrics: should have at least 1 item"):
        parse(Experiment, {"title": "t", "runs": runs, "metrics": []}, "e.yaml")


@pytest.mark.parametrize("command", ["experiments", "schema"])
def test_outside_a_project_folder_the_command_says_so(tmp_path, monkeypatch, capsys, command):
    from probmetric import cli

    monkeypatch.chdir(tmp_path)
    assert cli.main([command]) == 2
    assert not list(tmp_path.iterdir())
    assert f"there is no params.yaml in {tmp_path}; run this command inside a project folder" in capsys.readouterr().err


def test_one_wrong_entry_gives_one_line():
    """What holds it was then said to be empty, too."""
    for seeds, said in (([-1], "runs.0.seeds.0: "), ([], "runs.0.seeds: should have at least 1 item")):
        runs = [{"datasets": ["digits"], "methods": ["cosine"], "seeds": seeds}]
        with pytest.raises(ConfigError) as told:
            parse(Experiment, {"title": "t", "runs": runs, "metrics": ["retrieval/recall_at_1"]}, "e.yaml")
        assert said in str(told.value)
        assert "\n" not in str(told.value)
