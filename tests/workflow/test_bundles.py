"""Many runs in one job: together they are what they are alone, and one that fails stops only itself."""

from pathlib import Path

import pytest
import torch

from probmetric import bundle, pipeline
from probmetric.config import RunSettings
from probmetric.io import FileError
from probmetric.planning import bundles
from probmetric.planning.bundles import BundlePlan, bundled
from probmetric.planning.plans import RunPlan
from probmetric.planning.runs import Run
from probmetric.planning.staleness import Judge
from probmetric.run_folder import RunFolder

TRAINING = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 32}
SPLITS = ("val", "test", "ood", "last")


def run(method: str, seed: int = 0, base: str | None = None, uncertainty="norm", **changes) -> Run:
    values = {"loss": "contrastive", "dim": 6, "backbone": {"name": "compact", "width": 4}, "training": TRAINING}
    settings = RunSettings(
        dataset="digits", method=method, base=base, seed=seed, uncertainty=uncertainty, **(values | changes)
    )
    return Run(f"digits/{method}/seed{seed}", f"digits/{base or method}/seed{seed}", settings)


@pytest.fixture
def place(prepared_dataset, tmp_path, monkeypatch) -> Path:
    (tmp_path / "data/prepared").mkdir(parents=True)
    (tmp_path / "data/prepared/digits").symlink_to(prepared_dataset("digits"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(*runs: Run) -> BundlePlan:
    plan = BundlePlan({each.name: str(RunPlan(each).write()) for each in runs})
    return BundlePlan.read(plan.path)


def embeddings(name: str) -> list[bytes]:
    return [RunFolder.named(name).embeddings_file(split).read_bytes() for split in SPLITS]


def test_a_bundle_makes_what_jobs_of_their_own_make(place, tmp_path, monkeypatch):
    runs = [run("plain"), run("sampled", base="plain", uncertainty={"name": "laplace", "samples": 4})]
    bundle.make(plan_of(*runs))
    together = [embeddings(each.name) for each in runs]
    metrics = [RunFolder.named(each.name).metrics for each in runs]
    (place / "results").rename(place / "together")
    for each in runs:
        alone = RunPlan(each)
        if each.trains:
            pipeline.train(alone)
        if each.fits_posterior:
            pipeline.fit_posterior(alone)
        pipeline.embed(alone)
        pipeline.evaluate(alone)
    assert [embeddings(each.name) for each in runs] == together
    assert [RunFolder.named(each.name).metrics for each in runs] == metrics


def test_a_failing_run_stops_only_itself_and_the_next_call_goes_on(place):
    broken = run("broken", training=TRAINING | {"selection_metric": "accuracy"})
    good = run("plain")
    with pytest.raises(FileError, match=r"1 of 2 runs failed; see logs/train/digits/broken/seed0\.log"):
        bundle.make(plan_of(broken, good))
    assert "defines no classifier" in (place / "logs/train/digits/broken/seed0.log").read_text()
    made = RunFolder.named(good.name).made_file("train")
    before = made.stat().st_mtime_ns
    bundle.make(plan_of(good))
    assert RunFolder.named(good.name).finished
    assert made.stat().st_mtime_ns == before, "what is finished is not repeated"


def test_few_runs_have_jobs_of_their_own_and_many_are_bundled(monkeypatch):
    monkeypatch.setattr(bundles, "MOST_RUNS", 5)
    monkeypatch.setattr(bundles, "_BUNDLES", 3)
    runs = {each.name: each for seed in range(4) for each in (run("plain", seed), run("late", seed, base="plain"))}
    assert bundled(runs, list(runs)[:5]) == []
    found = bundled(runs, runs)
    assert sorted(name for names in found for name in names) == sorted(runs)
    assert len(found) <= 4
    for names in found:
        for name in names:
            encoder = runs[name].encoder
            assert encoder in names, "runs that share an encoder are in one bundle"
            assert names.index(encoder) <= names.index(name)


def test_seeds_of_a_bundle_are_trained_as_one_and_are_what_they_are_alone(place, monkeypatch, caplog):
    caplog.set_level("INFO", "probmetric")
    stacked = {"training": TRAINING | {"stack": 2}}
    runs = [run("plain", seed, **stacked) for seed in (0, 1, 3)] + [run("late", 1, base="plain", **stacked)]
    plan = plan_of(*runs)
    together = []
    monkeypatch.setattr(
        pipeline,
        "train_together",
        lambda plans, train=pipeline.train_together, **given: together.append(train(plans, **given)),
    )
    bundle.make(plan)
    assert [[each.run.settings.seed for each in plans] for plans in together] == [[0, 1]]
    assert "2 seeds are trained together" in (place / "logs/train/digits/plain/seed1.log").read_text()
    assert all(RunFolder.named(each.name).finished for each in runs)
    bundle.make(plan)
    assert len(together) == 1, "what is finished is not repeated"
    found = {each.name: RunFolder.named(each.name).weights("last") for each in runs[:3]}
    alone = {each.name: run("plain", each.settings.seed) for each in runs[:3]}
    runs_alone = {each.name: each for each in alone.values()}
    assert all(Judge(runs_alone).verdict(name, "train").usable for name in alone), "how it was made is no identity"
    (place / "results").rename(place / "together")
    for name, each in alone.items():
        pipeline.train(RunPlan(each))
        for tensor, expected in RunFolder.named(name).weights("last").items():
            torch.testing.assert_close(found[name][tensor], expected, atol=5e-3, rtol=0)


def test_a_stack_that_is_refused_is_made_one_by_one(place):
    training = TRAINING | {"stack": 3, "schedule": "plateau"}
    runs = [run("plain", seed, training=training) for seed in range(2)]
    bundle.make(plan_of(*runs))
    assert all(RunFolder.named(each.name).finished for each in runs)


def test_seeds_to_be_stacked_are_bundled_however_few(monkeypatch):
    stacked = {"training": TRAINING | {"stack": 2}}
    several = [run("plain", seed, **stacked) for seed in range(5)] + [run("other", 0, dim=5, **stacked)]
    several += [run("late", 3, base="plain", **stacked), run("single", 0)]
    runs = {each.name: each for each in several}
    found = [{name.removeprefix("digits/") for name in names} for names in bundled(runs, runs)]
    assert {"plain/seed0", "plain/seed1"} in found
    assert {"plain/seed2", "plain/seed3", "late/seed3"} in found
    assert {"plain/seed4"} in found
    assert {"single/seed0"} in found
