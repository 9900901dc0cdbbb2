from __future__ import annotations

import json
import math
import re
from collections import Counter
from statistics import fmean

import pandas as pd
import pytest
import yaml
from fabricated_runs import Workspace, gathered, write_run

from probmetric.io import FileError, write_json
from probmetric.reporting.figures import STANDING
from probmetric.reporting.report import KINDS, contents_of, write_report, write_tables
from probmetric.reporting.results import collect, read_results, write_results
from probmetric.reporting.tables import result_table
from probmetric.runs.folder import late_gain
from probmetric.runs.names import RunKey, legal_name


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


@pytest.mark.parametrize(
    "folder", ["results/digits/arcface", "digits/arcface/seed", "seed1", "a/b/seed1x", "a\nb/c/seed1", ""]
)
def test_another_folder_is_refused_with_the_expected_form(folder):
    with pytest.raises(FileError, match="expected results/<dataset>"):
        RunKey.parse(folder)


def test_every_metric_of_every_finished_run_is_one_row(workspace, study):
    every = read_results(study.folder).to_dict("records")
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
        assert {row["metric"]: None if math.isnan(row["value"]) else row["value"] for row in mine} == metrics
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
    table = collect([folder])
    (found,) = table[table["metric"] == "training/late_gain"]["value"]
    assert found == pytest.approx((1 - 0.4 * 0.5**5) / (1 - 0.4 * 0.5**4) - 1)


def test_the_summary_holds_the_means_of_the_table_under_legal_names(workspace, study):
    (study.folder / "metrics").mkdir()
    (study.folder / "metrics" / "glyphs--of-a-method-that-is-no-more.json").write_text("{}")
    write_tables(contents_of(study))
    summary = json.loads((study.folder / "metrics" / "glyphs-noise0.2--laplace.json").read_text())
    values = [
        json.loads((workspace.root / f"results/glyphs+noise0.2/laplace/seed{seed}/metrics.json").read_text())
        for seed in range(3)
    ]
    expected = fmean(value["ood/symbols/auroc"] for value in values)
    assert summary["ood/symbols/auroc"] == pytest.approx(expected, rel=1e-12)
    assert list(summary) == [name for name in study.metrics if name != "calibration/ece"], "that is not defined for it"
    names = [path.name for path in (study.folder / "metrics").iterdir()]
    assert len(names) == 14
    assert all(re.fullmatch(r"[\w\-.]+", name) for name in names)


def test_a_smaller_report_keeps_no_file_of_a_method_or_figure_that_is_no_more(workspace):
    context = workspace.context(figures=("noise_robustness",), metrics=("retrieval/recall_at_1",))
    write_report(gathered(context))
    kept = context.folder / "figures" / "notes.txt"
    kept.write_text("mine")
    runs = [run for run in workspace.runs if run.startswith("glyphs/laplace/")]
    smaller = workspace.context(runs=runs, figures=(), metrics=context.metrics)
    write_report(gathered(smaller))
    plots = [path.name for kind in KINDS for path in (context.folder / "plots" / kind).iterdir()]
    assert plots == ["glyphs--laplace.csv"] * 2
    assert {path.stem for path in (context.folder / "figures").iterdir()} == {"notes", *STANDING}


def test_the_order_of_the_folders_does_not_matter(workspace, tmp_path):
    for name, folders in (("a", workspace.folders), ("b", [*reversed(workspace.folders), workspace.folders[0]])):
        write_results(collect(folders), tmp_path / name)
    assert (tmp_path / "a/runs.parquet").read_bytes() == (tmp_path / "b/runs.parquet").read_bytes()


def test_what_was_written_is_read_back(workspace, study):
    for row in read_results(study.folder).itertuples():
        values = json.loads((workspace.root / "results" / row.run / "metrics.json").read_text())
        value = None if math.isnan(row.value) else row.value
        assert value == values.get(row.metric, value)
        assert row.metric in values or row.metric.startswith("training/")


def test_every_row_says_its_split_and_what_is_resampled(workspace):
    folder = workspace.folders[0]
    errors = {"calibration/ece": [0.02, 9.0], "ood/symbols/auroc": [0.03, 12.0], "retrieval/recall_at_1": [0.33, 3.0]}
    contributions = {"value": [1.0, 0.0, 1.0], "class": [3, 5, 8]}
    write_json(folder / "curves.json", {"unit_errors": errors, "units/retrieval/recall_at_1": contributions})
    table = collect([folder]).set_index("metric")
    splits = {"ood/symbols/auroc": "ood", "val/retrieval/recall_at_1": "val", "retrieval/recall_at_1": "test"}
    assert table["split"][list(splits)].to_dict() == splits
    assert table["split"]["last/retrieval/recall_at_1"] == "last"
    assert sorted(table.index[table["unit"] == "class"]) == [
        "calibration/ece",
        "ood/symbols/auroc",
        "retrieval/recall_at_1",
    ]
    assert (table["unit_error"]["calibration/ece"], table["unit_count"]["calibration/ece"]) == (0.02, 9)
    assert table["unit"]["clustering/nmi"] == "seed"
    assert list(table["contributions"]["retrieval/recall_at_1"]) == [1.0, 0.0, 1.0]
    assert list(table["unit_labels"]["retrieval/recall_at_1"]) == [3, 5, 8]


def test_images_that_nothing_answers_are_no_set_of_strangers_to_average_over(workspace):
    """The width of `ood/auroc` on faces was that of the few people of one photograph, who are not in its value."""
    run = "digits/contrastive/seed0"
    values = {"retrieval/recall_at_1": 0.5, "ood/auroc": 0.9, "ood/symbols/auroc": 0.9, "ood/unanswerable/auroc": 0.5}
    values |= {"ood/symbols/auroc_knn": 1.0, "ood/unanswerable/auroc_knn": 0.5, "ood/unanswerable/auroc_p": 0.5}
    folder = write_run(workspace.root, run, values)
    errors = {"ood/symbols/auroc": [0.001, 12.0], "ood/unanswerable/auroc": [0.1, 3.0]}
    write_json(folder / "curves.json", {"unit_errors": errors})
    measured = gathered(workspace.context(runs=[run])).measured["digits"]["contrastive"]
    assert (measured["ood/auroc"].values, measured["ood/auroc"].errors) == ({0: 0.9}, {0: 0.001})
    assert measured["ood/auroc_knn"].values == {0: 1.0}
    assert "ood/auroc_p" not in measured


@pytest.mark.parametrize("labels", [[3, 5], [5, 3, 8], [3, 5, 9]])
def test_methods_measured_on_other_classes_or_in_another_order_are_not_compared(workspace, labels):
    """Contributions of different lengths once had no variance; those in another order made differences of nothing."""
    for run, kept in (("digits/contrastive/seed0", [3, 5, 8]), ("digits/proxy_nca/seed0", labels)):
        curve = {"value": [1.0, 0.0, 1.0][: len(kept)], "class": kept}
        write_json(workspace.root / "results" / run / "curves.json", {"units/retrieval/recall_at_1": curve})
    with pytest.raises(FileError, match=r"recall_at_1 on digits: digits/proxy_nca/seed0 was measured on \d units"):
        result_table(gathered(workspace.context()))


def test_names_keep_what_is_legal_and_replace_the_rest():
    assert legal_name("glyphs+noise0.2/lam+dim=32/ood/a/auroc") == "glyphs-noise0.2/lam-dim:32/ood/a/auroc"


def test_a_damaged_file_is_named(workspace):
    folder = workspace.folders[0]
    (folder / "metrics.json").write_text('{"retrieval/recall_at_1": 0.')
    with pytest.raises(FileError, match=r"digits/contrastive/seed0/metrics\.json is damaged.*delete the run folder"):
        collect(workspace.folders)
    write_json(folder / "metrics.json", {"retrieval/recall_at_1": "high"})
    with pytest.raises(FileError, match=r"metrics\.json is damaged \(retrieval/recall_at_1 should be a valid number\)"):
        collect(workspace.folders)


def test_a_table_of_another_shape_is_refused(tmp_path):
    pd.DataFrame({"run": ["a"], "metric": ["b"]}).to_parquet(tmp_path / "runs.parquet")
    with pytest.raises(FileError, match="expected the columns run, data, class_split"):
        read_results(tmp_path)
    (tmp_path / "runs.parquet").write_bytes(b"PAR1")
    with pytest.raises(FileError, match=r"runs.parquet is damaged .*make the experiment's report again"):
        read_results(tmp_path)
    with pytest.raises(FileError, match=r"none/runs.parquet is missing; make the experiment's report again"):
        read_results(tmp_path / "none")


def test_splits_of_the_classes_are_the_values_and_their_test_classes_the_units(tmp_path):
    """Two splits with two seeds each: a value per split; class 5, tested in both, is one unit."""
    tested = {"glyphs": [3, 5], "glyphs+split1": [5, 8]}
    values = {"glyphs": [[0.2, 0.6], [0.4, 0.8]], "glyphs+split1": [[0.6, 1.0], [0.8, 1.0]]}
    runs = []
    for data, of_seeds in values.items():
        for seed, classes in enumerate(of_seeds):
            runs.append(f"{data}/a/seed{seed}")
            folder = write_run(tmp_path, runs[-1], {"retrieval/recall_at_1": sum(classes) / 2})
            curve = {"value": classes, "class": tested[data]}
            write_json(folder / "curves.json", {"units/retrieval/recall_at_1": curve})
    context = gathered(Workspace(tmp_path, tuple(runs)).context(metrics=("retrieval/recall_at_1",), figures=()))
    assert context.data == ["glyphs"]
    (series,) = context.series("glyphs", "retrieval/recall_at_1").values()
    assert series.values == pytest.approx({0: 0.5, 1: 0.85})
    assert series.unit_labels == (3, 5, 8)
    assert series.contributions[0] == pytest.approx([0.5 - 1.5 * 0.2, 0.5 + 1.5 * 0.2, 0.5])
    assert [values.mean() for values in series.contributions.values()] == pytest.approx([0.5, 0.85])
    (row,) = result_table(context).itertuples()
    assert (row.seeds, row.seeds_expected, row.finished, row.runs_expected) == (2, 2, 4, 4)
    assert row.mean == pytest.approx(0.675)
