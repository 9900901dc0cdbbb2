"""What a component cannot do is said while planning, not after training; what classes declare is what they do."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from probmetric.config import ConfigError, DataFolders, Experiment, Method, Params, load, parse
from probmetric.losses import REGISTRY, create_loss, list_losses
from probmetric.planning.capabilities import UnsuitableError
from probmetric.planning.expansion import Point, expand, resolve

ROOT = Path(__file__).parents[2]


@pytest.fixture
def params(monkeypatch) -> Params:
    monkeypatch.chdir(ROOT)
    return load(Params, "params.yaml")


def plan(params, methods, method="m", dataset="digits"):
    found = {name: parse(Method, spec, name) for name, spec in methods.items()}
    return resolve(params, found, Point(dataset=dataset, method=method))


REFUSED = [
    (
        {"loss": "triplet", "training": {"batch_size": 10, "images_per_class": 4}},
        "training.batch_size 10 is not a multiple of training.images_per_class 4; nearest allowed: 8",
    ),
    (
        {"loss": "triplet", "training": {"batch_size": 9, "sampler": "pairs"}},
        "training.batch_size 9: with the sampler 'pairs' it must be even",
    ),
    (
        {
            "loss": "triplet",
            "backbone": "bn_inception",
            "view": {"name": "photos", "mean": [0.5] * 3, "std": [1.0] * 3},
        },
        r"view.mean \[0.5, 0.5, 0.5\]: backbone 'bn_inception' converts images",
    ),
    (
        {"loss": "triplet", "view": "vectors"},
        "view 'vectors' reads vectors, but digits holds images; use photos",
    ),
    ({"loss": "triplet", "backbone": "vectors"}, "backbone 'vectors' reads vectors, but digits holds images; use bn_"),
    (
        {"loss": "triplet", "change": {"evaluation.proxies": True}},
        "evaluation.proxies: loss 'triplet' has no proxies; set evaluation.proxies: false",
    ),
    (
        {"training": {"epochs": 0}, "change": {"evaluation.proxies": True}},
        "evaluation.proxies: a network without loss has no proxies",
    ),
    (
        {"loss": "proxy_nca", "objective": "mc_dropout", "change": {"evaluation.proxies": True}},
        "evaluation.proxies: objective 'mc_dropout' hides the loss's proxies",
    ),
    (
        {"loss": "proxy_anchor", "training": {"selection_metric": "accuracy"}},
        "selection_metric 'accuracy': loss 'proxy_anchor' is no classifier",
    ),
    ({"loss": "margin", "uncertainty": "softmax"}, "uncertainty 'softmax' needs class probabilities; loss 'margin'"),
    (
        {"loss": "cosine", "objective": "hib", "uncertainty": "softmax"},
        "needs class probabilities; objective 'hib', which takes the loss's place, is no classifier",
    ),
    ({"loss": "cosine", "uncertainty": "hib"}, "uncertainty 'hib' is learnt while training; set the objective to"),
    ({"training": {"epochs": 0}, "uncertainty": "temperature"}, "needs class probabilities; a network without loss"),
    (
        {"loss": "proxy_nca", "uncertainty": "temperature", "training": {"selection": "refit"}},
        "uncertainty 'temperature' is fitted on validation images, but training.selection 'refit' trains on them too",
    ),
    (
        {
            "loss": "proxy_nca",
            "uncertainty": {"name": "laplace", "prior": "validation"},
            "training": {"selection": "as_published"},
        },
        "uncertainty 'laplace' is fitted on validation images, but training.selection 'as_published'",
    ),
    ({"loss": "cosine", "backbone": "pixels", "objective": "mc_dropout"}, "objective 'mc_dropout' needs a linear head"),
    (
        {"loss": "cosine", "uncertainty": {"name": "mc_dropout", "rate": 0}},
        "uncertainty 'mc_dropout' with rate 0 needs dropout in the network",
    ),
    (
        {"loss": "cosine", "backbone": {"name": "timm", "head": "none"}, "uncertainty": "laplace"},
        "uncertainty 'laplace' needs a linear head; backbone 'timm' has none",
    ),
    (
        {"training": {"epochs": 0, "head_init": "lda"}, "backbone": {"name": "timm", "head": "none"}},
        "training.head_init 'lda' starts a linear head; backbone 'timm' has none",
    ),
]
UNREAD = [
    ({}, "without a loss nothing is trained; set `loss`, or `training: {epochs: 0}`"),
    ({"like": "trained", "change": {"loss": None}}, "without a loss nothing is trained"),
    (
        {"loss": "triplet", "training": {"momentum": 0.5}},
        "training.momentum does nothing with training.optimizer 'adam'; .* set training.optimizer to sgd or rmsprop",
    ),
    (
        {"loss": "triplet", "training": {"nesterov": True, "optimizer": "rmsprop"}},
        "training.nesterov does nothing with training.optimizer 'rmsprop'",
    ),
    ({"like": "trained", "change": {"training.gamma": 0.5}}, "training.gamma does nothing with training.schedule 'co"),
    (
        {"loss": "triplet", "training": {"schedule": "exponential", "plateau_patience": 3}},
        "training.plateau_patience does nothing with training.schedule 'exponential'",
    ),
    (
        {"loss": "triplet", "training": {"sampler": "shuffle", "images_per_class": 8}},
        "training.images_per_class does nothing with training.sampler 'shuffle'",
    ),
    (
        {"like": "trained", "change": {"training": {"sampler": "pairs", "images_per_class": 8}}},
        "training.images_per_class does nothing with training.sampler 'pairs'; .* set training.sampler to balanced or ",
    ),
    (
        {"loss": "triplet", "training": {"schedule": "multistep", "milestones": [5, 45]}},
        "training.milestones does nothing with training.epochs 45; name epochs below it",
    ),
    (
        {"like": "scheduled", "change": {"training.epochs": 9}},
        "training.milestones does nothing with training.epochs 9",
    ),
    (
        {"training": {"epochs": 0, "head_init": "lda", "learning_rate": 0.1}},
        "training.learning_rate does nothing with training.epochs 0; leave it out, or set training.epochs to 1 or more",
    ),
    (
        {"training": {"epochs": 0, "learning_rates": {"trunk": 0.1}}},
        "training.learning_rates.trunk does nothing with training.epochs 0",
    ),
    (
        {"like": "trained", "change": {"training": {"epochs": 0, "weight_decay": 0}}},
        "training.weight_decay does nothing with training.epochs 0",
    ),
    (
        {"loss": "hyperbolic", "training": {"proxy_init": "class_means"}},
        "training.proxy_init does nothing with loss 'hyperbolic', which has no proxies or class weights; leave it out",
    ),
    ({"like": "trained", "change": {"training.warmup_epochs": 1}}, "training.warmup_epochs does nothing with a net"),
    (
        {
            "loss": "cosine",
            "backbone": {"name": "timm", "head": "none"},
            "training": {"learning_rates": {"head": 0.1}},
        },
        "training.learning_rates.head does nothing with a backbone without head",
    ),
    (
        {"loss": {"name": "cosine", "scale": 5}, "objective": "hib"},
        "loss.scale does nothing with objective 'hib', which takes the loss's place; leave it out",
    ),
    (
        {"like": "trained", "change": {"objective": "hib", "loss": {"name": "cosine", "scale": 5}}},
        "loss.scale does nothing with objective 'hib'",
    ),
    (
        {"loss": "triplet", "view": {"name": "photos", "crop": False, "scale": [0.5, 1]}},
        "view.scale does nothing with view.crop False; leave one of the two out",
    ),
    (
        {"like": "trained", "change": {"view": {"crop": False, "ratio": [1, 1]}}},
        "view.ratio does nothing with view.crop False",
    ),
]
READ = [
    {"loss": "triplet", "training": {"weight_decay": 0, "weight_decay_on": "matrices"}},
    {"loss": {"name": "cosine", "scale": 16}, "objective": "hib", "uncertainty": "hib"},
    {"loss": {"name": "cosine", "scale": 5}, "objective": "mc_dropout"},
    {"loss": "triplet", "training": {"momentum": 0.9, "proxy_init": "random", "warmup_epochs": 0}},
    {"loss": "triplet", "training": {"sampler": "shuffle", "images_per_class": 4}},
    {"loss": "triplet", "training": {"schedule": "multistep", "milestones": [44]}},
    {"like": "scheduled", "change": {"training.epochs": 10}},
    {"like": "scheduled", "change": {"training.epochs": 0}},
    {"loss": "triplet", "training": {"epochs": "5", "learning_rate": 0.1}},
    {"training": {"epochs": 0, "head_init": "lda", "augment": "none", "batch_size": 32, "sampler": "shuffle"}},
    {"loss": "triplet", "pretrained": True, "training": {"warmup_epochs": 1}},
    {"loss": "el_nivmf", "training": {"proxy_init": "class_means"}},
    {"loss": "threshold_consistent", "training": {"proxy_init": "class_means"}},
]
TRAINED = {
    "loss": "triplet",
    "training": {"optimizer": "sgd", "momentum": 0.8, "nesterov": True, "schedule": "cosine"},
}
SCHEDULED = {"loss": "triplet", "training": {"schedule": "multistep", "milestones": [5, 9], "epochs": 12}}


@pytest.mark.parametrize(("spec", "message"), UNREAD, ids=[message[:40] for _, message in UNREAD])
def test_what_a_method_writes_and_nothing_reads_is_refused(params, spec, message):
    with pytest.raises(ConfigError, match=f"methods.m: {message}"):
        plan(params, {"m": spec, "trained": TRAINED, "scheduled": SCHEDULED})


@pytest.mark.parametrize("spec", READ, ids=str)
def test_what_is_read_or_is_the_default_is_planned(params, spec):
    assert plan(params, {"m": spec, "scheduled": SCHEDULED})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("milestones", 5, "a list"), ("milestones", "x", "a list"), ("epochs", "x", "a valid integer")],
)
def test_a_schedule_of_a_wrong_kind_is_refused_by_its_name(params, key, value, expected):
    methods = {"m": {"like": "scheduled", "change": {f"training.{key}": value}}, "scheduled": SCHEDULED}
    with pytest.raises(ConfigError, match=f"^run digits/m/seed0: training.{key}: should be {expected}"):
        plan(params, methods)


@pytest.mark.parametrize(("base", "advice"), [("m", "a method that trains"), ("posterior", "'scheduled'")])
def test_a_base_that_trains_nothing_is_refused_with_one_that_does(params, base, advice):
    methods = {"m": {"base": base}, "posterior": {"base": "scheduled"}, "scheduled": SCHEDULED}
    with pytest.raises(ConfigError, match=f"methods.m: its base '{base}' trains nothing itself; name {advice}"):
        plan(params, methods)


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_a_block_that_sets_what_none_of_its_runs_reads_is_refused(params, form):
    def planned(**training):
        chosen = {f"training.{key}": value for key, value in training.items()}
        block = {
            "datasets": ["digits"],
            "methods": ["trained"],
            "set": chosen if form == "flat" else {"training": training},
        }
        experiment = parse(Experiment, {"title": "crossed", "runs": [block]}, "crossed")
        return expand(params, {"trained": parse(Method, TRAINED, "trained")}, experiment)

    message = "set: training.momentum does nothing with training.optimizer 'adam'; .* set training.optimizer to sgd or"
    with pytest.raises(ConfigError, match=message):
        planned(optimizer="adam", momentum=0.5)
    assert planned(optimizer="rmsprop", momentum=0.5, nesterov=False)
    assert planned(optimizer="adam", momentum=0.9)
    with pytest.raises(ConfigError, match=r"set: training\.learning_rate does nothing with training\.epochs 0"):
        planned(epochs=0, learning_rate=0.1)


def test_a_grid_may_cross_no_epochs_with_settings_that_some_epochs_read(params):
    block = {"datasets": ["digits"], "methods": ["trained"], "set": {"training.epochs": [0, 2]}, "seeds": [0]}
    block["set"]["training.learning_rate"] = [0.1, 0.2]
    experiment = parse(Experiment, {"title": "crossed", "runs": [block]}, "crossed")
    assert len(expand(params, {"trained": parse(Method, TRAINED, "trained")}, experiment)) == 4


@pytest.mark.parametrize(("epochs", "problem"), [(9, "name epochs below it"), (10, ""), (0, "")])
def test_an_override_of_epochs_that_ends_before_a_milestone_is_refused(params, epochs, problem):
    methods = {"m": parse(Method, SCHEDULED, "m")}
    point = Point(dataset="digits", method="m", overrides={"training.epochs": epochs})
    expected = pytest.raises(ConfigError, match=problem) if problem else contextlib.nullcontext()
    with expected:
        assert resolve(params, methods, point)


def test_what_is_inherited_and_nothing_reads_is_planned_and_an_override_of_it_refused(params):
    methods = {"trained": TRAINED, "m": {"like": "trained", "change": {"training.optimizer": "adam"}}}
    assert plan(params, methods).settings.training.momentum == 0.8
    found = {name: parse(Method, spec, name) for name, spec in methods.items()}
    both = {"training.momentum": 0.5, "training.optimizer": "adam"}  # as a grid, or a search, crosses them
    assert resolve(params, found, Point(dataset="digits", method="trained", overrides=both))
    with pytest.raises(ConfigError, match="momentum does nothing with "):
        resolve(params, found, Point(dataset="digits", method="m", overrides={"training.momentum": 0.5}))


@pytest.mark.parametrize(("spec", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_cannot_end_is_refused(params, spec, message):
    with pytest.raises(ConfigError, match=f"run digits/m/seed0: .*{message}"):
        plan(params, {"m": spec})


@pytest.mark.parametrize(("part", "name"), [("view", "photos"), ("backbone", "compact")])
def test_what_reads_images_is_refused_on_vectors_and_what_reads_vectors_is_planned(params, part, name):
    shop = parse(DataFolders, {"on_request": {"shop": {"source": "embeddings", "raw": "shop.npz"}}}, "data")
    declared = params.data.model_copy(update={"on_request": {**params.data.on_request, **shop.on_request}})
    params = params.model_copy(update={"data": declared})
    of_vectors = {"loss": "arcface", "backbone": "vectors", "view": "vectors"}
    assert plan(params, {"m": of_vectors}, dataset="shop").settings.view.name == "vectors"
    with pytest.raises(UnsuitableError, match=f"{part} '{name}' reads images, but shop holds vectors; use vectors"):
        plan(params, {"m": of_vectors | {part: name}}, dataset="shop")
    beside = params.model_copy(update={"ood": {"shop": ["digits"]}})
    with pytest.raises(ConfigError, match="run shop/m/seed0: its data are vectors, those of 'digits' images, and no"):
        plan(beside, {"m": of_vectors}, dataset="shop")


@pytest.mark.parametrize(
    "spec",
    [
        {"loss": "nir", "change": {"evaluation.proxies": True}},
        {"loss": "vmf", "training": {"selection_metric": "accuracy"}, "uncertainty": "temperature"},
        {"loss": "triplet", "training": {"epochs": 0, "selection_metric": "accuracy"}},
        {"loss": "cosine", "backbone": {"name": "timm", "head": "linear"}, "uncertainty": "laplace"},
        {"loss": "cosine", "backbone": "pixels", "uncertainty": "mc_dropout"},
    ],
    ids=str,
)
def test_what_can_end_is_planned(params, spec):
    assert plan(params, {"m": spec}).name == "digits/m/seed0"


HEADLESS = {"name": "timm", "head": "none"}


@pytest.mark.parametrize(
    "method",
    [
        {"backbone": HEADLESS, "dim": 32},
        {"backbone": HEADLESS, "change": {"dim": 32}},
        {"backbone": HEADLESS, "per_dataset": {"digits": {"dim": 32}}},
        {"backbone": HEADLESS, "change": {"dim": 32, "backbone": "pixels"}},
        {"like": "headless", "change": {"dim": 32}},
    ],
    ids=str,
)
def test_a_size_that_no_head_gives_is_refused_wherever_it_is_written(params, method):
    with pytest.raises(ConfigError, match=r"methods\.m: dim is 32, but backbone '(timm|pixels)' has no head"):
        plan(params, {"headless": {"backbone": HEADLESS}, "m": method})


def test_without_a_head_the_size_is_that_of_the_features(params):
    """A size that was meant for the head of another method, or of a preset, asks for nothing."""
    headed = {"loss": "cosine", "backbone": "timm", "dim": 32}
    methods = {"headed": headed, "m": {"like": "headed", "change": {"backbone.head": "none"}}}
    assert plan(params, methods).settings.dim == "features"
    found = {name: parse(Method, spec, name) for name, spec in methods.items()}
    with pytest.raises(ConfigError, match="override: dim is 16, but backbone 'timm' has no head"):
        resolve(params, found, Point(dataset="digits", method="m", overrides={"dim": 16}))
    headless = Point(dataset="digits", method="headed", overrides={"backbone.head": "none"})
    assert resolve(params, found, headless).settings.dim == "features"


def test_an_inherited_setting_is_refused_where_it_does_not_fit(params):
    methods = {
        "field": {"loss": "potential_field", "change": {"evaluation.proxies": True}},
        "m": {"like": "field", "change": {"loss": "contrastive"}},
    }
    assert plan(params, methods, "field").settings.evaluation.proxies
    with pytest.raises(ConfigError, match="loss 'contrastive' has no proxies"):
        plan(params, methods)


@pytest.mark.parametrize("name", list_losses())
def test_a_loss_does_what_its_class_declares(name):
    loss = create_loss(name, num_classes=4, dim=5)
    probabilities = loss.probabilities(torch.randn(3, 5), generator=torch.Generator().manual_seed(0))
    assert (loss.class_proxies() is not None) == REGISTRY.holds(name, "has_proxies", {})
    declared = [REGISTRY.holds(name, flag, {}) for flag in ("has_proxies", "is_classifier")]
    turned = any(declared) and not REGISTRY.holds(name, "starts_at_random", {})
    assert (loss.class_vectors() is not None or loss.wants_warm_start) == turned
    assert (probabilities is not None) == REGISTRY.holds(name, "is_classifier", {})
