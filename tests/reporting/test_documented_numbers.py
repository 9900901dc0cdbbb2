"""Every number of a table of measurements in docs/ is that of its record."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("docs_numbers", ROOT / ".ci" / "docs_numbers.py")
docs_numbers = importlib.util.module_from_spec(_SPEC)
sys.modules["docs_numbers"] = docs_numbers
_SPEC.loader.exec_module(docs_numbers)

TABLES = docs_numbers.all_tables()
MEASURED = [table for table in TABLES if table.kind.startswith("numbers")]


def named(table):
    return f"{table.page.stem}:{table.line}"


@pytest.mark.parametrize("table", MEASURED, ids=named)
def test_numbers_of_a_table_are_those_of_its_record(table):
    assert docs_numbers.disagreements(table) == []


@pytest.mark.parametrize("table", [table for table in TABLES if table.kind == "verdicts"], ids=named)
def test_verdicts_of_a_table_are_those_of_its_record(table):
    assert docs_numbers.unproved(table) == []


def test_a_verdict_that_no_record_has_is_named(tmp_path, monkeypatch):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/claims.csv").write_text(
        "verdict,difference,ci95_half_width\nholds,0.0312,0.0019\nnot testable here,-0.2,0.01\nnot run,,\n"
    )
    rows = "| a | holds | +.031 ± .002 |\n| b | undecided | +.031 ± .002 |\n| c | not testable | −.20 ± .01 | x |\n"
    rows += "| d | holds | +.031 ± .003 |\n"
    (tmp_path / "p.md").write_text(f"<!-- verdicts: r -->\n| | | |\n|---|---|---|\n{rows}")
    monkeypatch.setattr(docs_numbers, "ROOT", tmp_path)
    (table,) = docs_numbers.tables(tmp_path / "p.md")
    assert [line.split(": ")[1] for line in docs_numbers.unproved(table)] == ["b", "d"]


def test_a_table_of_measurements_says_where_its_numbers_come_from():
    without = [named(table) for table in TABLES if table.count > docs_numbers.FEW and not table.kind]
    assert [name for name in without if not name.startswith("claims")] == []


def test_hundreds_of_cells_are_compared():
    assert sum(table.count for table in MEASURED) > 750


def test_a_number_that_is_not_in_its_record_is_named(tmp_path, monkeypatch):
    (tmp_path / "r.md").write_text("| a | .5 |\n| b | .6449 ± .01 |\n")
    (tmp_path / "p.md").write_text(
        "<!-- numbers: r.md -->\n| | x |\n|---|---|\n| a | .6 |\n| b | .64 ± .01 |\n| c | −.5 |\n"
    )
    monkeypatch.setattr(docs_numbers, "ROOT", tmp_path)
    (table,) = docs_numbers.tables(tmp_path / "p.md")
    assert docs_numbers.disagreements(table) == [
        "p.md:2: a: .6; its record has 0.5",
        "p.md:2: c: −.5; its record has 0.01",
    ]
