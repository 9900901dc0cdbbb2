"""Methods: inheritance, what holds on one dataset, presets, one namespace over all files; names of metrics."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from probmetric.config import ConfigError, Experiment, Method, Params, Preset, Training, load, parse
from probmetric.config.settings import LearningRates
from probmetric.io import write_yaml
from probmetric.metrics import metric_names
from probmetric.planning.expansion import PlannedExperiment, Point, expand, plan_experiment, resolve
from probmetric.planning.experiments import Substitution, load_experiment, methods_with, shared_methods
from probmetric.planning.workflow import check_metrics, check_report
from probmetric.runs.names import table_of

ROOT = Path(__file__).parents[2]
METHODS = {
    "parent": {
        "loss": {"name": "proxy_anchor", "scale": 16.0},
        "dim": 32,
        "training": {"epochs": 9, "learning_rate": 0.5},
        "per_dataset": {"digits": {"training.epochs": 3, "loss.scale": 8.0}},
    },
    "child": {"like": "parent", "label": "Child", "change": {"loss.margin": 0.3, "training.learning_rate": 0.25}},
    "grandchild": {
        "like": "child",
        "change": {"fidelity": "as_published", "training.epochs": 5},
        "per_dataset": {"digits": {"training.epochs": 2}},
    },
    "other_loss": {"like": "child", "change": {"loss": {"name": "cosine", "scale": 4.0}, "backbone.width": 8}},
    "posthoc": {"base": "child", "uncertainty": "laplace", "per_dataset": {"digits": {"uncertainty.samples": 7}}},
}


@pytest.fixture
def params(monkeypatch) -> Params:
    monkeypatch.chdir(ROOT)
    return load(Params, "params.yaml")


def methods(**more) -> dict[str, Method]:
    return {name: parse(Method, spec, name) for name, spec in (METHODS | more).items()}


def settings(params, method, dataset="glyphs", **rest):
    return resolve(params, methods(), Point(dataset=dataset, method=method, **rest)).settings


def test_a_project_without_experiments_is_told_how_one_is_written(tmp_path):
    with pytest.raises(ConfigError, match="has none; `probmetric init photos/` writes one"):
        load_experiment("demo", tmp_path)


def test_a_method_is_like_another_apart_from_what_it_changes(params):
    child = settings(params, "child")
    assert child.loss.options == {"scale": 16.0, "margin": 0.3}
    assert (child.dim, child.training.epochs, child.training.learning_rate) == (32, 9, 0.25)
    assert child.label == "Child"


def test_a_method_goes_without_the_weights_that_the_others_start_from(params):
    params = params.model_copy(update={"defaults": params.defaults.model_copy(update={"pretrained": True})})
    bare = methods(bare={"loss": "cosine", "pretrained": False})
    made = {name: resolve(params, bare, Point(dataset="glyphs", method=name)).settings for name in ("bare", "parent")}
    assert (made["bare"].pretrained, made["parent"].pretrained) == (False, True)
    with pytest.raises(ConfigError, match="`like: parent` copies that method; under `change` write pretrained"):
        methods(like={"like": "parent", "pretrained": False})


def test_what_holds_on_one_dataset_holds_there_only(params):
    assert settings(params, "parent").loss.options["scale"] == 16.0
    assert settings(params, "child", "digits").loss.options["scale"] == 8.0
    assert settings(params, "child", "digits").training.epochs == 3
    assert settings(params, "child", "digits", noise=0.2).training.epochs == 3
    assert settings(params, "child", "digits+nearest0.2").training.epochs == 3, "wrong labels are no other dataset"


def test_a_change_counts_over_what_it_inherits_and_its_own_dataset_over_both(params):
    assert settings(params, "grandchild").training.epochs == 5
    assert settings(params, "grandchild", "digits").training.epochs == 2
    assert settings(params, "grandchild").loss.options["fidelity"] == "as_published"


def test_a_component_can_be_replaced_and_the_default_backbone_changed(params):
    found = settings(params, "other_loss")
    assert (found.loss.name, found.loss.options) == ("cosine", {"scale": 4.0})
    assert found.backbone.options == {"width": 8}


def test_a_borrowed_encoder_keeps_its_own_settings(params):
    found = settings(params, "posthoc", "digits")
    assert found.uncertainty.options == {"samples": 7}
    assert found.encoder() == settings(params, "child", "digits").encoder()


def test_a_borrowed_encoder_is_evaluated_as_its_base_unless_the_method_says_otherwise(params):
    """K-means of thousands of people, which the base leaves out, was run for what is fitted to it."""
    base = {"like": "child", "change": {"evaluation.clustering": False, "evaluation.proxies": True}}
    fitted = {"base": "quick", "uncertainty": "laplace", "change": {"evaluation.proxies": False}}
    resolved = resolve(params, methods(quick=base, fitted=fitted), Point(dataset="glyphs", method="fitted")).settings
    assert (resolved.evaluation.clustering, resolved.evaluation.proxies) == (False, False)


def test_an_override_of_the_fidelity_reaches_the_components(params):
    found = settings(params, "parent", overrides={"fidelity": "as_published"})
    assert found.loss.options["fidelity"] == "as_published"


def test_a_preset_replaces_backbone_and_training_but_not_the_method(params):
    found = settings(params, "child", overrides={"preset": "tiny", "loss.scale": 2.0})
    assert found.backbone.name == "compact"
    assert found.training.epochs == 1
    assert found.training.learning_rate == 0.001
    assert found.loss.options == {"scale": 2.0, "margin": 0.3}
    assert settings(params, "posthoc", overrides={"preset": "tiny"}).uncertainty.options["samples"] == 4


def test_a_mapping_in_a_preset_leaves_what_it_does_not_name_and_null_resets(params):
    merging = parse(Preset, {"set": {"training": {"epochs": 2, "learning_rates": {"head": 0.1}}}}, "p")
    params = params.model_copy(update={"presets": {"merging": merging, "tiny": params.presets["tiny"]}})
    spec = {"loss": "cosine", "training": {"sampler": "pairs", "learning_rates": {"trunk": 0.2}}}
    made = {
        name: resolve(params, methods(m=spec), Point(dataset="glyphs", method="m", overrides={"preset": name})).settings
        for name in params.presets
    }
    assert made["merging"].training.epochs == 2
    assert made["merging"].training.sampler == "pairs"
    assert made["merging"].training.learning_rates == LearningRates(trunk=0.2, head=0.1)
    assert made["tiny"].training == Training(
        epochs=1, steps_per_epoch=4, batch_size=64, images_per_class=4, learning_rate=0.001
    )


def test_an_option_that_no_component_has_is_refused_in_a_preset(params):
    wrong = parse(Preset, {"set": {"uncertainty.sampels": 4}}, "p")
    params = params.model_copy(update={"presets": {"p": wrong}})
    with pytest.raises(
        ConfigError, match=r"presets\.p: no uncertainty has the option of 'uncertainty\.sampels': did you"
    ):
        resolve(params, methods(), Point(dataset="glyphs", method="child", overrides={"preset": "p"}))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("loss.scal", "has no option 'scal': did you mean 'scale'"),
        ("training.epoch", "unknown key. did you mean 'epochs'"),
        ("los.scale", "changes no setting"),
        ("loss.scale", "option 'scale' is -1.0; allowed: a number above 0"),
    ],
)
def test_what_a_search_cannot_search_is_said_before_any_training(params, key, message):
    spec = {"title": "t", "runs": [{"datasets": ["digits"], "methods": ["m"]}]}
    searched = methods(m={"loss": "arcface", "search": {key: {"low": -1, "high": 2}}})
    with pytest.raises(ConfigError, match=rf"^methods\.m\.search\.{key}: .*{message}"):
        expand(params, searched, parse(Experiment, spec, "t"))


WRONG = {
    "circle": ({"a": {"like": "b"}, "b": {"like": "a"}}, "a", "leads in a circle to 'a'"),
    "unknown parent": ({"a": {"like": "chidl"}}, "a", "did you mean 'child'"),
    "change that reaches nothing": ({"a": {"like": "child", "change": {"los.scale": 1}}}, "a", "changes no setting"),
    "change of a borrowed encoder": ({"a": {"like": "posthoc", "change": {"dim": 8}}}, "a", "belongs to the encoder"),
    "dataset of per_dataset": (
        {"a": {"per_dataset": {"digitz": {}}}},
        "a",
        r"a.per_dataset: 'digitz' is no dataset: did",
    ),
    "dataset of a parent": ({"b": {"per_dataset": {"digitz": {}}}, "a": {"like": "b"}}, "a", "did you mean 'digits'"),
    "dataset of tuned_on": ({"a": {"tuned_on": "glyph"}}, "a", r"a.tuned_on: 'glyph' is no dataset: did you mean 'gl"),
    "base without encoder": ({"a": {"base": "posthoc"}}, "a", "name 'child'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_definitions_stop_with_the_fix(params, case):
    more, name, message = WRONG[case]
    with pytest.raises(ConfigError, match=message):
        resolve(params, methods(**more), Point(dataset="glyphs", method=name))


def test_with_like_nothing_else_is_given():
    with pytest.raises(ConfigError, match="copies that method; under `change` write dim"):
        parse(Method, {"like": "child", "dim": 8}, "m.yaml")


def test_one_name_means_one_method_in_all_files(params, tmp_path):
    write_yaml(tmp_path / "first.yaml", {"mine": METHODS["parent"]})
    write_yaml(tmp_path / "second.yaml", {"mine": METHODS["parent"]})
    assert shared_methods(params, tmp_path)["mine"].dim == 32
    write_yaml(tmp_path / "second.yaml", {"mine": METHODS["parent"] | {"dim": 16}})
    with pytest.raises(ConfigError, match=r"methods.mine: defined differently in .*first.yaml and in .*second.yaml"):
        shared_methods(params, tmp_path)


def test_experiments_cannot_redefine_a_shared_method(params, tmp_path):
    spec = {"title": "t", "runs": [{"datasets": ["glyphs"], "methods": ["cosine"]}], "methods": {"cosine": {"dim": 8}}}
    with pytest.raises(ConfigError, match=r"in params.yaml and in workflow/experiments/mine.yaml"):
        methods_with(params, {"mine": parse(Experiment, spec, "mine.yaml")}, tmp_path)


def test_a_substitution_is_read_from_the_name():
    assert Substitution.parse("demo") is None
    assert Substitution.parse("pfml/table2@glyphs") == Substitution("pfml/table2", "glyphs", "small")
    assert Substitution.parse("pfml/table2@glyphs+tiny") == Substitution("pfml/table2", "glyphs", "tiny")


def test_a_substitution_takes_the_length_of_training_from_its_preset_and_keeps_the_label_noise(params):
    """Of `calibration@glyphs` 144 runs trained for 90 epochs below a page that says 15."""
    grid = {"datasets": ["cub+nearest0.2", "cub"], "methods": ["arcface"], "seeds": [0]}
    chosen = {"training.epochs": 90, "training.sampler": ["pairs", "balanced"]}
    spec = parse(Experiment, {"title": "t", "runs": [grid | {"set": chosen}]}, "t")
    merging = parse(Preset, {"set": {"training": {"epochs": 15}}}, "p")
    for preset in (params.presets["small"], merging):
        small = params.model_copy(update={"presets": {"small": preset}})
        made = expand(small, methods_with(small, {}), Substitution("t", "glyphs").apply(small, spec))
        assert [run.name for run in made] == [
            f"{data}/arcface+preset=small+training.sampler={sampler}/seed0"
            for data in ("glyphs+nearest0.2", "glyphs")
            for sampler in ("pairs", "balanced")
        ]
        assert {run.settings.training.epochs for run in made} == {15}


@pytest.mark.parametrize("name", ["Mine", "mine.2", "a/b/mine", "mine@glyphs+Small"])
def test_an_experiment_that_no_rule_builds_is_refused_with_the_form(params, monkeypatch, tmp_path, name):
    file = tmp_path / f"workflow/experiments/{table_of(name)}.yaml"
    file.parent.mkdir(parents=True)
    write_yaml(file, {"title": "t", "runs": [{"datasets": ["glyphs"], "methods": ["cosine"]}]})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=f"'{re.escape(name)}' cannot be built.* may hold lower-case letters, digits, - and _"
    ):
        plan_experiment(params, name)


def test_a_table_is_repeated_with_other_selections_of_epochs(params):
    assert table_of("pfml/table1+refit") == table_of("pfml/table1@glyphs+tiny") == "pfml/table1"
    plain = plan_experiment(params, "nir/table1").runs
    both = plan_experiment(params, "nir/table1+refit+as_published").runs
    assert both[: len(plain)] == plain
    assert len(both) == 3 * len(plain)
    chosen = [run.settings.training.selection for run in both]
    assert chosen == ["validation"] * len(plain) + ["refit"] * len(plain) + ["as_published"] * len(plain)
    assert len({run.name for run in both}) == len(both)


def test_what_trains_nothing_is_not_repeated(params):
    found = plan_experiment(params, "demo+refit").runs
    assert {run.settings.method for run in found if run.settings.training.selection == "refit"} == {
        run.settings.method for run in plan_experiment(params, "demo").runs
    } - {"raw_pixels", "pixel_noise", "pixel_contrast", "untrained"}


def test_what_an_experiment_asks_to_be_fitted_is_planned(params, tmp_path, monkeypatch):
    """Runs without epochs that an experiment itself asks for were left out; of those added by name, LDA."""
    path = tmp_path / "workflow/experiments/fitted.yaml"
    path.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    lda = {"training": {"epochs": 0, "head_init": "lda"}}
    grid = {"datasets": ["digits"], "methods": ["lda", "untrained"], "seeds": [0]}
    write_yaml(path, {"title": "t", "methods": {"lda": lda}, "runs": [grid | {"set": {"training.selection": "refit"}}]})
    refit = [f"digits/{name}+training.selection=refit/seed0" for name in ("lda", "untrained")]
    assert [run.name for run in plan_experiment(params, "fitted").runs] == refit
    write_yaml(path, {"title": "t", "methods": {"lda": lda}, "runs": [grid]})
    added = ["digits/lda/seed0", "digits/untrained/seed0", refit[0]]
    assert [run.name for run in plan_experiment(params, "fitted+refit").runs] == added


def test_an_unknown_selection_is_answered(params):
    with pytest.raises(ConfigError, match=r"'pfml/table1\+refitt' adds 'refitt': did you mean 'refit'"):
        plan_experiment(params, "pfml/table1+refitt")


@pytest.mark.parametrize(
    ("metric", "switch"),
    [
        ("train/structure/density", "training_images"),
        ("structure/proxy_w1", "proxies"),
        ("clustering/nmi", "clustering"),
    ],
)
def test_a_metric_that_every_run_leaves_out_is_told_before_any_job(params, metric, switch):
    for on in (True, False):
        grid = {"datasets": ["digits"], "methods": ["proxy_anchor"], "set": {f"evaluation.{switch}": on}}
        spec = parse(Experiment, {"title": "t", "metrics": [metric], "runs": [grid]}, "t")
        planned = PlannedExperiment(spec, tuple(expand(params, methods_with(params, {}), spec)), {})
        message = f"metric '{metric}' is measured where evaluation.{switch} is true"
        with contextlib.nullcontext() if on else pytest.raises(ConfigError, match=message):
            check_report(params, "t", planned)


MISSPELT = [
    ("retrieval/recal_at_1", "did you mean 'retrieval/recall_at_1'"),
    ("retrieval/recall_at_3", "needs 3 in evaluation.ks"),
    ("clusterin/nmi", "did you mean 'clustering/nmi'"),
    ("ood/cars/auroc", "sets: symbols"),
    ("ood/symbols/auroq", "'auroq' is not measured"),
    ("ausc", "nothing computes metric 'ausc'"),
]


@pytest.mark.parametrize(("name", "message"), MISSPELT)
def test_a_metric_nothing_computes_is_answered_with_the_nearest(name, message):
    with pytest.raises(ConfigError, match=message):
        check_metrics("here", [name], ks=(1, 2), ood=["symbols"])


def test_metrics_that_are_computed_pass():
    check_metrics("here", metric_names((1, 2), ["symbols"]), ks=(1, 2), ood=["symbols"])


def test_a_mistake_in_a_change_names_its_method(params):
    wrong = methods(wrong={"like": "parent", "change": {"trainig.epochs": 3}})
    with pytest.raises(ConfigError, match=r"^methods\.wrong: override 'trainig.epochs' changes no setting"):
        resolve(params, wrong, Point(dataset="glyphs", method="wrong"))


def test_a_mapping_in_a_change_leaves_what_it_does_not_name(params):
    """The learning rate fell to the default of the class, .001 for .25."""
    more = methods(
        mapped={"like": "child", "change": {"training": {"epochs": 20}}},
        here={"like": "child", "per_dataset": {"digits": {"training": {"epochs": 20}, "evaluation": {"seed": 3}}}},
    )
    for name, dataset in (("mapped", "glyphs"), ("here", "digits")):
        made = resolve(params, more, Point(dataset=dataset, method=name)).settings
        assert (made.training.epochs, made.training.learning_rate) == (20, 0.25)
        assert made.evaluation.ks == settings(params, "child").evaluation.ks
