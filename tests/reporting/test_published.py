from __future__ import annotations

import csv
import io
import re

import pytest
from fabricated_runs import Workspace, study_metrics, write_run

from probmetric.io import FileError
from probmetric.reporting import _render
from probmetric.reporting.aggregate import aggregate
from probmetric.reporting.html import render
from probmetric.reporting.published import COLUMNS, compare_published, load_published
from probmetric.reporting.tables import build_table, write_tables

HEAD = ",".join(COLUMNS)
ROWS = """lam/table2,Deterministic,contrastive,digits,0,retrieval/recall_at_1,72.0,1.0,percent
lam/table2,PA [22],nca|proxy_nca,digits,0,retrieval/recall_at_1,0.10,,fraction
lam/table2,HIST,,digits,0,retrieval/recall_at_1,0.5,,fraction
lam/table2,Deterministic,contrastive,digits,0.2,retrieval/recall_at_1,0.5,,fraction
lam/table3,Deterministic,contrastive,digits,0,retrieval/recall_at_1,0.9,,fraction
"""


@pytest.fixture
def numbers(tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "lam.csv").write_text(f"{HEAD}\n{ROWS}")
    return load_published(tmp_path / "published")


@pytest.fixture
def context(tmp_path):
    runs = tuple(f"digits/{method}/seed{seed}" for method in ("contrastive", "proxy_nca") for seed in range(3))
    for run in runs:
        method, seed = run.split("/")[1], int(run[-1])
        write_run(tmp_path, run, study_metrics("digits", 0.0, method, seed))
    context = Workspace(tmp_path, runs).context("lam/table2", figures=())
    folders = [context.results / run for run in runs]
    aggregate(folders, context.folder / "runs.csv", context.folder / "metrics.json")
    return context


def test_published_numbers_stand_beside_ours(context, numbers):
    found = compare_published(context, numbers)
    assert [item.verdict for item in found] == ["yes", "no", "not run", "not run"]
    assert found[0].published.value == pytest.approx(0.72)
    assert found[0].published.spread == pytest.approx(0.01)
    cell = build_table(context).groups[0].rows[0].cells[0]
    assert found[0].ours.mean == cell.mean
    assert found[0].difference == pytest.approx(cell.mean - 0.72)
    assert found[1].method == "proxy_nca"
    assert found[2].difference is None


def test_every_format_shows_them(context, numbers):
    found = compare_published(context, numbers)
    text = _render.markdown(build_table(context), found)
    line = next(line for line in text.splitlines() if line.startswith(r"| PA \[22\] |"))
    assert re.search(r"\| 0\.100 \| 0\.7\d\d ± 0\.\d+ \| \+0\.6\d\d \| no \|$", line)
    assert text.count("not run") >= 4
    rows = list(csv.DictReader(io.StringIO(_render.published_csv(found))))
    assert [row["published_in_interval"] for row in rows] == ["yes", "no", "not run", "not run"]
    assert rows[3]["ours"] == ""


def test_a_substituted_dataset_is_not_compared(context, numbers, tmp_path):
    import dataclasses

    other = dataclasses.replace(context, name="lam/table2@digits")
    assert [item.verdict for item in compare_published(other, numbers)][:2] == ["yes", "no"]
    assert compare_published(dataclasses.replace(context, name="demo"), numbers) == []


def test_the_page_and_the_tables_show_the_shipped_numbers(context):
    paths = {path.name for path in write_tables(context)}
    assert "published.csv" in paths
    text = render(context)
    assert "Published and ours" in text
    assert text.count("LAM (online)") == 14


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a/b,r,m,d,0,x,1.0,,percentage", "unit is 'percentage'; allowed: percent, fraction"),
        ("a/b,r,m,d,0,x,high,,percent", "line 2: .*'high'"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, row, message):
    (tmp_path / "x.csv").write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(FileError, match=message):
        load_published(tmp_path)
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(FileError, match="expected the columns table, row"):
        load_published(tmp_path)


def test_the_shipped_numbers_are_plausible():
    numbers = load_published()
    keys = [(n.table, n.row, n.dataset, n.noise, n.metric) for n in numbers]
    assert len(set(keys)) == len(keys)
    assert all(0 < number.value <= 1 for number in numbers)
    assert all(number.spread is None or 0 <= number.spread < 0.3 for number in numbers)


@pytest.mark.parametrize(
    ("table", "row", "dataset", "metric", "value"),
    [
        ("lam/table2", "LAM (online)", "cifar10", "sparsification/ausc_as_published", 0.83),
        ("lam/table3", "PFE", "lfw", "ood/cub/auroc", 0.03),
        ("lam/table4", "MC Dropout", "msls", "retrieval/recall_at_5", 0.87),
        ("pfml/table1", "Potential Field (Ours), ResNet-50", "cub", "retrieval/recall_at_1", 0.734),
        ("pfml/table1", "SoftTriple, BN-Inception", "sop", "retrieval/recall_at_100", 0.959),
        ("pfml/table2", "PA", "cars", "retrieval/recall_at_1", 0.769),
    ],
)
def test_numbers_checked_by_eye_against_the_papers(table, row, dataset, metric, value):
    found = [n for n in load_published() if (n.table, n.row, n.dataset, n.metric) == (table, row, dataset, metric)]
    assert [number.value for number in found] == [pytest.approx(value)]
