"""Cells of tables that are said again by a naive reading of their records: files, SciPy and the definition, no more.

The records are `trials.csv` and `claims.csv` of the reports in the repository, and the run folders of a study.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median, stdev

import pandas as pd
import pytest
from scipy.stats import t

from probmetric.reporting.tables import csv_text, result_table

REPORTS = Path(__file__).parents[2] / "reports"
SEARCHES = sorted(REPORTS.glob("tuning/*/trials.csv"))
CLAIMS = sorted(REPORTS.glob("**/claims.csv"))
CELL = re.compile(
    r"\*\*(?P<verdict>[^*]+)\*\* (?P<difference>[+-][\d.]+)(?: ± (?P<half>[\d.<]+))? "
    r"\((?:to|from)[^;]*?(?:, d (?P<effect>[+-][\d.]+))?, (?P<seeds>\d+) seeds?\b"
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rounded(text: str, value: float) -> bool:
    """Whether a printed number is the value, rounded to the digits that are printed."""
    if text.startswith("<"):
        return 0 <= value < float(text[1:])
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def of_search(path: Path) -> int:
    """Compare a search's table with its trials; return how many cells."""
    trials = defaultdict(list)
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        trials[row["method"]].append(row)
    lines = [cells(line) for line in path.with_name("table.md").read_text().splitlines() if line.startswith("| ")]
    head, rows = lines[0], [line for line in lines[1:] if line[1].isdigit()]
    assert len(rows) == len(trials)
    compared = 0
    for row, tried in zip(rows, trials.values(), strict=True):
        said = dict(zip(head, row, strict=True))
        reached = [float(each["objective"]) for each in tried if each["objective"]]
        best = max(tried, key=lambda each: float(each["objective"] or "-inf"))
        numbers = {"best": max(reached), "median of the trials": median(reached)}
        numbers |= {"first trial": float(tried[0]["objective"])} if tried[0]["objective"] else {}
        numbers |= {"training, s": sum(float(each["seconds"] or 0) for each in tried)}
        numbers |= {"at trial": int(best["trial"]), "failed": len(tried) - len(reached)}
        numbers |= {"budget": sum(len(each["runs"].split()) for each in tried)}
        for name, value in numbers.items():
            assert rounded(said[name], value), (path, row[0], name, said[name], value)
        compared += len(numbers)
    return compared


def of_claims(path: Path) -> int:
    """Compare every tested claim in a report's table with claims.csv; return how many cells."""
    records = defaultdict(list)
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        if row["difference"]:
            records[row["statement"]].append(row)
    compared = 0
    for line in path.with_name("table.md").read_text().splitlines():
        statement = next((text for text in records if line.replace("\\", "").startswith(f"| {text} (")), None)
        if statement is None:
            continue
        printed = [match for cell in cells(line)[1:] for match in CELL.finditer(cell)]
        assert len(printed) == len(records[statement]), (path, statement)
        for match, record in zip(printed, records[statement], strict=True):
            columns = {"difference": "difference", "half": "ci95_half_width", "effect": "effect_size", "seeds": "seeds"}
            for group, column in columns.items():
                assert (match[group] is None) == (record[column] == ""), (path, statement, column)
                if match[group]:
                    assert rounded(match[group], float(record[column])), (path, statement, column, match[group])
                    compared += 1
            if record["verdict"] != "holds in part":
                assert match["verdict"] == record["verdict"], (path, statement)
                compared += 1
    return compared


def test_tables_of_the_repository_say_what_their_records_say():
    """A search's trials, and the claims as they were tested: a thousand cells and more."""
    searches, claims = (
        [compare(path) for path in paths] for compare, paths in ((of_search, SEARCHES), (of_claims, CLAIMS))
    )
    assert min(searches) >= 28  # seven cells of each of four methods
    assert min(claims) >= 5  # of one claim
    assert sum(searches) + sum(claims) > 1000


@pytest.mark.parametrize(
    ("source", "compare", "cell"),
    [
        (SEARCHES[0], of_search, re.compile(r"\| (0\.\d+) \|")),
        (CLAIMS[0], of_claims, re.compile(r"\*\* \+(0\.\d+) ± ")),
    ],
)
def test_a_cell_that_is_wrong_is_noticed(tmp_path, source, compare, cell):
    for file in (source, source.with_name("table.md")):
        shutil.copy(file, tmp_path)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    number = cell.search(text)
    wrong = f"{float(number[1]) + 0.002:.{len(number[1]) - 2}f}"
    (tmp_path / "table.md").write_text(text[: number.start(1)] + wrong + text[number.end(1) :], encoding="utf-8")
    with pytest.raises(AssertionError):
        compare(tmp_path / source.name)


def test_every_cell_of_a_study_is_the_mean_and_interval_of_its_files(study):
    """Student's interval over the seeds; the fabricated runs know nothing of their units."""
    table = pd.read_csv(io.StringIO(csv_text(result_table(study))))
    compared = 0
    for row in table.itertuples():
        data = row.dataset + (f"+noise{row.noise:g}" if row.noise else "")
        files = sorted((study.results / data / row.method).glob("seed*/metrics.json"))
        values = [value for file in files if (value := json.loads(file.read_text()).get(row.metric)) is not None]
        assert row.status == ("measured" if values else "not defined" if files else "not run")
        if values:
            assert row.mean == pytest.approx(fmean(values), rel=1e-12)
            half = t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
            assert row.ci95_half_width == pytest.approx(half, rel=1e-9)
            assert row.seeds == len(values)
            compared += 3
    assert compared > 150
