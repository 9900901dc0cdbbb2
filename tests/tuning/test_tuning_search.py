"""A search spends equal budgets, learns from validation only, and started again asks the same questions."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest

from canary import with_other_test_images
from probmetric.config import ConfigError, Experiment, Method, Params, SearchRange, Tuning, load, parse
from probmetric.io import read_yaml, write_yaml
from probmetric.planning.expansion import Point, every_method, expand, plan_experiment, resolve
from probmetric.planning.experiments import EXPERIMENTS, METHODS
from probmetric.runs.folder import RunFolder
from probmetric.runs.plan import Run, RunPlan
from probmetric.runs.steps import train
from probmetric.tuning import load_tuning, report, tuning_names
from probmetric.tuning.search import Search, TuningError, build_studies, suggest, train_runs, validation_metric

ROOT = Path(__file__).parents[2]
RATES = {"training.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
SPEC = {"title": "test", "dataset": "glyphs", "methods": ["proxy_anchor", "cosine"], "ranges": RATES}


@pytest.fixture
def params(monkeypatch) -> Params:
    monkeypatch.chdir(ROOT)
    return load(Params, "params.yaml")


class Trainer:
    """Writes the history a training with that learning rate would have: best at 0.02, none at all below `fails`."""

    def __init__(self, folder: Path, fails: float = 0.0) -> None:
        self.folder, self.fails, self.asked = folder, fails, []

    def __call__(self, runs: Sequence[Run]) -> list[str]:
        for run in (planned.name for planned in runs):
            if not (self.folder / run / "history.csv").exists():
                self.asked.append(run)
                self.train(run)
        return [planned.name for planned in runs if (self.folder / planned.name).exists()]

    def train(self, run: str) -> None:
        rate = float(run.partition("learning_rate=")[2].partition("/")[0].partition("+")[0])
        if rate < self.fails:
            return
        best = math.exp(-((math.log(rate / 0.02)) ** 2))
        (self.folder / run).mkdir(parents=True)
        with (self.folder / run / "history.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([["epoch", "val_metric"], [0, best / 2], [1, ""], [2, best], [3, best / 3]])


def searched(params, folder, fails=0.0, **changes) -> tuple[Search, Trainer]:
    trainer = Trainer(folder, fails)
    search = Search(params, every_method(params), parse(Tuning, SPEC | changes, "test.yaml"), results=folder)
    search.run(trainer)
    return search, trainer


def test_tuned_methods_have_the_settings_of_the_preset_they_were_tuned_with(params, tmp_path):
    search, _ = searched(params, tmp_path, set={"preset": "tiny", "training.epochs": 2})
    made = report.tuned_methods(search, "try")["cosine-tuned-try"]["change"]
    tiny = params.presets["tiny"].set
    assert made["dim"] == tiny["dim"]
    assert made["training.epochs"] == 2
    assert "preset" not in made
    assert not any(key.startswith("uncertainty.") for key in made)  # its uncertainty has none of these options


def test_every_method_gets_the_same_number_of_runs_and_a_good_rate(params, tmp_path):
    search, trainer = searched(params, tmp_path, trials=20, seeds=[0, 1])
    assert {len(trials) for trials in search.trials.values()} == {20}
    assert len(trainer.asked) <= 2 * 20 * 2
    for method in SPEC["methods"]:
        assert search.best(method).values["training.learning_rate"] == pytest.approx(0.02, rel=0.35)
        assert search.best(method).runs[1].endswith("/seed1")


def test_a_search_that_would_see_test_images_is_refused(params, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.selection 'as_published' would let its search see test images"):
        searched(params, tmp_path, set={"training.selection": "as_published"})


@pytest.mark.slow
def test_nothing_that_is_found_depends_on_test_images(params, prepared_dataset, tmp_path, monkeypatch):
    """Real trainings on digits, and on digits with other test images and labels: the same trials to the last bit."""
    prepared = prepared_dataset("digits_open")
    found = []
    for name, folder in (("same", prepared), ("other", with_other_test_images(prepared, tmp_path / "changed"))):
        place = tmp_path / name
        (place / "data/prepared").mkdir(parents=True)
        (place / "data/prepared/digits_open").symlink_to(folder)
        monkeypatch.chdir(place)
        small = {"dim": 8, "backbone.width": 4, "training.epochs": 2, "training.steps_per_epoch": 4}
        spec = {"dataset": "digits_open", "methods": ["cosine"], "trials": 2, "set": small}
        search = Search(params, every_method(params), parse(Tuning, SPEC | spec, "test.yaml"))
        search.run(lambda runs: [train(RunPlan(run)) or run.name for run in runs])
        found.append(search.trials)
    assert found[0] == found[1]
    assert len({trial.objective for trial in found[0]["cosine"]}) == 2


def test_the_first_trial_has_the_methods_own_settings(params, tmp_path):
    search, _ = searched(params, tmp_path, trials=1)
    own = resolve(
        params, every_method(params), Point(dataset="glyphs", method="cosine")
    ).settings.training.learning_rate
    assert search.trials["cosine"][0].values == {"training.learning_rate": own}


def test_the_first_trial_has_the_methods_own_rate_of_a_part(params, tmp_path):
    trunk = {"training.learning_rates.trunk": {"low": 1e-4, "high": 1e-1, "log": True}}
    search, _ = searched(params, tmp_path, trials=2, ranges=RATES | trunk, set={"training.learning_rates.trunk": 0.003})
    first, second = (trial.values["training.learning_rates.trunk"] for trial in search.trials["cosine"])
    assert first == 0.003 != second


def test_a_rate_of_a_part_that_was_chosen_is_written_once(params, tmp_path):
    trunk = {"training.learning_rates.trunk": {"low": 1e-4, "high": 1e-1, "log": True}}
    shared = {"training.learning_rates": {"trunk": 0.003, "head": 0.1}}
    preset = params.presets["tiny"].model_copy(update={"set": shared})
    params = params.model_copy(update={"presets": {"parts": preset}})
    search, _ = searched(params, tmp_path, ranges=RATES | trunk, set={"preset": "parts"})
    made = report.tuned_methods(search, "try")["cosine-tuned-try"]["change"]
    chosen = search.best("cosine").values
    assert made == {
        "training.learning_rates": {"trunk": chosen["training.learning_rates.trunk"], "head": 0.1},
        "training.learning_rate": chosen["training.learning_rate"],
    }
    assert search.shared_settings("cosine") == shared, "left as it was"


def test_a_name_that_is_taken_is_refused_before_anything_is_trained(params, tmp_path):
    """It was found when the methods file was written, after which nothing could be planned any more."""
    search = Search(params, every_method(params), parse(Tuning, SPEC | {"named": "tuned-{method}"}, "t"))
    with pytest.raises(ConfigError, match="gives 'tuned-proxy_anchor', a method that is defined already"):
        report.check_names(search, "again", folder=tmp_path)
    report.check_names(search, "study")  # its own file defines them
    report.check_names(Search(params, every_method(params), parse(Tuning, SPEC, "t")), "again", folder=tmp_path)


def test_what_is_tuned_a_second_time_says_so_once_and_counts_both(params, tmp_path):
    methods = every_method(params)
    search = Search(params, methods, parse(Tuning, SPEC | {"trials": 1}, "t"), results=tmp_path)
    search.run(Trainer(tmp_path))
    again = {name: Method.model_validate(made) for name, made in report.tuned_methods(search, "try").items()}
    spec = parse(Tuning, SPEC | {"trials": 1, "methods": ["cosine-tuned-try"]}, "t")
    second = Search(params, methods | again, spec, results=tmp_path)
    second.run(Trainer(tmp_path))
    made = report.tuned_methods(second, "more")["cosine-tuned-try-tuned-more"]
    assert (made["label"], made["budget"]) == ("Cosine softmax (tuned)", 2)


def test_started_again_it_trains_nothing_and_finds_the_same(params, tmp_path):
    first, _ = searched(params, tmp_path, trials=9)
    again, trainer = searched(params, tmp_path, trials=9)
    assert trainer.asked == []
    assert again.trials == first.trials


def test_stopped_in_the_middle_it_goes_on_as_if_nothing_had_happened(params, tmp_path):
    undisturbed, _ = searched(params, tmp_path / "a", trials=12)

    class Stops(Trainer):
        def train(self, run: str) -> None:
            if len(self.asked) > 11:
                raise KeyboardInterrupt
            super().train(run)

    search = Search(params, every_method(params), parse(Tuning, SPEC | {"trials": 12}, "t"), results=tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        search.run(Stops(tmp_path / "b"))
    resumed, trainer = searched(params, tmp_path / "b", trials=12)
    assert resumed.trials == undisturbed.trials
    assert 0 < len(trainer.asked) < 24


@pytest.mark.parametrize(
    ("low", "high", "drawn", "tried"),
    [(0.0001, 0.1, 0.0123456, 0.0123), (0.1, 0.9999, 0.9999, 0.9999), (0.12345, 0.12349, 0.123468, 0.12347)],
)
def test_a_number_is_rounded_but_stays_in_its_range(low, high, drawn, tried):
    trial = optuna.trial.FixedTrial({"loss.margin": drawn})
    assert suggest(trial, {"loss.margin": SearchRange(low=low, high=high)}) == {"loss.margin": tried}


def test_a_failed_training_counts_against_the_budget(params, tmp_path):
    search, _ = searched(params, tmp_path, fails=1e-3, trials=16)
    failed = [trial for trial in search.trials["cosine"] if trial.objective is None]
    assert failed
    assert len(search.trials["cosine"]) == 16
    assert search.best("cosine").objective is not None


def test_what_an_earlier_search_left_of_a_run_that_fails_now_is_no_result(params, tmp_path):
    """With a loss that had stopped working, yesterday's histories were told as today's search."""
    searched(params, tmp_path)
    again = Search(params, every_method(params), parse(Tuning, SPEC, "test.yaml"), results=tmp_path)
    with pytest.raises(TuningError, match="could be trained"):
        again.run(lambda runs: [])


def test_nothing_trainable_stops_the_search(params, tmp_path):
    with pytest.raises(TuningError, match=r"logs/run/glyphs/proxy_anchor"):
        searched(params, tmp_path, fails=1.0)


def test_a_stopped_snakemake_stops_the_search_and_a_failed_run_does_not(params, tmp_path, monkeypatch):
    runs = [
        resolve(params, every_method(params), Point(dataset="glyphs", method="cosine", seed=seed)) for seed in (0, 1)
    ]
    monkeypatch.chdir(tmp_path)

    def tries(*names):
        def snakemake(_command):
            for name in names:
                log = tmp_path / "logs/run" / f"{name}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text("no memory")
            return 1

        monkeypatch.setattr("probmetric.tuning.search.call", snakemake)

    tries(runs[0].name)
    with pytest.raises(TuningError, match=f"1 of 2 runs were not started, such as {re.escape(runs[1].name)}"):
        train_runs(runs)
    tries(runs[0].name, runs[1].name)
    assert train_runs(runs) == set()


@pytest.mark.parametrize("options", [["-n"], ["-nq"], ["--dry-run"], ["--profile", "one with dry-run"]])
def test_a_dry_run_ends_the_search_however_it_is_asked_for(params, tmp_path, monkeypatch, options):
    runs = [resolve(params, every_method(params), Point(dataset="glyphs", method="cosine"))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("probmetric.tuning.search.call", lambda command: 0)
    with pytest.raises(SystemExit) as ended:
        train_runs(runs, options)
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("options", "before", "said"),
    [
        (["--config", "a=1", "b=2", "-j", "2"], ["-j", "2"], ["a=1", "b=2"]),
        (["--profile", "slurm", "-C", "a=1"], ["--profile", "slurm"], ["a=1"]),
        (["--config=a=1", "--config", "b=2", "--configfile", "x.yaml"], ["--configfile", "x.yaml"], ["a=1", "b=2"]),
        (["-nq"], ["-nq"], []),
    ],
)
def test_config_of_the_user_reaches_snakemake_beside_ours(monkeypatch, options, before, said):
    commands = []
    monkeypatch.setattr("probmetric.tuning.search.call", lambda command: commands.append(command) or 0)
    build_studies(["x"], options)
    assert commands == [["snakemake", "--keep-going", *before, "--config", *said, "experiments=[x]"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["cosine", "cosine"]}, "methods: 'cosine' is there 2 times, so budgets would differ"),
        ({"seeds": [0, 1, 0]}, "seeds: 0 is there 2 times"),
        ({"methods": ["laplace"]}, "trains nothing"),
        ({"methods": ["untrained"]}, "trains nothing"),
        ({"ranges": {}}, "declares no `search`"),
        ({"ranges": {"loss.scales": {"choices": [1]}}}, "did you mean 'scale'"),
        ({"ranges": {"training.rate": {"low": 1, "high": 2}}}, "training"),
        ({"ranges": {"dim": {"low": 2, "high": 1}}}, "low 2 must be below high 1"),
        (
            {"ranges": {"training.batch_size": {"low": 32, "high": 64, "integer": True}}},
            "range of training.batch_size, which holds 33: .*not a multiple of training.images_per_class 4",
        ),
        ({"ranges": {"dim": {"low": 2.5, "high": 8, "integer": True}}}, "from 2.5 to 8; expected whole numbers"),
        ({"ranges": {"dim": {"low": 2, "high": 1e9, "integer": True}}}, r"at most 1,000 of them.* Give `choices`"),
        ({"ranges": {"dim": {"low": 2}}}, "either `low` and `high`, or `choices`"),
        ({"ranges": {"dim": {"low": 0, "high": 1, "log": True}}}, "starts above 0"),
        ({"methods": ["proxy_ancor"]}, "did you mean 'proxy_anchor'"),
        (
            {"ranges": {"dim": {"low": 8, "high": 64}}},
            "range of dim, which holds 28.* whole numbers: `integer",
        ),
        ({"ranges": {"uncertainty": {"choices": ["norm", "pfe"]}}}, "range of uncertainty: training does not read it"),
        ({"ranges": {"training.epochs": {"low": 0, "high": 2, "integer": True}}}, "holds 0.*trains nothing"),
        ({"ranges": {"training.selection": {"choices": ["as_published"]}}}, "would let its search see test images"),
        ({"ranges": {"training.momentum": {"low": 0, "high": 0.9}}}, "does nothing with training.optimizer 'adam'"),
    ],
)
def test_a_wrong_search_stops_before_any_training(params, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        searched(params, tmp_path, **changes)


def test_a_setting_is_searched_beside_the_one_that_decides_whether_it_is_read(params, tmp_path):
    ranges = {"training.optimizer": {"choices": ["sgd", "adam"]}, "training.momentum": {"low": 0, "high": 0.9}}
    search, _ = searched(params, tmp_path, ranges=RATES | ranges, trials=6)
    assert {trial.values["training.optimizer"] for trial in search.trials["cosine"]} == {"sgd", "adam"}


def test_the_tuned_methods_can_be_run_as_they_are_written(params, tmp_path):
    search, _ = searched(params, tmp_path / "runs", trials=8, seeds=[0, 1], set={"training.epochs": 3})
    path = report.write_methods(search, "t", folder=tmp_path)
    methods = {name: parse(type(params.methods["cosine"]), value, name) for name, value in read_yaml(path).items()}
    tuned = resolve(params, params.methods | methods, Point(dataset="glyphs", method="cosine-tuned-t")).settings
    assert tuned.training.epochs == 3
    assert tuned.training.learning_rate == search.best("cosine").values["training.learning_rate"]
    assert methods["cosine-tuned-t"].budget == 16
    assert methods["cosine-tuned-t"].tuned_on == "glyphs"


def test_progress_files_hold_every_trial(params, tmp_path):
    search, _ = searched(params, tmp_path / "runs", fails=1e-3, trials=10)
    trials, table, history = report.write_progress(search, "t", reports=tmp_path)
    with trials.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    assert sum(row["objective"] == "" for row in rows) == sum(
        trial.objective is None for found in search.trials.values() for trial in found
    )
    assert "| ProxyAnchor | 10 |" in table.read_text()
    assert history.stat().st_size > 5000


def test_validation_metric_is_the_best_of_the_history(tmp_path):
    assert validation_metric(RunFolder(tmp_path)) is None
    (tmp_path / "history.csv").write_text("epoch,val_metric\n0,0.5\n1,nan\n2,0.75\n3,\n")
    assert validation_metric(RunFolder(tmp_path)) == 0.75


def test_every_search_file_is_valid(params):
    for name in tuning_names():
        report.check_studies(Search(params, every_method(params), load_tuning(name)), name)
    with pytest.raises(ConfigError, match="unknown search 'glyph': did you mean 'glyphs'"):
        load_tuning("glyph")


@pytest.mark.parametrize(("method", "base"), [("lam_online", "contrastive"), ("nir", "proxy_anchor")])
def test_what_wraps_a_loss_searches_all_that_the_loss_alone_searches(params, method, base):
    search = Search(params, every_method(params), load_tuning("study"))
    assert search.ranges[base].items() <= search.ranges[method].items()


GRID = {"datasets": ["glyphs"], "methods": ["tuned"], "seeds": [0]}
TUNED = {"title": "x", "runs": [GRID]}
STUDY = {
    "named": "best-{method}",
    "methods": ["contrastive", "cosine"],
    "posteriors": ["laplace"],
    "spaces": {"contrastive": {"loss.margin": {"low": 0.3, "high": 1.2}}},
    "studies": {
        "tuned-after": {
            "title": "After",
            "runs": [{"datasets": ["glyphs"], "methods": ["untrained", "untuned", "tuned"], "seeds": [0]}],
        },
        "tuned-noise": {
            "title": "Noise",
            "runs": [{"datasets": ["glyphs"], "noise": [0.2], "methods": ["tuned"], "seeds": [0]}],
        },
    },
}


def test_a_search_writes_the_studies_of_what_it_chose(params, tmp_path):
    search, _ = searched(params, tmp_path / "runs", trials=2, batch=2, **STUDY)
    assert search.ranges["cosine"].keys() == RATES.keys()
    assert search.ranges["contrastive"].keys() == {"loss.margin", *RATES}
    written = read_yaml(report.write_methods(search, "t", folder=tmp_path))
    assert written["best-laplace"]["base"] == "best-contrastive"
    paths = report.write_studies(search, "t", folder=tmp_path)
    assert paths == [tmp_path / "tuned-after.yaml", tmp_path / "tuned-noise.yaml"]
    spec = parse(Experiment, read_yaml(paths[0]), "after")
    methods = {name: parse(Method, value, name) for name, value in written.items()}
    runs = expand(params, every_method(params) | methods, spec)
    assert [run.settings.method for run in runs] == [
        *("untrained", "contrastive", "cosine", "laplace"),
        *("best-contrastive", "best-cosine", "best-laplace"),
    ]
    assert runs[-1].encoder == runs[4].name
    assert runs[4].settings.loss.options["margin"] == search.best("contrastive").values["loss.margin"]


def test_the_plan_says_which_methods_were_tuned_and_what_they_are_versions_of(params, tmp_path, monkeypatch):
    search, _ = searched(params, tmp_path / "runs", trials=2, batch=2, **STUDY)
    report.write_methods(search, "t", folder=tmp_path / METHODS)
    report.write_studies(search, "t", folder=tmp_path / EXPERIMENTS)
    monkeypatch.chdir(tmp_path)
    planned = plan_experiment(params, "tuned-after")
    untuned = ("contrastive", "cosine", "laplace")
    tuned = {f"best-{method}": method for method in untuned}
    assert planned.searched == {
        "budgets": dict.fromkeys(tuned, 2), "tuned": tuned, "tuned_on": dict.fromkeys(tuned, "glyphs"),
    }  # fmt: skip


def test_what_was_tuned_twice_is_a_version_of_the_untuned_method(params, tmp_path, monkeypatch):
    once, twice = ({"like": name, "budget": 2, "tuned_on": "glyphs"} for name in ("contrastive", "once"))
    methods = {"once": once, "twice": twice, "posterior": {"base": "twice", "uncertainty": "laplace"}}
    runs = [{"datasets": ["glyphs"], "methods": ["twice", "posterior"], "seeds": [0]}]
    write_yaml(tmp_path / EXPERIMENTS / "e.yaml", {"title": "e", "methods": methods, "runs": runs})
    monkeypatch.chdir(tmp_path)
    assert plan_experiment(params, "e").searched["tuned"] == {"twice": "contrastive", "posterior": "laplace"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"posteriors": ["laplace"], "methods": ["cosine"]},
            "the base of 'laplace' is 'contrastive', which is not tuned",
        ),
        ({"spaces": {"arcface": RATES}}, "arcface is not among `methods`"),
        ({"posteriors": ["laplac"]}, "unknown method 'laplac': did you mean 'laplace'"),
        *(
            ({"named": name}, "does not give each method a name of its own")
            for name in ("tuned", "{method}", "{method}-{seed}", "{method}-{", "a {method}", "-{method}")
        ),
        ({"studies": {"x": TUNED}}, "studies: 'x' is no allowed name; write tuned- and then lower-case letters"),
        ({"studies": {"tuned-../x": TUNED}}, "so that it replaces no experiment of yours and can be built"),
        ({"studies": {"tuned-X.2": TUNED}}, "'tuned-X.2' is no allowed name; write tuned- and then lower-case letters"),
        ({"studies": {"tuned-x": {"title": "x"}}}, r"test\.yaml: studies\.tuned-x\.runs: Field required"),
        ({"studies": {"tuned-x": {"title": "x", "runs": [{"datasets": ["glyphs"]}]}}}, "methods: Field required"),
        ({"studies": {"tuned-x": {"title": "x", "runs": [GRID | {"methods": "tuned"}]}}}, "methods: should be a"),
    ],
)
def test_a_wrong_study_stops_before_any_training(params, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        searched(params, tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": [GRID | {"datasets": ["glyph"]}]}, "studies.tuned-x: .*glyphs"),
        ({"runs": [GRID | {"methods": ["tuned", "cosin"]}]}, "studies.tuned-x: .*did you mean 'cosine'"),
        ({"runs": [GRID | {"set": {"training.epoch": [1]}}]}, "studies.tuned-x: .*epoch"),
        ({"metrics": ["retrieval/recall_at_x"]}, "studies.tuned-x: .*nothing computes metric"),
        ({"figures": ["metric_per_metod"]}, "studies.tuned-x: .*metric_per_method"),
        ({"runs": [GRID | {"set": {"loss.margin": [0.5]}}]}, "studies.tuned-x: .*margin"),
    ],
)
def test_a_study_that_cannot_be_planned_stops_before_any_training(params, changes, message):
    """It was planned for the first time when all trials were done."""
    good = STUDY | {"studies": {"tuned-x": TUNED}}
    report.check_studies(Search(params, every_method(params), parse(Tuning, SPEC | good, "t")), "t")
    bad = STUDY | {"studies": {"tuned-x": TUNED | changes}}
    with pytest.raises(ConfigError, match=message):
        report.check_studies(Search(params, every_method(params), parse(Tuning, SPEC | bad, "t")), "t")


def test_a_search_is_cross_validated_over_classes_and_seeds(params, tmp_path):
    search, trainer = searched(params, tmp_path, trials=2, batch=2, folds=3, seeds=[0, 1], methods=["cosine"])
    (first, _) = search.trials["cosine"]
    parts = [run.split("/") for run in first.runs]
    assert [(run[0], run[-1]) for run in parts] == [
        ("glyphs", "seed0"),
        ("glyphs+fold1", "seed1"),
        ("glyphs+fold2", "seed0"),
    ]
    assert search.spec.budget == 6 == len(trainer.asked)
    assert report.tuned_methods(search, "t")["cosine-tuned-t"]["budget"] == 6
    assert report.tuned_methods(search, "t")["cosine-tuned-t"]["tuned_on"] == "glyphs"


def test_equal_seconds_stand_beside_equal_trials(params, tmp_path):
    search, _ = searched(params, tmp_path / "runs", trials=4)
    cheap, dear = search.trials["proxy_anchor"], search.trials["cosine"]
    for trials, seconds in ((cheap, 2.0), (dear, 5.0)):
        trials[:] = [dataclasses.replace(trial, seconds=seconds) for trial in trials]
    table = report.table(search)
    assert "no longer than all of the cheapest method's (8 s)" in table
    assert report.best_within(dear, 8.0) == dear[0].objective
    assert report.best_within(cheap, 8.0) == search.best("proxy_anchor").objective
    assert report.best_within(dear, 1.0) == dear[0].objective, "one trial at least"
