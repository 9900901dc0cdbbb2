"""Many runs in one job: together they are what they are alone, and one that fails stops only itself."""

from pathlib import Path

import pytest

from probmetric import bundle, pipeline
from probmetric.config import RunSettings
from probmetric.io import FileError
from probmetric.planning import bundles
from probmetric.planning.bundles import BundlePlan, bundled
from probmetric.planning.plans import RunPlan
from probmetric.planning.runs import Run
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
