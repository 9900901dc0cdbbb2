"""Many runs in one job: together they are what they are alone, and one that fails stops only itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_helpers import wait_for

from probmetric import bundle
from probmetric.config import RunSettings
from probmetric.io import FileError, read_csv
from probmetric.job_times import JOBS
from probmetric.planning import bundles, needs
from probmetric.planning.bundles import BundlePlan, bundled
from probmetric.planning.plans import RunPlan
from probmetric.planning.runs import Run
from probmetric.runs import steps as pipeline
from probmetric.runs.folder import RunFolder

ROW = ("s", "h:m:s", "max_rss", "max_vms", "max_uss", "max_pss", "io_in", "io_out", "mean_load", "cpu_time")
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


def test_a_run_that_is_killed_stops_only_itself(place, monkeypatch):
    """As the kernel kills a process that wants too much memory."""
    train = pipeline.train

    def killed(plan, **given):
        if plan.run.settings.method == "large":
            os.kill(os.getpid(), signal.SIGKILL)
        train(plan, **given)

    monkeypatch.setattr(pipeline, "train", killed)
    with pytest.raises(FileError, match=r"1 of 2 runs failed; see logs/train/digits/large/seed0\.log"):
        bundle.make(plan_of(run("large"), run("plain")))
    assert "killed by SIGKILL" in (place / "logs/train/digits/large/seed0.log").read_text()
    assert RunFolder.named("digits/plain/seed0").finished
    monkeypatch.setattr(pipeline, "train", train)
    bundle.make(plan_of(run("large"), run("plain")))
    assert RunFolder.named("digits/large/seed0").finished


def test_every_step_leaves_the_row_of_a_job_of_its_own(place):
    bundle.make(plan_of(run("plain")))
    rows = {path.parts[-4]: read_csv(path, "", delimiter="\t")[1] for path in JOBS.rglob("plain/seed0.tsv")}
    assert set(rows) == {"train", "embed", "evaluate"}
    for (row,) in rows.values():
        assert 0 < float(row["cpu_time"]) < 4 * float(row["s"]) + 1
        assert 50 < float(row["max_rss"]) < 5000
        assert list(row) == [
            "s",
            "h:m:s",
            "max_rss",
            "max_vms",
            "max_uss",
            "max_pss",
            "io_in",
            "io_out",
            "mean_load",
            "cpu_time",
        ]
    assert needs.Needs().of(run("plain", 1), "train").minutes < needs.UNKNOWN["train"].minutes


def test_a_stop_saves_the_training_and_ends_the_bundle(place):
    """As at a scheduler's time limit: SIGTERM comes to the process that makes the bundle."""
    long = run("long", training=TRAINING | {"epochs": 500, "steps_per_epoch": 20})
    plan = plan_of(long, run("plain"))
    program = "import sys; from probmetric.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "make", str(plan.path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: list((place / "state/training" / long.name).glob("step-*")), "a checkpoint", 300)
        process.terminate()
        assert "stopped by request" in process.communicate(timeout=300)[1]
        assert process.returncode == 2
    assert "the state is saved" in (place / f"logs/train/{long.name}.log").read_text()
    assert list((place / "state/training" / long.name).glob("step-*"))
    assert not RunFolder.named("digits/plain/seed0").trained


def test_a_user_may_choose_how_many_runs_make_a_job():
    runs = {each.name: each for seed in range(4) for each in (run("plain", seed), run("late", seed, base="plain"))}
    assert [len(names) for names in bundled(runs, runs, 4)] == [4, 4]
    assert [len(names) for names in bundled(runs, runs, 1)] == [2, 2, 2, 2], "what shares an encoder stays together"
    assert bundled(runs, []) == bundled(runs, [], 4) == []


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
