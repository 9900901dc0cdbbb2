"""What is run again, and what is not: real `snakemake -n` and real DVC on a finished workspace."""

import os
import re
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from probmetric.io import read_tensors, read_yaml
from probmetric.reporting.results import read_results

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

RUN_RULES = {"prepare", "run"}


def run_jobs(jobs):
    """The jobs that compute results (not reports)."""
    return {rule: names for rule, names in jobs.items() if rule in RUN_RULES}


def steps_made(workspace, run):
    """The steps that the job of a run makes."""
    workspace.snakemake()
    log = (workspace.folder / f"logs/run/{run}.log").read_text()
    return re.findall(rf"^(\w+) of {re.escape(run)}: ", log, flags=re.MULTILINE)


def only_smoke(params):
    """Configure what `smoke` needs and nothing else."""
    params.update(experiments=["smoke"], datasets=["digits", "glyphs"], ood={"digits": ["glyphs"]})
    params["noise"].update(datasets=[], variants=[])


def test_everything_promised_is_there(finished):
    for name in [
        "index.html",
        "table.md",
        "table.csv",
        "table.tex",
        "runs.parquet",
        "metrics",
        "figures/learning_curves.png",
    ]:
        assert (finished.folder / "reports/smoke" / name).stat().st_size > 0
    for name in ["contrastive", "laplace", "cosine"]:
        run = finished.folder / f"results/digits/{name}+training.epochs=2/seed0"
        record = read_yaml(run / "run.yaml")
        assert record["settings"]["method"] == name
        assert (run / "metrics.json").exists()
        assert (run / "posterior.safetensors").exists() == (name == "laplace")
    assert (finished.folder / "mlflow.db").exists()
    assert not list((finished.folder / "state/training").rglob("*.safetensors"))


def test_what_embedding_took_is_measured_and_reported(finished):
    table = read_results(finished.folder / "reports/smoke")
    taken = table[table["metric"].str.startswith("embedding/")]
    assert set(taken["metric"]) == {"embedding/test_seconds", "embedding/images_per_second"}
    times = taken.set_index(["run", "metric"])["value"].to_dict()
    for run in {run for run, _ in times}:
        images = times[run, "embedding/test_seconds"] * times[run, "embedding/images_per_second"]
        embedded, _ = read_tensors(finished.folder / f"results/{run}/embeddings/test.safetensors")
        assert round(images, 6) == len(embedded["label"])


def test_a_second_call_runs_nothing(finished):
    assert finished.planned() == {}


def test_another_selection_of_epochs_plans_its_runs_only(finished, in_folder):
    jobs = in_folder(finished.folder, "smoke+refit").planned()
    methods = ("contrastive", "laplace", "cosine")
    assert jobs["run"] == {f"digits/{name}+training.epochs=2+training.selection=refit/seed0" for name in methods}
    assert jobs["report"] == {"smoke+refit"}
    assert in_folder(finished.folder, "smoke+refit").planned("until=train").keys() == {"run"}


def test_adding_a_seed_runs_only_that_seed(workspace):
    workspace.edit_smoke(seeds=[0, 7])
    jobs = run_jobs(workspace.planned())
    assert set(jobs) == {"run"}
    assert all(name.endswith("/seed7") for name in jobs["run"])
    assert len(jobs["run"]) == 3


def test_adding_a_method_runs_only_that_method(workspace):
    workspace.edit_smoke(methods=["contrastive", "proxy_anchor", "laplace", "cosine"])
    jobs = run_jobs(workspace.planned())
    run = "digits/proxy_anchor+training.epochs=2/seed0"
    assert jobs == {"run": {run}}


def test_reordering_lists_runs_no_job_of_a_run(workspace):
    workspace.edit_smoke(methods=["cosine", "laplace", "contrastive"])

    def reorder(params):
        params["methods"] = dict(reversed(params["methods"].items()))
        params["datasets"].reverse()

    workspace.edit_yaml("params.yaml", reorder)
    assert run_jobs(workspace.planned()) == {}


def test_a_label_repeats_the_report_and_nothing_else(workspace):
    workspace.edit_yaml("params.yaml", lambda params: params["methods"]["cosine"].update(label="Cosine, renamed"))
    assert set(workspace.planned()) == {"report", "track"}


def test_results_know_their_settings_without_snakemakes_memory(workspace):
    """A clone, an rsync: new times, no .snakemake; other settings are seen all the same."""
    shutil.rmtree(workspace.folder / ".snakemake")
    for path in sorted((workspace.folder / "results").rglob("*"), reverse=True):
        os.utime(path)
    before = {path: path.read_bytes() for path in (workspace.folder / "results").rglob("*") if path.is_file()}
    workspace.snakemake()
    assert {path: path.read_bytes() for path in before} == before, "what started found everything made"
    assert workspace.planned() == {}
    workspace.edit_yaml("params.yaml", lambda params: params["methods"]["cosine"].update(dim=32))
    assert run_jobs(workspace.planned()) == {"run": {"digits/cosine+training.epochs=2/seed0"}}


def test_a_planned_job_does_what_was_planned_whatever_params_say_by_then(workspace):
    run = "digits/laplace+training.epochs=2/seed0"
    workspace.snakemake("-n")
    planned = workspace.folder / f"state/plans/{run}.json"
    (workspace.folder / "results" / run / "made/evaluate.json").unlink()
    workspace.edit_yaml("params.yaml", lambda params: params["methods"]["laplace"].update(base="cosine"))
    workspace.command("probmetric", "run", run, "--plan", str(planned.relative_to(workspace.folder)))
    record = read_yaml(workspace.folder / "results" / run / "run.yaml")
    assert record["settings"]["base"] == "contrastive"
    assert record["encoder"] == "digits/contrastive+training.epochs=2/seed0"


LOSS = """
import torch
from probmetric.losses import Loss, register


@register
class Spread(Loss):
    def compute(self, embeddings, labels, generator):
        return {sign}(embeddings - embeddings.mean(dim=0)).square().mean()
"""


def test_a_changed_formula_of_ones_own_is_run_again_and_a_comment_is_not(workspace):
    module = workspace.folder / "spread.py"
    module.write_text(LOSS.format(sign="-"))

    def use(params):
        params["plugins"] = ["spread"]
        params["methods"]["spread"] = {"loss": "spread"}

    workspace.edit_yaml("params.yaml", use)
    workspace.edit_smoke(methods=["contrastive", "spread"])
    workspace.snakemake()
    assert workspace.planned() == {}
    module.write_text("# a comment\n" + LOSS.format(sign="-"))
    assert workspace.planned() == {}
    module.write_text(LOSS.format(sign="+"))
    run = "digits/spread+training.epochs=2/seed0"
    assert run_jobs(workspace.planned()) == {"run": {run}}
    status = workspace.command("probmetric", "status", "smoke").stdout
    assert "1 finished, 1 stale" in status
    assert "spread changed" in status


def test_a_finished_workflow_leaves_git_clean(finished):
    finished.command("git", "add", "-A")
    finished.command("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all", check=False)
    tracked = finished.command("git", "ls-files", "results", "reports/smoke", "state", "logs").stdout
    assert tracked == ""
    assert "benchmark@" not in (finished.folder / "dvc.lock").read_text()


def test_data_may_lie_elsewhere_by_the_command_line(fresh):
    """`--config data=...` holds for the jobs too."""
    fresh.edit_smoke(methods=["contrastive"])
    data = "data={prepared: elsewhere}"
    fresh.snakemake(data)
    assert (fresh.folder / "elsewhere/digits/manifest.parquet").exists()
    assert not (fresh.folder / "data/prepared/digits").exists()
    assert (fresh.folder / "results/digits/contrastive+training.epochs=2/seed0/metrics.json").exists()
    assert fresh.planned(data) == {}


def test_changing_one_methods_settings_repeats_that_method(workspace):
    workspace.edit_yaml("params.yaml", lambda params: params["methods"]["cosine"].update(dim=32))
    jobs = run_jobs(workspace.planned())
    assert {name for names in jobs.values() for name in names} == {"digits/cosine+training.epochs=2/seed0"}


def test_changing_the_posterior_does_not_retrain(workspace):
    change = {"base": "contrastive", "uncertainty": {"name": "laplace", "samples": 5}}
    workspace.edit_yaml("params.yaml", lambda params: params["methods"].update(laplace=change))
    assert run_jobs(workspace.planned()) == {"run": {"digits/laplace+training.epochs=2/seed0"}}
    assert steps_made(workspace, "digits/laplace+training.epochs=2/seed0") == ["fit", "embed", "evaluate"]


def test_changing_evaluation_only_evaluates(workspace):
    workspace.edit_yaml("params.yaml", lambda params: params["evaluation"].update(calibration_bins=10))
    assert len(run_jobs(workspace.planned())["run"]) == 3
    assert steps_made(workspace, "digits/cosine+training.epochs=2/seed0") == ["evaluate"]


def test_newer_data_files_with_the_same_content_run_nothing(workspace):
    for path in (workspace.folder / "data/prepared").rglob("*"):
        os.utime(path)
    assert workspace.planned() == {}


def test_dvc_checkout_runs_nothing(workspace):
    shutil.rmtree(workspace.folder / "data/prepared/digits")
    time.sleep(1.1)
    workspace.command("dvc", "checkout", "prepare@digits")
    assert workspace.planned() == {}


def test_other_data_repeats_what_was_computed_from_it(workspace):
    digest = workspace.folder / "data/prepared/digits/digest"
    digest.write_text(digest.read_text().replace("0", "1"))
    assert run_jobs(workspace.planned())["run"]


def test_a_clone_with_results_retrains_nothing(finished, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(finished.folder, clone, ignore=shutil.ignore_patterns(".snakemake"), copy_function=shutil.copyfile)
    shutil.rmtree(clone / "data/prepared")
    copy = type(finished)(clone)
    copy.command("dvc", "checkout", "prepare@digits", "prepare@glyphs")
    weights = "results/digits/contrastive+training.epochs=2/seed0/model.safetensors"
    before = (clone / weights).stat().st_mtime_ns
    copy.snakemake()
    assert (clone / weights).stat().st_mtime_ns == before
    for run in (clone / "logs/run/digits").glob("*/seed0.log"):
        assert "everything is made" in run.read_text()
    assert copy.planned() == {}


def test_dvc_repro_after_snakemake_and_the_other_way_round(workspace):
    workspace.edit_yaml("params.yaml", only_smoke)
    shutil.rmtree(workspace.folder / "reports")
    workspace.command("snakemake")
    first = workspace.command("dvc", "repro").stdout
    assert "Nothing to be done" in first, first
    assert workspace.planned() == {}


def test_dvc_repro_alone_does_everything(workspace):
    workspace.edit_yaml("params.yaml", only_smoke)
    for name in ["results/digits/cosine+training.epochs=2", "reports", "state", ".snakemake"]:
        shutil.rmtree(workspace.folder / name)
    for name in ["prepared/digits", "prepared/glyphs"]:
        shutil.rmtree(workspace.folder / "data" / name)
    workspace.command("dvc", "repro")
    assert (workspace.folder / "reports/smoke/index.html").exists()
    assert workspace.planned() == {}
    assert "Nothing to be done" in workspace.command("dvc", "repro").stdout


def test_a_failed_run_stops_only_its_own_branch(workspace):
    run = Path("results/digits/cosine+training.epochs=2/seed0")
    shutil.rmtree(workspace.folder / "results/digits")
    (workspace.folder / run).mkdir(parents=True)
    (workspace.folder / run / "model.safetensors").mkdir()  # a folder where the weights should go
    (workspace.folder / run / "model.safetensors/x").touch()
    output = workspace.snakemake(check=False)
    assert "cosine+training.epochs=2/seed0" in output
    assert (workspace.folder / "results/digits/laplace+training.epochs=2/seed0/metrics.json").exists()
    assert not (workspace.folder / run / "metrics.json").exists()
    page = workspace.folder / "reports/smoke/index.html"
    assert "Partial: 1 of 3 runs are missing" in page.read_text(), "what is finished is reported"
    shutil.rmtree(workspace.folder / run)
    workspace.snakemake()
    assert (workspace.folder / run / "metrics.json").exists()
    assert "Partial" not in page.read_text()


def test_snakemakes_own_report_shows_tables_and_figures(workspace):
    workspace.snakemake("--report", "report.zip")
    with zipfile.ZipFile(workspace.folder / "report.zip") as report:
        text = "".join(
            report.read(name).decode(errors="ignore") for name in report.namelist() if name.endswith((".js", ".html"))
        )
    for shown in ["table.md", "learning_curves.png", "index.html", "selects the weights"]:
        assert shown in text


def test_the_terminal_shows_a_line_per_finished_run_and_dry_runs_their_jobs(workspace):
    run = "digits/cosine+training.epochs=2/seed0"
    (workspace.folder / "results" / run / "metrics.json").unlink()
    assert re.search(rf"^Job \d+: Run {re.escape(run)}$", workspace.snakemake("-n"), flags=re.MULTILINE)
    said = workspace.snakemake()
    assert re.search(
        rf"^\[ *\d+:\d\d\] results/{re.escape(run)}   Recall@1 [01]\.\d+   1 of 1 runs$", said, flags=re.MULTILINE
    )
    assert re.search(r"^\[ *\d+:\d\d\] page: reports/smoke/index.html$", said, flags=re.MULTILINE)
    assert not re.search("Job \\d+:|Finished jobid|steps .* done|Select jobs", said)
    assert "\033]8;;" not in said
