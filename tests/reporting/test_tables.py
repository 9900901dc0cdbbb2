from __future__ import annotations

import csv
import io
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from fabricated_runs import Workspace, gathered, study_metrics, write_run
from scipy import stats

from probmetric import metrics
from probmetric.io import write_json
from probmetric.metrics.statistics import Sample
from probmetric.registry import UnknownNameError
from probmetric.reporting import answers, report, tables
from probmetric.reporting.comparison import compare, other_lengths, summarise, usual
from probmetric.reporting.figures._data import best_runs
from probmetric.reporting.page import Contents, render
from probmetric.reporting.report import contents_of, write_tables
from probmetric.reporting.tables import result_table
from probmetric.reporting.words import escape_latex
from probmetric.runs.names import RunKey


def sample(values) -> Sample:
    return Sample(dict(values if isinstance(values, dict) else enumerate(map(float, values))))


def compared(metric: str, values):
    return compare(metric, {name: sample(of_seeds) for name, of_seeds in values.items()})


def markdown(table) -> str:
    nothing = SimpleNamespace(title="t", name="t", data=())
    return report.markdown(Contents(nothing, table, [], []))


HIGHER = ("retrieval/recall_at_10", "retrieval/map_at_r", "retrieval/map_at_1000", "ood/cars/auroc", "clustering/nmi")
LOWER = ("calibration/retrieval_ece_as_published", "structure/proxy_w1", "training/epoch_seconds")
LOWER += (
    "calibration/ece",
    "calibration/ece_l2",
    "classification/nll",
    "ood/cars/fpr_at_95",
    "sparsification/ausc_gap_to_oracle",
)


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("retrieval/recall_at_1", "Recall@1"),
        ("retrieval/map_at_1000", "MAP@1000"),
        ("last/retrieval/recall_at_1", "Recall@1 (last epoch)"),
        ("val/retrieval/map_at_r", "MAP@R (validation)"),
        ("ood/cars/auroc", "AUROC (cars)"),
        ("ood/auroc", "AUROC (OOD)"),
        ("retrieval/map_at_5_empty_as_one", "MAP@5 (empty as one)"),
        ("sparsification/ausc_gap_to_oracle", "AUSC gap to oracle"),
        ("sparsification/error_auroc", "AUROC (error)"),
        ("ood/cub/auprc_trapezoid", "AUPRC (cub, trapezoid)"),
        ("sparsification/ausc_as_published", "AUSC (as published)"),
        ("structure/density", "Density"),
        ("calibration/retrieval_ece_as_published", "ECE (retrieval as published)"),
        ("retrieval_euclidean/map_at_r", "MAP@R (Euclidean)"),
        ("train/structure/richness_kl", "Spectrum KL (training images)"),
        ("training/epoch_seconds", "Seconds per epoch"),
    ],
)
def test_metrics_have_the_names_of_the_field(metric, label):
    assert metrics.label(metric) == label


def test_directions_are_known():
    assert {metrics.direction(metric) for metric in HIGHER} == {"higher"}
    assert {metrics.direction(metric) for metric in LOWER} == {"lower"}
    assert metrics.direction("structure/density") == "none"
    with pytest.raises(UnknownNameError, match="unknown metric 'structure/densty': did you mean 'structure/density'"):
        metrics.direction("structure/densty")
    assert metrics.heading("calibration/ece") == "ECE ↓"


def test_intervals_agree_with_the_textbook():
    values = [0.71, 0.74, 0.69, 0.78]
    cell = summarise(sample(values))
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (cell.mean - cell.half_width, cell.mean + cell.half_width) == pytest.approx((low, high), rel=1e-10)
    assert summarise(sample([0.5])).half_width is None


def test_best_and_ties_agree_with_a_paired_test_with_holm():
    generator = np.random.default_rng(4)
    base = generator.normal(0.7, 0.05, 6)
    methods = {
        "close": base - 0.002 + generator.normal(0, 0.01, 6),
        "best": base + 0.02,
        "far": base - 0.2 + generator.normal(0, 0.01, 6),
        "middle": base - 0.012 + generator.normal(0, 0.012, 6),
    }
    cells = compared("retrieval/recall_at_1", methods)
    assert [name for name, cell in cells.items() if cell.state == "best"] == ["best"]
    pairs = list(itertools.combinations(methods, 2))
    raw = {pair: stats.ttest_rel(methods[pair[0]], methods[pair[1]]).pvalue for pair in pairs}
    running, smallest = 0.0, {}
    for rank, pair in enumerate(sorted(raw, key=raw.__getitem__)):
        running = max(running, min(1.0, (6 - rank) * raw[pair]))
        loser = min(pair, key=lambda name: methods[name].mean())
        smallest.setdefault(loser, running)
    for name, p_value in smallest.items():
        assert cells[name].p_value == pytest.approx(p_value, rel=1e-9)
        assert cells[name].state == ("not worse" if p_value >= 0.05 else "worse")


def test_who_loses_to_another_is_not_the_best_though_the_best_varies_too_much_to_tell():
    values = {"best": [0.5, 0.9, 0.95, 0.7], "steady": [0.7, 0.702, 0.701, 0.7], "low": [0.6, 0.602, 0.6, 0.601]}
    cells = compared("retrieval/recall_at_1", values)
    assert {name: cell.state for name, cell in cells.items()} == {"best": "best", "steady": "no power", "low": "worse"}
    assert cells["low"].p_value < 0.01


def test_a_clear_difference_is_still_found_among_many_methods():
    generator = np.random.default_rng(1)
    values = {f"m{k}": dict(enumerate(0.7 + 0.003 * generator.normal(size=5))) for k in range(22)}
    values["far"] = dict(enumerate(0.2 + 0.003 * generator.normal(size=5)))
    assert compared("retrieval/recall_at_1", values)["far"].state == "worse"


def test_only_shared_seeds_are_compared():
    first = {0: 0.1, 1: 0.2, 2: 0.15, 3: 0.12}
    cells = compared("calibration/ece", {"a": first, "b": {1: 0.3, 2: 0.26, 3: 0.25, 7: 0.01}})
    assert cells["a"].state == "best"
    expected = stats.ttest_rel([0.3, 0.26, 0.25], [0.2, 0.15, 0.12]).pvalue
    assert cells["b"].p_value == pytest.approx(expected, rel=1e-9)


def test_who_loses_on_the_shared_seeds_is_not_the_best_by_easier_ones():
    """`b` was also run on two hard splits, `a` was not: on the three that both have, `b` wins each time."""
    values = {"a": {0: 0.9, 1: 0.91, 2: 0.92}, "b": {0: 0.95, 1: 0.965, 2: 0.97, 3: 0.5, 4: 0.52}}
    cells = compared("retrieval/recall_at_1", values)
    assert {name: cell.state for name, cell in cells.items()} == {"a": "worse", "b": "best"}
    shared = ([each[seed] for seed in range(3)] for each in values.values())
    assert cells["a"].p_value == pytest.approx(stats.ttest_rel(*shared).pvalue)


def test_too_few_shared_seeds_are_untested_not_worse():
    """An ensemble of seeds 0, 3, 6 against methods of seeds 0, 1, 2: once "better than every other method tested"."""
    others = {name: {0: 0.7, 1: 0.71, 2: 0.72 + k / 100} for k, name in enumerate("bcd")}
    cells = compared("retrieval/recall_at_1", {"ensemble": {0: 0.9, 3: 0.91, 6: 0.92}, **others})
    assert cells["ensemble"].state == "best"
    assert {cells[name].state for name in "bcd"} == {"untested"}
    assert not any(cells[name].state == "not worse" for name in "bcd")


def test_what_was_not_tested_is_marked_in_every_format(workspace):
    values = {"a": (0.9, 0.91), "b": (0.7, 0.71)}
    runs = [f"digits/{name}/seed{seed}" for name in values for seed in range(2)]
    for run in runs:
        _, name, seed = run.split("/")
        write_run(workspace.root, run, {"retrieval/recall_at_1": values[name][int(seed[-1])]})
    context = gathered(workspace.context(runs=runs, metrics=("retrieval/recall_at_1",), figures=()))
    table = result_table(context)
    assert "0.705 ± 0.064 †" in markdown(table)
    assert r"0.705 \pm 0.064^{\dagger}" in tables.latex(table, "t")
    assert r"$\dagger$: not tested" in escape_latex(tables.LEGEND)
    (best, other) = csv.DictReader(io.StringIO(tables.csv_text(table)))
    assert (best["against_best"], other["against_best"], other["p_holm"]) == ("best", "untested", "")
    (answer,) = answers.answers(table)
    assert answer.significance.startswith("Not tested")


@pytest.mark.parametrize("metric", ["structure/density", "exact/p_right_regret"])
def test_a_metric_by_which_methods_are_not_ranked_has_no_best(metric):
    cells = compared(metric, {"a": {0: 1.0, 1: 1.1}, "b": {0: 2.0, 1: 2.2}})
    assert not any(cell.state == "best" or cell.state == "not worse" for cell in cells.values())


def test_lower_is_better_picks_the_lowest():
    cells = compared("calibration/ece", {"a": {0: 0.3, 1: 0.31}, "b": {0: 0.1, 1: 0.13}})
    assert [name for name, cell in cells.items() if cell.state == "best"] == ["b"]


def test_rows_follow_the_experiment_and_missing_runs_are_said(study):
    table = result_table(study)
    assert list(table["title"].unique()) == ["digits", "glyphs", "glyphs, 20 % label noise"]
    rows = table.drop_duplicates(["title", "method"]).set_index(["title", "method"])
    assert list(rows.loc["digits"].index) == study.variants
    assert tuple(rows.loc[("digits", "arcface"), ["finished", "runs_expected", "seeds_expected"]]) == (2, 3, 3)
    assert rows.loc[("glyphs, 20 % label noise", "arcface"), "status"] == "not run"
    texts = [markdown(table), tables.csv_text(table), tables.latex(table, "t")]
    assert all("not run" in text for text in texts)
    assert "2 of 3" in texts[0]
    assert "2 of 3" in texts[2]


def test_a_line_says_what_noise_and_how_many_values_were_expected(tmp_path):
    data = ("glyphs", "glyphs+split1", "glyphs+noise0.2", "glyphs+nearest0.2")
    runs = [f"{name}/a/seed{seed}" for name in data for seed in range(3)]
    for run in runs[:5]:
        write_run(tmp_path, run, {"retrieval/recall_at_1": 0.5})
    space = Workspace(tmp_path, tuple(runs))
    context = gathered(space.context(metrics=("retrieval/recall_at_1",), figures=()))
    lines = list(csv.DictReader(io.StringIO(tables.csv_text(result_table(context)))))
    shown = [tuple(line[name] for name in ("dataset", "noise", "seeds", "seeds_expected")) for line in lines]
    assert shown == [("glyphs", "0", "2", "2"), ("glyphs", "0.2", "0", "3"), ("glyphs", "nearest0.2", "0", "3")]
    assert "glyphs+split1: a, seed 2" in render(contents_of(context))


def test_renderers_show_the_same_cells(study):
    table = result_table(study)
    digits = dict(zip(table["metric"], table["digits"], strict=True))
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(table))))
    assert len(rows) == 15 * len(study.metrics)
    text, latex = markdown(table), tables.latex(table, "t")
    for row in rows:
        if row["status"] == "measured":
            places = digits[row["metric"]]
            mean, half = f"{float(row['mean']):.{places}f}", f"{float(row['ci95_half_width']):.{places}f}"
            assert f"{mean} ± {half}" in text
            assert rf"{mean} \pm {half}" in latex
            if row["against_best"] == "best":
                assert f"**{mean} ± {half}**" in text
                assert rf"\mathbf{{{mean} \pm {half}}}" in latex
        else:
            assert row["mean"] == ""
            assert row["status"] in ("not run", "not defined")
    best = [row for row in rows if row["against_best"] == "best"]
    assert len(best) == len({(row["dataset"], row["noise"], row["metric"]) for row in best})


def test_every_markdown_row_has_the_columns_of_its_head(study):
    lines = [line for line in markdown(result_table(study)).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(study.metrics) + 3}


def test_names_are_escaped_for_each_format(workspace):
    nasty = r"a_b|c*<i>&%$#{x}^~\ "
    context = workspace.context(labels={"contrastive": nasty})
    context = gathered(context)
    table = result_table(context)
    row = next(line for line in markdown(table).splitlines() if line.startswith(r"| a\_b"))
    assert r"a\_b\|c\*\<i\>" in row
    latex = next(line for line in tables.latex(table, "t").splitlines() if line.startswith(r"a\_b"))
    name = latex.split(" & $")[0]
    expected = r"a\_b\textbar{}c*\textless{}i\textgreater{}\&\%\$\#\{x\}\textasciicircum{}\textasciitilde{}"
    assert name.startswith(expected + r"\textbackslash{}")
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(table))))
    assert rows[0]["label"] == nasty


def test_fidelity_is_shown_when_something_ran_as_published(workspace):
    run = "digits/arcface+fidelity=as_published/seed0"
    write_run(workspace.root, run, study_metrics("digits", 0.0, "arcface", 0))
    context = workspace.context(runs=[*workspace.runs, run])
    context = gathered(context)
    table = result_table(context)
    assert tables.optional_columns(table) == ["Fidelity"]
    row = next(line for line in markdown(table).splitlines() if line.startswith("| arcface, fidelity"))
    assert "| as published |" in row


def test_digits_follow_the_size_of_the_column(workspace):
    for folder in workspace.folders[:3]:
        write_json(folder / "metrics.json", {"calibration/ece": 0.001, "retrieval/queries_without_positives": 1234.5})
    context = workspace.context(
        runs=workspace.runs[:3], metrics=("calibration/ece", "retrieval/queries_without_positives")
    )
    context = gathered(context)
    assert list(result_table(context)["digits"][:2]) == [4, 1]
    assert "| 0.0010 | 1234.5 |" in markdown(result_table(context)).replace("**", "")


def test_the_three_files_are_written(study):
    paths = write_tables(contents_of(study))
    assert [path.name for path in paths[:5]] == ["table.md", "table.csv", "table.tex", "claims.csv", "published.csv"]
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_tables(contents_of(study))] == before
    assert all(b"ProxyNCA++" in text for text in before[:3])


def test_one_column_serves_datasets_with_different_ood_sets(workspace):
    runs = ["digits/contrastive/seed0", "glyphs/contrastive/seed0"]
    measured = ({"ood/cars/auroc": 0.6, "ood/cub/auroc": 0.8}, {"ood/symbols/auroc": 0.9})
    for run, values in zip(runs, measured, strict=True):
        write_json(workspace.root / "results" / run / "metrics.json", values | {"ood/cub/auprc": 0.1})
    context = workspace.context(runs=runs, metrics=("ood/auroc", "ood/cub/auprc"))
    context = gathered(context)
    means = result_table(context).set_index(["data", "metric"])["mean"]
    assert [means[data, "ood/auroc"] for data in context.data] == pytest.approx([0.7, 0.9])
    assert [means[data, "ood/cub/auprc"] for data in context.data] == pytest.approx([0.1, 0.1])


def test_overrides_that_all_runs_share_are_not_repeated_in_every_name(workspace):
    runs = ["digits/a+dim=8+training.epochs=2/seed0", "digits/b+training.epochs=2/seed0"]
    context = workspace.context(runs=runs, labels={"a": "Method A"})
    assert context.shared_overrides == ["training.epochs=2"]
    assert [context.label(variant) for variant in context.variants] == ["Method A, 8 dimensions", "b"]
    alone = workspace.context(runs=runs[:1])
    assert alone.label(alone.variants[0]) == "a"


def test_tuned_methods_show_what_their_settings_cost(study):
    import dataclasses

    first = study.expected[0].method
    tuned = dataclasses.replace(study, budgets={first: 24})
    plain, shown = result_table(study), result_table(tuned)
    assert tables.optional_columns(plain) == []
    assert tables.optional_columns(shown) == ["Tuning runs"]
    assert set(shown["tuning_runs"]) == {0, 24}
    for write in (markdown, lambda table: tables.latex(table, "t")):
        assert "Tuning runs" not in write(plain)
        assert "Tuning runs" in write(shown)
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(shown))))
    assert {row["tuning_runs"] for row in rows if row["method"].partition("+")[0] == first} == {"24"}


def test_methods_trained_for_another_length_are_shown_but_not_ranked(tmp_path):
    """Three times the epochs of two methods say whether these had converged; the table compares equal lengths."""
    recall_at_1 = "retrieval/recall_at_1"
    recall = {"a+training.epochs=30": 0.6, "b+training.epochs=30": 0.5, "c": 0.1, "a+training.epochs=90": 0.9}
    space = Workspace(tmp_path, tuple(f"digits/{name}/seed{seed}" for name in recall for seed in range(3)))
    for name, value in recall.items():
        for seed in range(3):
            write_run(tmp_path, f"digits/{name}/seed{seed}", {recall_at_1: value + 0.01 * seed})
    context = space.context(metrics=(recall_at_1,), figures=(), labels={})
    context = gathered(context)
    table = result_table(context)
    states = dict(zip(table["method"], table["against_best"], strict=True))
    assert states["a+training.epochs=30"] == "best"
    assert states["a+training.epochs=90"] == "other length"
    assert "other length" not in (states["b+training.epochs=30"], states["c"])
    (answer,) = answers.answers(table)
    assert answer.best == "a, 30 epochs"
    assert "b, 30 epochs" in answer.margin
    assert "0.910 ± 0.025 ‡" in markdown(table)
    assert best_runs(context, "mean")["digits"].key.variant == "a+training.epochs=30"
    chosen = SimpleNamespace(method="a+training.epochs=90", evidence="12 validation classes")
    (answer,) = answers.answers(table, {"digits": chosen})
    assert (answer.method, answer.chosen_by) == (chosen.method, chosen.evidence), "as `probmetric recommend` says"
    assert answer.margin.startswith("That is 0.300 above a, 30 epochs, the best of those compared")
    assert answer.significance == "Not tested: it was trained for longer or shorter than the others."


def test_lengths_that_most_methods_have_are_ranked():
    names = [f"{method}+training.epochs={epochs}" for method in "ab" for epochs in (30, 180)]
    keys = [RunKey.parse(f"digits/{name}/seed0") for name in [*names, "a+training.epochs=90", "c+loss.scale=2"]]
    assert other_lengths(keys) == {"a+training.epochs=90"}
    assert other_lengths([key for key in keys if key.method == "a"]) == set(), "a sweep of one method"


def test_a_length_with_fewer_seeds_is_not_ranked():
    """One run of half the length stands beside every method; by chance it may be the highest, and nothing is tested."""
    names = [f"{method}+training.epochs={epochs}" for method in "ab" for epochs in (30, 90, 180)]
    seeds = {30: 3, 90: 1, 180: 3}
    runs = [f"digits/{name}/seed{seed}" for name in names for seed in range(seeds[int(name.rpartition("=")[2])])]
    keys = [RunKey.parse(run) for run in runs]
    assert other_lengths(keys) == {"a+training.epochs=90", "b+training.epochs=90"}
    assert other_lengths([key for key in keys if key.seed == 0]) == set()


def test_a_length_with_fewer_splits_of_the_classes_is_not_ranked_and_stands_for_no_claim():
    """The usual length is not named, by one seed and three splits; half of it, by the dataset's own split."""
    whole = [f"digits{split}/{m}+preset=stages/seed0" for m in "ab" for split in ("", "+split1", "+split2")]
    halves = [f"digits/{m}+preset=stages+training.epochs=3/seed0" for m in "ab"]
    keys = [RunKey.parse(run) for run in (*whole, *halves, "digits/frozen/seed0")]
    assert other_lengths(keys) == {f"{m}+preset=stages+training.epochs=3" for m in "ab"}
    assert usual(keys) == {"preset=stages"}


def test_seeds_of_a_length_are_those_of_the_methods_that_have_it():
    """The usual length has one seed beside three of a longer one; frozen features, without any length, have three."""
    longer = [f"digits/{m}+training.epochs=12/seed{seed}" for m in "abc" for seed in range(3)]
    frozen = [f"digits/frozen/seed{seed}" for seed in range(3)]
    keys = [RunKey.parse(run) for run in (*(f"digits/{m}/seed0" for m in "abc"), *longer, *frozen)]
    assert other_lengths(keys) == {"a", "b", "c"}
    assert usual(keys) == {"training.epochs=12"}
    few = [key for key in keys if key.method not in "bc"]
    assert other_lengths(few) == {"a"}, "also where one method of two has that length"
