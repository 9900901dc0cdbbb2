from __future__ import annotations

import csv
import json
import re
from collections import Counter
from statistics import fmean

import pytest
import yaml
from fabricated_runs import write_run

from probmetric.io import FileError, write_json
from probmetric.reporting._selection import late_gain
from probmetric.reporting.aggregate import aggregate, legal_name, read_records
from probmetric.runs.names import RunKey


@pytest.mark.parametrize(
    ("folder", "key", "variant", "data"),
    [
        ("results/digits/arcface/seed2", RunKey("digits", 0.0, "arcface", "", 2), "arcface", "digits"),
        (
            "results/glyphs+noise0.2/lam+dim=32+loss.scale=8/seed11",
            RunKey("glyphs", 0.2, "lam", "dim=32+loss.scale=8", 11),
            "lam+dim=32+loss.scale=8",
            "glyphs+noise0.2",
        ),
    ],
)
def test_a_run_folder_names_its_run(folder, key, variant, data):
    found = RunKey.parse(folder)
    assert found == key
    assert (found.variant, found.data) == (variant, data)
    assert found.run == folder.removeprefix("results/")


@pytest.mark.parametrize("folder", ["results/digits/arcface", "digits/arcface/seed", "seed1", "a/b/seed1x"])
def test_another_folder_is_refused_with_the_expected_form(folder):
    with pytest.raises(FileError, match="expected results/<dataset>"):
        RunKey.parse(folder)


def test_every_metric_of_every_finished_run_is_one_row(workspace, study):
    with (study.folder / "runs.csv").open(newline="") as file:
        every = list(csv.DictReader(file))
    rows = [row for row in every if not row["metric"].startswith("training/")]
    trained = sum((folder / "history.csv").exists() for folder in workspace.folders)
    counted = Counter(row["metric"] for row in every if row["metric"].startswith("training/"))
    assert {counted.pop(f"training/{name}") for name in ("epoch_seconds", "seconds", "epochs")} == {trained}
    assert not counted  # four validations have no late gain
    finished = [folder for folder in workspace.folders if (folder / "metrics.json").exists()]
    assert len(finished) == 41
    for folder in finished:
        metrics = json.loads((folder / "metrics.json").read_text())
        settings = yaml.safe_load((folder / "run.yaml").read_text())["settings"]
        run = "/".join(folder.parts[-3:])
        mine = [row for row in rows if row["run"] == run]
        assert {row["metric"]: row["value"] for row in mine} == {
            name: "" if value is None else repr(value) for name, value in metrics.items()
        }
        assert {(row["dataset"], float(row["noise"]), row["method"], int(row["seed"])) for row in mine} == {
            (settings["dataset"], settings["noise"], settings["method"], settings["seed"])
        }
    assert len(rows) == sum(len(json.loads((folder / "metrics.json").read_text())) for folder in finished)


@pytest.mark.parametrize(
    ("values", "gain"),
    [
        ([0.2, 0.4, 0.3, 0.5, 0.6], 0.2),
        ([0.2, 0.5, 0.3, 0.4, 0.4], -0.2),
        ([None, 0.1, None, 0.2, 0.3, 0.4, 0.5], 0.25),
        ([0.1, 0.2, 0.3, 0.4], None),
    ],
)
def test_late_gain_is_what_the_last_fifth_of_the_validations_adds_to_the_best_before(values, gain):
    assert late_gain([{"val_metric": value} for value in values]) == pytest.approx(gain)


def test_the_late_gain_of_a_run_is_one_of_its_rows(tmp_path):
    metrics = {"retrieval/recall_at_1": 0.5}
    folder = write_run(tmp_path, "digits/arcface/seed0", metrics, epochs=6)
    aggregate([folder], tmp_path / "runs.csv", tmp_path / "metrics.json")
    (found,) = [row.value for row in read_records(tmp_path / "runs.csv") if row.metric == "training/late_gain"]
    assert found == pytest.approx((1 - 0.4 * 0.5**5) / (1 - 0.4 * 0.5**4) - 1)


def test_the_summary_holds_means_over_seeds_under_legal_names(workspace, study):
    summary = json.loads((study.folder / "metrics.json").read_text())
    values = [
        json.loads((workspace.root / f"results/glyphs+noise0.2/laplace/seed{seed}/metrics.json").read_text())
        for seed in range(3)
    ]
    expected = fmean(value["ood/symbols/auroc"] for value in values)
    assert summary["glyphs-noise0.2/laplace/ood/symbols/auroc"] == pytest.approx(expected, rel=1e-12)
    assert not any("ece" in name for name in summary if name.startswith("glyphs"))
    assert all(re.fullmatch(r"[\w\-. :/]+", name) for name in summary)


def test_only_the_asked_metrics_are_summarised(workspace, tmp_path):
    aggregate(workspace.folders, tmp_path / "a.csv", tmp_path / "a.json", metrics=["clustering/nmi"])
    assert all(name.endswith("clustering/nmi") for name in json.loads((tmp_path / "a.json").read_text()))


def test_the_order_of_the_folders_does_not_matter(workspace, tmp_path):
    for name, folders in (("a", workspace.folders), ("b", [*reversed(workspace.folders), workspace.folders[0]])):
        aggregate(folders, tmp_path / f"{name}.csv", tmp_path / f"{name}.json")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_what_was_written_is_read_back(workspace, study):
    for record in read_records(study.folder / "runs.csv"):
        values = json.loads((workspace.root / "results" / record.key.run / "metrics.json").read_text())
        assert record.value == values.get(record.metric, record.value)
        assert record.metric in values or record.metric.startswith("training/")


def test_names_keep_what_is_legal_and_replace_the_rest():
    assert legal_name("glyphs+noise0.2/lam+dim=32/ood/a/auroc") == "glyphs-noise0.2/lam-dim:32/ood/a/auroc"


def test_a_damaged_file_is_named(workspace, tmp_path):
    folder = workspace.folders[0]
    (folder / "metrics.json").write_text('{"retrieval/recall_at_1": 0.')
    with pytest.raises(FileError, match=r"digits/contrastive/seed0/metrics\.json is damaged.*delete the run folder"):
        aggregate(workspace.folders, tmp_path / "a.csv", tmp_path / "a.json")
    write_json(folder / "metrics.json", {"retrieval/recall_at_1": "high"})
    with pytest.raises(FileError, match=r"metrics\.json is damaged \(retrieval/recall_at_1 should be a valid number\)"):
        aggregate(workspace.folders, tmp_path / "a.csv", tmp_path / "a.json")
    assert not (tmp_path / "a.csv").exists()


def test_a_table_of_another_shape_is_refused(tmp_path):
    (tmp_path / "runs.csv").write_text("run,metric\n")
    with pytest.raises(FileError, match="expected the columns run, dataset"):
        read_records(tmp_path / "runs.csv")
    with pytest.raises(FileError, match="run the aggregate step"):
        read_records(tmp_path / "none.csv")
