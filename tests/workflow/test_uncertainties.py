"""Uncertainties in the workflow: what the configuration allows, which runs it needs, and the steps on real digits."""

import re
from pathlib import Path

import pytest

from probmetric import uncertainty
from probmetric.config import ConfigError, Experiment, Params, RunSettings, load, parse
from probmetric.data import prepare_dataset
from probmetric.io import read_tensors, read_yaml
from probmetric.planning.expansion import expand, find_run
from probmetric.planning.experiments import methods_with
from probmetric.planning.workflow import WorkflowPlan
from probmetric.runs import steps as pipeline
from probmetric.runs.plan import Run, RunPlan

ROOT = Path(__file__).parents[2]
ONLINE = {"loss": "contrastive", "objective": "laplace_online", "uncertainty": "laplace_online"}
TRAINING = {"epochs": 1, "batch_size": 20, "steps_per_epoch": 10}


def plan(described: dict, **grid) -> list[Run]:
    raw = read_yaml(ROOT / "params.yaml")
    spec = {"title": "test", "methods": described, "runs": [{"datasets": ["digits"], "seeds": [0], **grid}]}
    params, experiment = parse(Params, raw, "params.yaml"), parse(Experiment, spec, "test.yaml")
    return expand(params, methods_with(params, {"test": experiment}), experiment)


# ---- configuration ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", uncertainty.list_uncertainties())
def test_what_the_workflow_reads_from_source_is_what_the_class_says(name):
    """They decide which jobs exist, and which may; they are read without importing PyTorch."""
    from probmetric.uncertainty._base import Uncertainty

    component = uncertainty.REGISTRY.get(name)
    for constant in ("fits", "trains_encoder", "replaces_loss", "closed_set"):
        assert uncertainty.REGISTRY.constant(name, constant, False) == getattr(component, constant), constant
    assert component.trains_encoder == (component.objective is not Uncertainty.objective)


def test_an_objective_belongs_to_the_encoder():
    (run,) = plan({"online": ONLINE}, methods=["online"], set={"objective.memory": 0.9, "uncertainty.samples": 5})
    assert run.name == "digits/online+objective.memory=0.9+uncertainty.samples=5/seed0"
    assert run.trains
    assert run.fits_posterior
    encoder = run.settings.encoder()
    assert encoder.objective.name == "laplace_online"
    assert encoder.objective.options == {"memory": 0.9}
    assert encoder.plain()["objective"] == {"name": "laplace_online", "options": {"memory": 0.9}}


def test_another_uncertainty_on_an_encoder_that_was_trained_with_an_objective():
    methods = {"online": ONLINE, "wider": {"base": "online", "uncertainty": {"name": "laplace_online", "samples": 9}}}
    wider, online = plan(methods, methods=["wider", "online"], set={"objective.margin": 1.0})
    assert wider.encoder == online.name
    assert wider.settings.encoder() == online.settings.encoder()


def test_fidelity_reaches_the_objective():
    (run,) = plan({"old": ONLINE | {"fidelity": "as_published"}}, methods=["old"])
    assert run.settings.objective.options == {"fidelity": "as_published"}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"loss": "contrastive", "objective": "laplace"}, "'laplace' has no objective to train with; did you mean"),
        ({"loss": "contrastive", "objective": "laplace_onlin"}, "did you mean 'laplace_online'"),
        ({"loss": "contrastive", "objective": {"name": "hib", "samplez": 1}}, "did you mean 'samples'"),
        ({"objective": "hib"}, "objective 'hib' wraps the method's loss; set `loss` too"),
        ({"base": "contrastive", "objective": "hib"}, "remove objective"),
        ({"loss": "contrastive", "uncertainty": "hib"}, "set the objective to 'hib', too"),
        ({"base": "contrastive", "uncertainty": "laplace_online"}, "the objective of method 'contrastive' to 'laplace"),
        (ONLINE | {"objective": "hib"}, "set the objective to 'laplace_online', too"),
        ({"loss": "contrastive", "uncertainty": "ensemble"}, "5 seeds of another method; name that method as `base`"),
    ],
)
def test_impossible_combinations_stop_with_the_fix(method, message):
    with pytest.raises(ConfigError, match=message):
        plan({"m": method}, methods=["m"])


def test_temperature_on_unseen_classes_stops_before_any_job():
    tempered = {"t": {"loss": "cosine", "uncertainty": "temperature"}}
    assert plan(tempered, methods=["t"])
    with pytest.raises(ConfigError, match="needs validation images of the training classes; glyphs holds out"):
        plan(tempered, methods=["t"], datasets=["glyphs"])


def test_an_objective_cannot_be_overridden_where_there_is_none():
    with pytest.raises(ConfigError, match="changes no setting"):
        plan({}, methods=["contrastive"], set={"objective.memory": 0.5})


def test_an_ensemble_needs_the_following_seeds_of_its_base():
    methods = {"three": {"base": "contrastive", "uncertainty": {"name": "ensemble", "members": 3}}}
    (run,) = plan(methods, methods=["three"], seeds=[4], set={"training.epochs": 2})
    assert run.encoder == "digits/contrastive+training.epochs=2/seed4"
    assert run.encoders == tuple(f"digits/contrastive+training.epochs=2/seed{seed}" for seed in (4, 5, 6))
    (fewer,) = plan(methods, methods=["three"], seeds=[4], set={"uncertainty.members": 2})
    assert fewer.encoders == ("digits/contrastive/seed4", "digits/contrastive/seed5")


def test_ensembles_apart_share_no_member():
    methods = {"three": {"base": "contrastive", "uncertainty": {"name": "ensemble", "members": 3, "apart": 5}}}
    runs = plan(methods, methods=["three"], seeds=[0, 1, 2, 3, 4])
    members = [name for run in runs for name in run.encoders]
    assert runs[1].encoders == tuple(f"digits/contrastive/seed{seed}" for seed in (1, 6, 11))
    assert len(set(members)) == 15


def test_the_plan_trains_every_member_as_a_run_of_its_own(monkeypatch):
    monkeypatch.chdir(ROOT)
    raw = read_yaml("params.yaml") | {"experiments": ["lam-demo/table2"]}
    made = WorkflowPlan.from_config(raw)
    params = load(Params, "params.yaml")
    members = [name for name in made.runs if name.startswith("digits/contrastive")]
    assert [name[-5:] for name in sorted(members)] == [f"seed{seed}" for seed in range(9)], (
        "ensembles of three, three times"
    )
    for name in members:
        alone = find_run(params, name).settings.encoder()
        assert made.runs[name].settings.encoder() == alone, "the same training, whoever asks for it"


@pytest.mark.workflow
@pytest.mark.slow
def test_snakemake_plans_the_members(fresh):
    command = ("snakemake", "-n", "--cores", "2", "--config", "experiments=lam-demo/table2")
    planned = set(re.findall(r"^Job \d+: Run (.*)$", fresh.command(*command).stdout, flags=re.MULTILINE))
    assert "digits/ensemble+training.epochs=8/seed0" in planned
    assert planned >= {
        *(f"digits/contrastive+training.epochs=8/seed{seed}" for seed in range(9)),
        *(
            f"digits/{name}+training.epochs=8/seed{seed}"
            for name in ("hib", "mc_dropout", "lam_online")
            for seed in range(3)
        ),
    }


# ---- the steps on real digits -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with prepared digits (closed and open set) in which the steps of runs are called."""
    place = tmp_path_factory.mktemp("steps")
    for name in ("digits", "digits_open"):
        prepare_dataset(name, place / "data/prepared" / name, progress=False)
    return place


@pytest.fixture(autouse=True)
def _there(request, monkeypatch):
    if "folder" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("folder"))


def settings(method: str, *, seed: int = 0, dataset: str = "digits", **fields) -> RunSettings:
    backbone = {"name": "compact", "width": 4}
    values = {"loss": "contrastive", "dim": 6, "backbone": backbone, "training": TRAINING} | fields
    return RunSettings(dataset=dataset, method=method, seed=seed, **values)


def train(chosen: RunSettings) -> str:
    name = f"{chosen.dataset}/{chosen.base or chosen.method}/seed{chosen.seed}"
    if not (pipeline.RESULTS / name / "encoder.yaml").exists():
        pipeline.train(RunPlan(Run(name, name, chosen)))
    return name


def embed(chosen: RunSettings) -> Path:
    """Fit, embed and return the run folder of a method whose encoder is trained."""
    name = f"{chosen.dataset}/{chosen.method}/seed{chosen.seed}"
    encoder = train(chosen)
    if uncertainty.REGISTRY.constant(chosen.uncertainty.name, "fits", False):
        pipeline.fit(RunPlan(Run(name, encoder, chosen)))
    pipeline.embed(RunPlan(Run(name, encoder, chosen)))
    return pipeline.RESULTS / name


def tensors(folder: Path, split: str = "test"):
    return read_tensors(folder / f"embeddings/{split}.safetensors")[0]


def test_an_ensembles_similarity_is_the_mean_of_its_members(folder):
    members = [tensors(embed(settings("plain", seed=seed)), split) for seed in (1, 2) for split in ("test", "last")]
    chosen = {"name": "ensemble", "members": 2}
    run = embed(settings("both", base="plain", seed=1, uncertainty=chosen))
    for number, split in enumerate(("test", "last")):
        combined = tensors(run, split)["mean"]
        assert combined.shape[1] == 2 * 6
        singles = [members[number]["mean"], members[number + 2]["mean"]]
        mean = sum(single @ single.T for single in singles) / 2
        assert abs(combined @ combined.T - mean).max() < 1e-5
    assert tensors(run, "ood")["mean"].shape == (0, 12)


def test_an_ensembles_record_names_its_members(folder):
    chosen = settings("pair", base="plain", seed=1, uncertainty={"name": "ensemble", "members": 2})
    train(settings("plain", seed=2))
    run = embed(chosen)
    pipeline.evaluate(RunPlan(Run("digits/pair/seed1", "digits/plain/seed1", chosen)))
    assert read_yaml(run / "run.yaml")["members"] == ["digits/plain/seed1", "digits/plain/seed2"]


def test_class_probabilities_are_kept_of_classes_that_have_them(folder):
    """Not of unseen classes, nor of strangers, whose labels say nothing of the classes trained on."""
    held = {}
    for dataset in ("digits", "digits_open"):
        run = embed(settings("scored", dataset=dataset, loss="cosine", ood=("digits",)))
        held[dataset] = {split for split in ("val", "test", "ood", "last") if "probabilities" in tensors(run, split)}
    assert held == {"digits": {"val", "test", "last"}, "digits_open": set()}


@pytest.mark.parametrize("name", ["pfe", "laplace", "mc_dropout", "vmf", "norm"])
def test_a_classifier_is_not_asked_about_classes_it_does_not_know(folder, monkeypatch, name):
    """A draw at a time it would take longer than all the rest, for numbers that no file keeps."""
    from probmetric.losses import Loss

    options = {"samples": 4} if name != "norm" else {}
    chosen = {"loss": "cosine", "uncertainty": {"name": name, "options": options}}
    known = tensors(embed(settings("asked", dataset="digits", **chosen)), "test")
    assert known["probabilities"].shape[1] == 10
    run = settings("asked", dataset="digits_open", **chosen)
    train(run)
    monkeypatch.setattr(Loss, "probabilities", lambda *_, **__: pytest.fail("the classifier was asked"))
    assert {"mean", "uncertainty", "concentration"} <= set(tensors(embed(run), "test"))


def test_temperature_minimises_the_validation_likelihood(folder):
    """Against a grid over T, from the run's own files: probabilities of the validation images at T and at 1."""
    import numpy as np

    fields = {"loss": "cosine", "training": TRAINING | {"epochs": 3}}
    plain = tensors(embed(settings("classifier", uncertainty="softmax", **fields)), "val")
    run = embed(settings("tempered", base="classifier", uncertainty="temperature", **fields))
    found = float(read_tensors(run / "posterior.safetensors")[0]["temperature"])
    log_p = np.log(plain["probabilities"].astype(np.float64))
    rows = np.arange(len(log_p))

    def likelihood(temperature: float) -> float:
        scaled = log_p / temperature
        return float((scaled[rows, plain["label"]] - np.logaddexp.reduce(scaled, axis=1)).mean())

    best = max(likelihood(temperature) for temperature in np.geomspace(0.01, 100, 2001))
    assert likelihood(found) > best - 1e-4
    assert likelihood(found) > likelihood(1.0) + 1e-3


def test_temperature_is_refused_where_the_validation_classes_are_unseen(folder):
    with pytest.raises(ValueError, match="temperature scaling needs a closed-set split"):
        embed(settings("open", dataset="digits_open", loss="cosine", uncertainty="temperature"))


def test_laplace_chooses_its_prior_on_validation_images(folder):
    """The stored precision is a candidate, and gives the run whose validation sparsification is best."""
    from probmetric.metrics import selective_metrics
    from probmetric.retrieval import search

    def area(uncertainty_options: dict, method: str) -> float:
        run = embed(
            settings(method, base="plain", uncertainty={"name": "laplace", "samples": 200} | uncertainty_options)
        )
        found = tensors(run, "val")
        nearest = search(found["mean"], k=1).rows[:, 0]
        correct = (found["label"][nearest] == found["label"]).astype(float)
        return selective_metrics(found["uncertainty"].astype(float), correct)["ausc"]

    chosen = area({"prior": "validation"}, "chosen")
    posterior, _ = read_tensors(Path("results/digits/chosen/seed0/posterior.safetensors"))
    precision = float(posterior["prior_precision"])
    assert precision in [10.0**power for power in range(-3, 9)]
    others = [area({"prior": "fixed", "prior_precision": value}, f"fixed{value:g}") for value in (1e-3, 1e8)]
    assert chosen > max(others) - 0.02, "up to the seed of the draws and the definition of the area"


@pytest.mark.parametrize("name", ["laplace_online", "hib", "mc_dropout", "pfe"])
def test_methods_with_weights_of_their_own_run_through(folder, name):
    objective = None if name == "pfe" else name
    chosen = settings(f"with_{name}", objective=objective, uncertainty={"name": name, "samples": 4})
    found = tensors(embed(chosen))
    assert found["mean"].shape == (539, 6)
    assert found["uncertainty"].std() > 0
    assert tensors(pipeline.RESULTS / f"digits/with_{name}/seed0", "last")["mean"].shape == (539, 6)
