"""The summary and the plots as DVC reads them: real `dvc` commands in a real repository."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fabricated_runs import gathered

from probmetric.reporting import report

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"DVC_NO_ANALYTICS": "true", "DVC_STUDIO_OFFLINE": "true"}


def run(*command: str, folder: Path) -> str:
    program = shutil.which(command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    options = {"cwd": folder, "capture_output": True, "text": True, "env": ENVIRONMENT, "check": False}
    done = subprocess.run([program, *command[1:]], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def named(outputs: list[dict[str, object]], experiment: str) -> list[dict[str, object]]:
    """Return a stage's outputs for one experiment."""
    return [{name.replace("${item.experiment}", experiment): how for name, how in one.items()} for one in outputs]


@pytest.mark.slow
@pytest.mark.workflow
def test_dvc_compares_revisions(study, workspace):
    root = workspace.root
    report.write_tables(report.contents_of(study))
    shutil.copy(ROOT / ".gitignore", root)
    # What Snakemake made is handed to DVC as in the repository's own dvc.yaml, where Git ignores it.
    handed = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["benchmark"]
    stage = {"cmd": "true"} | {kind: named(handed[kind], "study") for kind in ("outs", "metrics", "plots")}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"benchmark": stage}}))
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    run("git", "init", "-q", folder=root)
    run("dvc", "init", "-q", folder=root)
    assert json.loads(run("dvc", "metrics", "show", "--json", folder=root)), "before DVC has seen the files"
    run("dvc", "repro", "--quiet", folder=root)
    run("git", "add", "dvc.yaml", "dvc.lock", ".gitignore", ".dvc", folder=root)
    run("git", *identity, "commit", "-q", "-m", "first", folder=root)
    assert "reports" not in run("git", "status", "--short", folder=root), "reports are made, not kept"
    path, name = study.folder / "metrics" / "glyphs-noise0.2--laplace.json", "ood/symbols/auroc"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {name: summary[name] + 0.25}))
    headline = study.folder / "headline.json"
    answered = json.loads(headline.read_text())
    answered["digits"]["recall_at_1"] += 0.125
    headline.write_text(json.dumps(answered))
    run("dvc", "repro", "--quiet", folder=root)
    run("git", *identity, "commit", "-qam", "second", folder=root)
    moved = json.loads(run("dvc", "metrics", "diff", "--json", "HEAD^", "HEAD", folder=root))
    assert moved["reports/study/headline.json"]["digits.recall_at_1"]["diff"] == pytest.approx(0.125)
    table = run("dvc", "exp", "show", "--only-changed", "--no-pager", "-n", "2", folder=root)
    assert "digits.recall_at_1" in table
    assert "digits.method" not in table, "a column per number that changed"
    assert max(map(len, table.splitlines())) <= 80
    every = ["--json", "HEAD^", "HEAD", "-R", "--targets", "reports/study/metrics"]
    by_file = json.loads(run("dvc", "metrics", "diff", *every, folder=root))
    changed = {file: values for file, values in by_file.items() if values}
    assert list(changed) == ["reports/study/metrics/glyphs-noise0.2--laplace.json"]
    ((key, value),) = changed[next(iter(changed))].items()
    assert (key, value["diff"]) == (name, pytest.approx(0.25))
    table = run("dvc", "metrics", "show", "--md", "-R", "reports/study/metrics", folder=root)
    row = next(line for line in table.splitlines() if "glyphs--laplace" in line)
    assert row.count("|") < 15, "methods are rows, metrics columns"
    shown = json.loads(run("dvc", "plots", "show", "--json", folder=root))["data"]
    assert {
        "reports/study/plots/means.csv",
        str(Path("reports/study/plots/validation/glyphs-noise0.2--laplace.csv")),
        str(Path("reports/study/plots/sparsification/digits--proxy_nca.csv")),
    } <= {key.split("::")[-1] for key in shown}


def test_the_plots_hold_means_over_seeds(study, workspace):
    written = report.write_tables(report.contents_of(study))
    paths = [path for path in written if path.is_relative_to(study.folder / "plots")]
    assert len(paths) == len({path.name for path in paths if path.parent.name == "validation"}) + 1 + sum(
        path.parent.name == "sparsification" for path in paths
    )
    with (study.folder / "plots" / "validation" / "glyphs--proxy_nca.csv").open() as file:
        rows = list(csv.DictReader(file))
    seeds = [next(r for r in study.runs if r.key.run == f"glyphs/proxy_nca/seed{seed}").history for seed in range(3)]
    for number, row in enumerate(rows):
        assert int(row["epoch"]) == number
        assert float(row["validation_metric"]) == pytest.approx(sum(seed[number]["val_metric"] for seed in seeds) / 3)
    with (study.folder / "plots" / "means.csv").open() as file:
        means = {row["name"]: row for row in csv.DictReader(file)}
    assert "glyphs+noise0.2/arcface" not in means
    assert means["glyphs/laplace"]["calibration_ece"] == ""
    summary = json.loads((study.folder / "metrics" / "digits--laplace.json").read_text())
    assert float(means["digits/laplace"]["sparsification_ausc"]) == pytest.approx(summary["sparsification/ausc"])


def test_files_of_a_report_can_be_checked_out_anywhere(workspace, study):
    run_of = workspace.root / "results" / "digits/proxy_nca+loss.scale=4.0/seed0"
    shutil.copytree(workspace.root / "results" / "digits/proxy_nca/seed0", run_of)
    context = workspace.context("swept", runs=["digits/proxy_nca+loss.scale=4.0/seed0"])
    context = gathered(context)
    names = [path.name for path in report.write_tables(report.contents_of(context))]
    assert "digits--proxy_nca-loss.scale=4.0.csv" in names
    assert not any(set(name) & set('<>:"/\\|?*') for name in names)
