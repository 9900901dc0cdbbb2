"""Compare every number in the tables of docs/ with its record: `make docs-numbers`.

A comment in the line above a table says where its numbers come from:

    <!-- numbers: reports/exact benchmarks/results/trust.json -->    files, or folders of them
    <!-- numbers anywhere: reports/lam-demo -->                      the same, whatever row they stand in
    <!-- verdicts: reports/claims -->                                claims.csv of these folders; see below
    <!-- made by: python benchmarks/posteriors.py -->                a command that makes them; nothing is compared

A number agrees if the record has one that rounds to it, in the rows (or under the keys) that hold the name in the
table's first column; anywhere in the record where no row does. Of a table of verdicts a row agrees if one row of the
record has its verdict, its difference and the half-width of its interval.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/findings",
    "docs/guide/training.md",
    "docs/reference/training.md",
    "docs/guide/trust.md",
    "docs/guide/promises.md",
    "docs/reference/claims.md",
)
MARKER = re.compile(r"<!-- (numbers|numbers anywhere|verdicts|made by): (.+) -->")
NUMBER = re.compile(r"(?<![\w.])([-−+]?)((?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?)(?!\w)( %)?")
INTERVAL = re.compile(r"([-−]?[\d.]+) ± ([\d.]+)")
FEW = 10


@dataclass(frozen=True)
class Table:
    """A table of a page: where it begins, its marker, and its rows, each a list of cells."""

    page: Path
    line: int
    kind: str
    source: str
    rows: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        """How many numbers stand in it, behind the first column."""
        return sum(len(list(numbers(cell))) for row in self.rows for cell in row[1:])


def numbers(text: str) -> Iterator[tuple[float, int, str]]:
    """Yield value, decimals and text of every number; `−` and `-` are minus signs."""
    for match in NUMBER.finditer(text):
        if re.search(r"\d", match[2]):
            digits = match[2].replace(",", "")
            yield float(digits) * (-1 if match[1] in ("-", "−") else 1), len(digits.partition(".")[2]), match[0]


def tables(page: Path) -> Iterator[Table]:
    """Yield the tables of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    place = 0
    while place < len(lines):
        end = place
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        if end - place > 2:
            marker = MARKER.fullmatch(lines[place - 1].strip()) if place else None
            rows = tuple(tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[place + 2 : end])
            kind, source = (marker[1], marker[2]) if marker else ("", "")
            yield Table(page, place + 1, kind, source, rows)
        place = max(end, place + 1)


def record(source: str) -> list[tuple[str, float]]:
    """Return the numbers of files or folders, each with the row or the keys it stands under."""
    found: list[tuple[str, float]] = []
    for name in source.split():
        path = ROOT / name
        files = (
            sorted(each for kind in ("md", "csv", "json") for each in path.rglob(f"*.{kind}"))
            if path.is_dir()
            else [path]
        )
        for file in files:
            if not file.exists():
                raise SystemExit(f"{name}: no such record")
            text = file.read_text(encoding="utf-8")
            found += _leaves(json.loads(text)) if file.suffix == ".json" else _of_lines(text)
    return found


def _of_lines(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        name = line.strip("|").split("|")[0] if line.startswith("|") else line
        yield from ((name, value) for value, _, _ in numbers(line))
        for match in INTERVAL.finditer(line):
            mean, half = float(match[1].replace("−", "-")), float(match[2])
            yield from ((name, end) for end in (mean - half, mean + half))


def _leaves(value: Any, keys: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON value; texts among a dictionary's values name it like its keys."""
    if isinstance(value, dict):
        named = " ".join([keys, *(each for each in value.values() if isinstance(each, str))])
        for key, each in value.items():
            yield from _leaves(each, f"{named} {key}")
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, keys)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield keys, float(value)


def plain(text: str) -> str:
    """Return a name as it is compared: without markup, brackets and what they hold."""
    return re.sub(r"[^a-z0-9+]", "", re.sub(r"\(.*?\)|<.*?>", "", text.lower()))


def agrees(value: float, decimals: int, values: list[float]) -> bool:
    """Whether one of `values` rounds to `value`; of numbers of a thousand and more, three digits count."""
    allowed = max(0.5001 * 10.0**-decimals, 0.002 * abs(value) if abs(value) >= 1000 else 0.0)
    return any(abs(each - value) <= allowed for each in values)


def disagreements(table: Table) -> list[str]:
    """Return a sentence for every number of a table that its record does not have."""
    entries = [(plain(name), value) for name, value in record(table.source)]
    wrong = []
    for name, *cells in table.rows:
        wanted = plain(name)
        of_row = [value for entry, value in entries if wanted and wanted in entry]
        values = of_row if of_row and table.kind == "numbers" else [value for _, value in entries]
        for value, decimals, text in (number for cell in cells for number in numbers(cell)):
            nearest = min(values, key=lambda each: abs(each - value))
            if not agrees(value, decimals, values) and not (
                text.endswith("%") and agrees(value / 100, decimals + 2, values)
            ):
                wrong.append(f"{table.page.relative_to(ROOT)}:{table.line}: {name}: {text}; its record has {nearest:g}")
    return wrong


def unproved(table: Table) -> list[str]:
    """Return a sentence for every row of a table of verdicts that no row of the record has."""
    rows: list[dict[str, str]] = []
    for folder in table.source.split():
        with (ROOT / folder / "claims.csv").open(encoding="utf-8") as file:
            rows += [row for row in csv.DictReader(file) if row["ci95_half_width"]]
    wrong = []
    for name, *cells in table.rows:
        place = next(number for number, cell in enumerate(cells) if "±" in cell)
        (difference, decimals, _), (half_width, _, _) = numbers(cells[place])
        verdicts = {
            row["verdict"].removesuffix(" here")
            for row in rows
            if agrees(difference, decimals, [float(row["difference"])])
            and agrees(half_width, decimals, [float(row["ci95_half_width"])])
        }
        if not any(cells[place - 1].startswith(verdict) for verdict in verdicts):
            wrong.append(f"{table.page.relative_to(ROOT)}:{table.line}: {name}: {', '.join(cells)}; no record says so")
    return wrong


def all_tables() -> list[Table]:
    """Return the tables of the pages that report measurements."""
    pages = [page for name in PAGES for page in (sorted((ROOT / name).glob("*.md")) or [ROOT / name])]
    return [table for page in pages for table in tables(page)]


def main() -> int:
    """Print what disagrees; 1 if anything does."""
    wrong = [line for table in all_tables() if table.kind.startswith("numbers") for line in disagreements(table)]
    wrong += [line for table in all_tables() if table.kind == "verdicts" for line in unproved(table)]
    print("\n".join(wrong) or "every number agrees with its record")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
