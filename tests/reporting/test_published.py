from __future__ import annotations

import csv
import dataclasses
import io
import re
from itertools import product
from pathlib import Path

import pytest
from fabricated_runs import Workspace, gathered, study_metrics, write_run

from probmetric.config import Params, load
from probmetric.io import FileError, write_json, write_yaml
from probmetric.metrics import metric_names
from probmetric.planning.declared import dataset_names
from probmetric.planning.experiments import load_experiment
from probmetric.reporting import published
from probmetric.reporting.comparison import Cell
from probmetric.reporting.page import render
from probmetric.reporting.published import (
    COLUMNS,
    UNITS,
    PublishedComparison,
    PublishedNumber,
    compare_published,
    load_published,
)
from probmetric.reporting.report import contents_of, markdown, write_tables
from probmetric.reporting.results import plays
from probmetric.reporting.tables import result_table

PARAMS = Path(__file__).parents[2] / "params.yaml"
HEAD = ",".join(COLUMNS)
ROWS = """lam/table2,Deterministic,lam-contrastive,,digits,0,retrieval/recall_at_1,72.0,1.0,percent
lam/table2,PA [22],lam-proxy_nca,,digits,0,retrieval/recall_at_1,0.10,,fraction
lam/table2,HIST,,,digits,0,retrieval/recall_at_1,0.5,,fraction
lam/table2,Deterministic,lam-contrastive,,digits,0.2,retrieval/recall_at_1,0.5,,fraction
lam/table2,Deterministic,lam-contrastive,,digits,0,retrieval/mrr,0.5,,fraction
lam/table3,Deterministic,lam-contrastive,,digits,0,retrieval/recall_at_1,0.9,,fraction
"""
RECALL = "retrieval/recall_at_1"


def numbers_of(tmp_path, rows: str):
    folder = tmp_path / "published"
    folder.mkdir(exist_ok=True)
    (folder / "lam.csv").write_text(f"{HEAD}\n{rows}", encoding="utf-8")
    return load_published(folder)


@pytest.fixture
def numbers(tmp_path):
    return numbers_of(tmp_path, ROWS)


def context_of(tmp_path, methods, *, name="lam/table2", data="digits", seeds=3):
    runs = tuple(f"{data}/{method}/seed{seed}" for method in methods for seed in range(seeds))
    for run in runs:
        method, seed = run.split("/")[1], int(run[-1])
        write_run(tmp_path, run, study_metrics(data, 0.0, method.removeprefix("lam-"), seed))
    return gathered(Workspace(tmp_path, runs).context(name, figures=(), labels={"lam-proxy_nca": "ProxyNCA++"}))


@pytest.fixture
def context(tmp_path):
    return context_of(tmp_path, ("lam-contrastive", "lam-proxy_nca"))


def test_published_numbers_stand_beside_ours(context, numbers):
    found = compare_published(context, numbers)
    assert [item.verdict for item in found] == ["inside", "outside", "not run", "not run", "not measured"]
    assert found[0].published.value == pytest.approx(0.72)
    assert found[0].published.spread == pytest.approx(0.01)
    cell = next(result_table(context).itertuples())
    assert found[0].ours.mean == cell.mean
    assert found[0].difference == pytest.approx(cell.mean - 0.72)
    assert found[1].method == "lam-proxy_nca"
    assert found[2].difference is None


def test_ours_are_shown_in_the_unit_and_digits_of_the_paper(context, numbers):
    percent, fraction, *_ = compare_published(context, numbers)
    assert published.printed(percent.published) == "72.0 ± 1.0"
    assert published.ours(percent) == f"{100 * percent.ours.mean:.1f} ± {100 * percent.ours.half_width:.1f}"
    assert published.judged(percent) == f"{100 * percent.difference:+.1f}, inside"
    assert published.printed(fraction.published) == "0.10"
    assert re.fullmatch(r"\+0\.6\d, outside", published.judged(fraction))
    assert percent.published.heading == "Recall@1 ↑ [%]"


def test_every_format_shows_them(context, numbers):
    found = compare_published(context, numbers)
    text = markdown(dataclasses.replace(contents_of(context), published=found))
    line = next(line for line in text.splitlines() if line.startswith(r"| PA \[22\] | ProxyNCA++ |"))
    assert re.search(r"\| 0\.10 \| 0\.7\d ± 0\.\d+ \(\+0\.6\d, outside\) \|", line)
    assert "### digits, 20 % label noise" in text
    assert re.search(r"^\| HIST \| – \|.* 0\.5 \| not run \|", text, re.MULTILINE)
    rows = list(csv.DictReader(io.StringIO(published.csv_text(found))))
    assert [row["published_in_interval"] for row in rows] == ["yes", "no", "not run", "not run", "not measured"]
    assert rows[3]["ours"] == ""


def test_a_row_is_a_line_and_metrics_stand_side_by_side(context, numbers):
    found = compare_published(context, numbers)
    blocks = published.blocks(found)
    assert list(blocks) == ["digits", "digits, 20 % label noise"]
    assert published.headings(found, "digits") == ["Recall@1 ↑ [%]", "Recall@1 ↑", "MRR ↑"]
    assert [row for row, _ in blocks["digits"]] == ["Deterministic", "PA [22]", "HIST"]
    assert list(next(iter(blocks["digits"].values()))) == ["Recall@1 ↑ [%]", "MRR ↑"]


def number_of(table="nir/table1", value=0.44, spread=0.02, dataset="cub"):
    place = (table, "row", "m", "", (dataset,), 0.0, "retrieval/recall_at_1", value, spread)
    return PublishedNumber(*place, UNITS["fraction"], 2)


@pytest.mark.parametrize(
    ("spread", "table", "verdict"),
    [
        (0.02, "nir/table1", "inside"),
        (None, "nir/table1", "outside"),
        (0.02, "vmf/table4", "inside"),
        (0.005, "vmf/table4", "outside"),
    ],
)
def test_inside_accounts_for_the_printed_spread_and_ours(spread, table, verdict):
    """.44 ± .02 over five runs against our .47 ± .02: neither interval holds the other's mean."""
    item = PublishedComparison(number_of(table, spread=spread), "m", Cell(0.47, 0.02, 5))
    assert item.verdict == verdict


@pytest.mark.parametrize(
    ("selection", "ours"), [("validation", "held out"), ("refit", "then trained on all"), ("as_published", "leaks")]
)
def test_the_difference_of_protocols_stands_beside_the_number(tmp_path, selection, ours):
    runs = [f"cub/m/seed{seed}" for seed in range(3)]
    for run in runs:
        folder = write_run(tmp_path, run, {"retrieval/recall_at_1": 0.5 + 0.01 * int(run[-1])})
        write_yaml(folder / "run.yaml", {"run": "r", "settings": {"training": {"selection": selection}}})
    context = Workspace(tmp_path, tuple(runs)).context("nir/table1", metrics=("retrieval/recall_at_1",), figures=())
    context = gathered(context)
    (item,) = compare_published(context, [number_of()])
    assert ours in item.protocol
    assert "best test epoch" in item.protocol
    assert item.protocol in published.judged(item)
    assert item.protocol in published.csv_text([item])
    assert ("These leak, as published" in render(contents_of(context))) == (selection == "as_published")


@pytest.mark.parametrize(
    ("table", "data", "theirs"),
    [
        ("pfml/table1", "cub", "paper: trained on all training classes, how the epoch was chosen is not stated"),
        ("lam/table2", "cifar10", "paper: last epoch, but the best test epoch where another method's network is used"),
        ("vmf/table2", "cifar10", ""),
    ],
)
def test_each_papers_own_choice_of_the_epoch_is_told(tmp_path, table, data, theirs):
    runs = [f"{data}/m/seed{seed}" for seed in range(3)]
    for run in runs:
        write_run(tmp_path, run, {"retrieval/recall_at_1": 0.5 + 0.01 * int(run[-1])})
    context = Workspace(tmp_path, tuple(runs)).context(table, metrics=("retrieval/recall_at_1",), figures=())
    context = gathered(context)
    (item,) = compare_published(context, [dataclasses.replace(number_of(table), datasets=(data,))])
    assert item.ours is not None
    assert (theirs in item.protocol) if theirs else not item.protocol


def test_a_substituted_dataset_is_not_compared(context, numbers):
    for name in ("lam/table2@glyphs", "lam/table2@digits"):
        found = compare_published(dataclasses.replace(context, name=name), numbers)
        assert [item.verdict for item in found] == ["not run"] * 5
    assert compare_published(dataclasses.replace(context, name="demo"), numbers) == []


def test_a_dataset_cut_to_some_of_its_images_is_not_compared(context, numbers, tmp_path):
    write_json(context.prepared / "digits" / "summary.json", {"options": {"subset": True}, "splits": {}})
    assert {item.verdict for item in compare_published(context, numbers)} == {"not run"}
    folder = context.results / context.expected[0].run
    write_yaml(folder / "run.yaml", {"run": "r", "settings": {"prepared": str(tmp_path / "elsewhere")}})
    again = gathered(context)
    assert compare_published(again, numbers)[0].verdict == "inside"
    write_json(tmp_path / "elsewhere" / "digits" / "summary.json", {"options": {"subset": True}, "splits": {}})
    assert {item.verdict for item in compare_published(again, numbers)} == {"not run"}


def test_every_fidelity_and_override_has_its_own_line(tmp_path, numbers):
    methods = ("lam-contrastive+dim=8", "lam-contrastive-as_published", "lam-contrastive-r50")
    context = context_of(tmp_path, methods)
    found = [item.method for item in compare_published(context, numbers[:1])]
    assert found == list(methods[:2])
    (block,) = published.blocks(compare_published(context, numbers[:1])).values()
    assert len(block) == 2


def test_a_part_is_played_in_either_fidelity_and_by_no_variant():
    assert plays("a-b", "a-b")
    assert plays("a-b-as_published", "a-b")
    assert not any(plays(method, "a-b") for method in ("a", "a-b-r50", "a-b-r50-as_published"))


def test_folds_are_averaged_over_seeds_run_on_all_of_them(tmp_path):
    rows = f"lam/table7,A,a,,cub-mlrc1|cub-mlrc2,0,{RECALL},60.0,,percent\n"
    rows += f"lam/table7,A,b,,cub-mlrc1|cub-mlrc2,0,{RECALL},61.0,,percent\n"
    numbers = numbers_of(tmp_path, rows)
    values = {"cub-mlrc1/a": [0.5, 0.7, 0.9], "cub-mlrc2/a": [0.6, 0.8], "cub-mlrc1/b": [0.1]}
    runs = [f"{place}/seed{seed}" for place, found in values.items() for seed in range(len(found))]
    for run in runs:
        write_run(tmp_path, run, {RECALL: values[run.rpartition("/")[0]][int(run[-1])]})
    context = gathered(Workspace(tmp_path, tuple(runs)).context("lam/table7", figures=()))
    whole, lacking = compare_published(context, numbers)
    assert (whole.ours.n, whole.ours.mean) == (2, pytest.approx(0.65))
    assert lacking.verdict == "not measured"
    assert whole.published.title == "cub-mlrc1 to cub-mlrc2, mean"


def test_a_change_is_compared_seed_by_seed(tmp_path):
    rows = "lam/table5,A,a,b,digits,0,structure/density,24,,percent_increase\n"
    rows += "lam/table5,A,a,b,digits,0,structure/richness_kl,13,,percent_decrease\n"
    rows += "lam/table5,A,a,b,digits,0,structure/uniformity,2,,ratio\n"
    rows += "lam/table5,A,a,z,digits,0,structure/density,1,,ratio\n"
    numbers = numbers_of(tmp_path, rows)
    runs = [f"digits/{method}/seed{seed}" for method in ("a", "b", "b-as_published") for seed in range(2)]
    for run in runs:
        write_run(tmp_path, run, {RECALL: 0.5})
        level = {"a": 3.0, "b": 2.0, "b-as_published": 9.0}[run.split("/")[1]] * (1 + int(run[-1]))
        values = dict.fromkeys(("structure/density", "structure/richness_kl", "structure/uniformity"), level)
        write_json(tmp_path / "results" / run / "metrics.json", values)
        settings = {"run": run, "settings": {"fidelity": "as_published" if "published" in run else "corrected"}}
        write_yaml(tmp_path / "results" / run / "run.yaml", settings)
    context = gathered(Workspace(tmp_path, tuple(runs)).context("lam/table5", figures=()))
    found = compare_published(context, numbers)
    assert [item.ours and item.ours.mean for item in found] == [pytest.approx(0.5), pytest.approx(-0.5), 1.5, None]
    assert found[0].published.text(found[0].ours.mean) == "50"
    assert found[0].published.heading == "Density, increase [%]"


def test_times_come_from_the_history_without_the_first_epoch(tmp_path):
    run = "digits/a/seed0"
    folder = write_run(tmp_path, run, {RECALL: 0.5})
    (folder / "history.csv").write_text("epoch,seconds\n0,9.0\n1,2.0\n2,4.0\n")
    context = gathered(Workspace(tmp_path, (run,)).context(figures=()))
    series = context.measured["digits"]["a"]
    values = {
        f"training/{name}": series[f"training/{name}"].values[0] for name in ("epoch_seconds", "seconds", "epochs")
    }
    assert values == {"training/epoch_seconds": 3.0, "training/seconds": 15.0, "training/epochs": 3.0}


def test_the_page_and_the_tables_show_the_shipped_numbers(context, tmp_path):
    assert "published.csv" in {path.name for path in write_tables(contents_of(context))}
    assert "Published and ours" not in render(contents_of(context)), "nothing of the table was measured"
    measured = context_of(tmp_path / "whole", ("lam-contrastive", "lam-online"), data="fashion_mnist")
    text = render(contents_of(measured))
    assert "Published and ours" in text
    assert "0.81 ± 0.00" in text
    assert "<td>LAM (online)</td>" in text or ">LAM (online)<" in text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a/b,r,m,,d,0,x,1.0,,percentage", "unit is 'percentage'; allowed: percent, fraction"),
        ("a/b,r,m,,d,0,x,high,,percent", "line 2: .*'high'"),
        ("a/b,r,m,,d,0,x,1,,ratio", "`relative_to` belongs to the units of a change"),
        ("a/b,r,m,n,d,0,x,1,,percent", "`relative_to` belongs to the units of a change"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, row, message):
    (tmp_path / "x.csv").write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(FileError, match=message):
        load_published(tmp_path)
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(FileError, match="expected the columns table, row"):
        load_published(tmp_path)


SHIPPED = load_published()
TABLES = {
    "nivmf": {"table1": 32, "table2": 145, "table4": 14, "table5": 8},
    "nir": {"table1": 63, "table2": 150, "table3": 16, "table4": 56, "table5": 16},
    "vmf": {"table1": 20, "table2": 20, "table3": 40, "table4": 21, "runtime": 10},
    "lam": {"table1": 36, "table2": 90, "table3": 72, "table4": 58, "runtime": 4},
    "pfml": {
        "table1": 278,
        "table2": 24,
        "table3": 5,
        "table4": 84,
        "table5": 33,
        "table6": 102,
        "table7": 102,
        "table9": 5,
    },
}


def test_every_table_is_transcribed():
    found: dict[str, dict[str, int]] = {}
    for number in SHIPPED:
        paper, table = number.table.split("/")
        found.setdefault(paper, {}).setdefault(table, 0)
        found[paper][table] += 1
    assert found == TABLES


def test_the_shipped_numbers_are_plausible():
    keys = [(n.table, n.row, n.datasets, n.noise, n.metric) for n in SHIPPED]
    assert len(set(keys)) == len(keys)
    for number in SHIPPED:
        timed = number.metric.startswith(("training/", "embedding/"))
        assert timed or 0 < number.value < 1, number
        assert number.spread is None or 0 <= number.spread < 0.3, number
        assert bool(re.fullmatch(r"([a-z0-9_-]+)?", number.method)), number


def test_ranks_never_fall_with_k():
    recalls: dict[tuple[str, str, str, bool], list[tuple[int, float]]] = {}
    for number in SHIPPED:
        if k := re.search(r"recall_at_(\d+)$", number.metric):
            place = (number.table, number.row, number.title, number.metric.startswith("val/"))
            recalls.setdefault(place, []).append((int(k[1]), number.value))
    assert sum(len(values) > 1 for values in recalls.values()) > 100
    for place, values in recalls.items():
        ordered = [value for _, value in sorted(values)]
        assert ordered == sorted(ordered), place


def test_numbers_use_the_words_of_this_project():
    params = load(Params, PARAMS)
    assert {data for number in SHIPPED for data in number.datasets} <= set(dataset_names(params))
    assert {number.noise for number in SHIPPED} == {0.0, 0.2}
    parts = {number.method for number in SHIPPED} | {number.relative_to for number in SHIPPED}
    assert {part.split("-")[0] for part in parts if part} == {"nivmf", "nir", "vmf", "lam", "pfml"}
    known = metric_names((1, 2, 4, 5, 8, 10, 100, 1000), ("mnist", "svhn", "cars", "cub"))
    assert {number.metric for number in SHIPPED} <= set(known)


def test_every_table_is_an_experiment_that_runs_its_rows_and_shows_its_metrics():
    for table in sorted({number.table for number in SHIPPED}):
        mine = [number for number in SHIPPED if number.table == table and number.method]
        experiment = load_experiment(table, PARAMS.parent / "workflow" / "experiments")
        runs = {run for grid in experiment.runs for run in product(grid.datasets, grid.noise, grid.methods)}
        parts = {(d, n.noise, part) for n in mine for d in n.datasets for part in (n.method, n.relative_to) if part}
        assert parts <= runs, table
        assert {number.metric for number in mine} <= set(experiment.metrics), table


SPELLINGS = {
    "ESPHN": "EPSHN",
    "N.Softmax": "NormSoft",
    "CircleLoss": "Circle",
    "DRML-PA": "DRML",
    "PA+niV": "PANC + EL-nivMF",
    "ProxyAnchor (PA)": "Proxy Anchor",
    "PANC + MemVir": "PA + MemVir",
    "ResNet-50": "R50/512",
    "BN-Inception": "IBN/512",
    "IBN/512 X": "IBN/512",
}


def test_papers_that_quote_the_same_row_print_the_same_numbers():
    quoted: dict[tuple[object, ...], dict[str, str]] = {}
    for number in SHIPPED:
        if number.table in ("nivmf/table2", "nir/table2", "pfml/table1"):
            name, _, network = number.row.rpartition(", ")
            row = (SPELLINGS.get(name, name), SPELLINGS.get(network, network))
            quoted.setdefault((*row, number.title, number.metric), {})[number.table] = published.printed(number)
    repeated = {place: found for place, found in quoted.items() if len(found) > 1}
    differing = {place for place, found in repeated.items() if len(set(found.values())) > 1}
    assert len(repeated) == 108
    assert differing == {("Proxy Anchor", "IBN/512", "cars", f"retrieval/recall_at_{k}") for k in (1, 2)}


@pytest.mark.parametrize(
    ("table", "row", "dataset", "metric", "printed"),
    [
        ("nivmf/table1", "EL-nivMF", "cars", RECALL, "82.1 ± 0.3"),
        ("nivmf/table1", "PANC + EL-nivMF", "cub", RECALL, "66.5 ± 0.3"),
        ("nivmf/table2", "PANC + EL-nivMF, R50/512", "cub", "clustering/nmi", "72.1"),
        ("nivmf/table2", "PANC + EL-nivMF, IBN/512", "sop", "retrieval/recall_at_10", "90.4"),
        ("nivmf/table4", "d_EL-nivMF", "cars", "retrieval_euclidean/recall_at_1", "76.37 ± 5.32"),
        ("nivmf/table5", "Cluster-Div., d_cos → d_EL-nivMF", "cars", "train/structure/cluster_diversity", "31"),
        ("nir/table1", "ProxyAnchor + NIR", "cars", "clustering/nmi", "71.6 ± 0.3"),
        ("nir/table1", "SoftTriplet + NIR", "sop", "retrieval/map_at_1000_over_class_size", "44.9 ± 0.1"),
        ("nir/table2", "PA+NIR, R50/512 X", "cars", RECALL, "89.1 ± 0.2"),
        ("nir/table3", "PA + NIR", "cub", "structure/richness_kl", "0.13 ± 0.02"),
        ("nir/table4", "ω = 0", "cars", "retrieval/map_at_1000_over_class_size", "27.2 ± 0.5"),
        ("nir/table5", "Generate & Match", "cub", RECALL, "63.5 ± 0.2"),
        ("vmf/table1", "vMF", "cifar10-vmf", "classification/error_auroc", "0.82"),
        ("vmf/table2", "ARCFACE", "mnist-vmf", "classification/accuracy", "99.13 ± 0.02"),
        ("vmf/table3", "vMF", "cifar100-vmf", "calibration/ece_l2", "7.9 ± 0.3"),
        ("vmf/table3", "STANDARD, with temperature scaling", "cifar100-vmf", "calibration/ece_l2", "2.2 ± 0.1"),
        ("vmf/table4", "STANDARD", "sop-vmf", "retrieval_euclidean/map_at_r", "39.7 ± 0.1"),
        ("vmf/table4", "HYPERBOLIC + cosine at test", "cars-vmf", "retrieval/map_at_r", "25.0 ± 0.4"),
        ("lam/table1", "Online, Arccos fix", "lfw", "ood/cub/auroc", "0.78 ± 0.18"),
        ("lam/table2", "LAM (online)", "cifar10", "sparsification/ausc_as_published", "0.83 ± 0.01"),
        ("lam/table3", "PFE", "lfw", "ood/cub/auroc", "0.03 ± 0.02"),
        ("lam/table4", "MC Dropout, validation set", "msls-lam", "val/retrieval/recall_at_5", "0.87"),
        ("lam/table4", "LAM (online), challenge set", "msls-lam", "sparsification/ausc_as_published", "0.63"),
        ("pfml/table1", "Potential Field (Ours), ResNet-50", "cub", RECALL, "73.4 ± 0.3"),
        ("pfml/table1", "SoftTriple, BN-Inception", "sop", "retrieval/recall_at_100", "95.9"),
        ("pfml/table2", "PA", "cars", RECALL, "76.9"),
        ("pfml/table3", "S.Triplet", "cub", "structure/proxy_w1", "0.24 ± 0.04"),
        ("pfml/table4", "Ours", "cars", "retrieval/recall_at_8", "97.1 ± 0.1"),
        ("pfml/table5", "Ours", "sop", "retrieval/recall_at_1000", "98.6 ± 0.1"),
        ("pfml/table6", "Ours, concatenated", "cars-mlrc1", "retrieval/map_at_r", "31.0 ± 0.3"),
        ("pfml/table7", "Ours, separated", "cub-mlrc1", "retrieval/r_precision", "33.8 ± 0.2"),
        ("pfml/table9", "Potential Field (Ours) M=30", "cars", "training/epoch_seconds", "14.8 ± 0.1"),
    ],
)
def test_numbers_checked_by_eye_against_the_papers(table, row, dataset, metric, printed):
    found = [n for n in SHIPPED if (n.table, n.row, n.datasets[0], n.metric) == (table, row, dataset, metric)]
    assert [published.printed(number) for number in found] == [printed]
