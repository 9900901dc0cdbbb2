"""Published numbers beside ours: difference, and whether the published value lies in our 95 % interval.

The numbers are in `<paper>.csv` beside this file, transcribed from the papers (README.md says how). A row of the
paper's table is compared with a run of ours on the same dataset, at the same noise rate, with the same metric; anything
else (a substituted dataset, a method that was not run) is "not run".
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.io import FileError
from probmetric.reporting import _metrics
from probmetric.reporting._comparison import Cell, summarise

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

FOLDER = Path(__file__).parent
COLUMNS = ("table", "row", "methods", "dataset", "noise", "metric", "value", "spread", "unit")
_SCALE = {"percent": 0.01, "fraction": 1.0}


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number; `value` and `spread` are fractions whatever the paper prints."""

    table: str
    row: str
    methods: tuple[str, ...]
    dataset: str
    noise: float
    metric: str
    value: float
    spread: float | None


@dataclass(frozen=True)
class PublishedComparison:
    """A printed number and ours; `ours` is None where it was not run."""

    published: PublishedNumber
    method: str
    ours: Cell | None

    @property
    def heading(self) -> str:
        """The metric as a reader sees it."""
        return _metrics.heading(self.published.metric)

    @property
    def difference(self) -> float | None:
        """Ours - published."""
        return None if self.ours is None else self.ours.mean - self.published.value

    @property
    def inside(self) -> bool | None:
        """Whether the published value lies in our interval; None with fewer than two seeds."""
        if self.ours is None or self.ours.half_width is None or self.difference is None:
            return None
        return abs(self.difference) <= self.ours.half_width

    @property
    def verdict(self) -> str:
        """`not run`, `one seed`, `yes` or `no`: is the published value in our interval?"""
        if self.ours is None:
            return "not run"
        return "one seed" if self.inside is None else "yes" if self.inside else "no"


def load_published(folder: Path = FOLDER) -> list[PublishedNumber]:
    """Every transcribed number.

    Raises:
        FileError: a file has other columns, a value that is no number, or an unknown unit.
    """
    return [number for path in sorted(folder.glob("*.csv")) for number in _load(path)]


def _load(path: Path) -> Iterable[PublishedNumber]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise FileError(f"{path}: expected the columns {', '.join(COLUMNS)}.")
        for line, row in enumerate(reader, start=2):
            yield _number(row, f"{path}, line {line}")


def _number(row: dict[str, str], where: str) -> PublishedNumber:
    if row["unit"] not in _SCALE:
        raise FileError(f"{where}: unit is {row['unit']!r}; allowed: percent, fraction.")
    try:
        scale = _SCALE[row["unit"]]
        value, noise = float(row["value"]) * scale, float(row["noise"])
        spread = float(row["spread"]) * scale if row["spread"] else None
    except ValueError as error:
        raise FileError(f"{where}: {error}; value, spread and noise are numbers.") from error
    methods = tuple(filter(None, row["methods"].split("|")))
    return PublishedNumber(row["table"], row["row"], methods, row["dataset"], noise, row["metric"], value, spread)


def compare_published(context: ReportContext, numbers: Iterable[PublishedNumber]) -> list[PublishedComparison]:
    """The numbers of the table an experiment repeats (`pfml/table2`, also as `pfml/table2@glyphs`), beside ours."""
    table = context.name.partition("@")[0]
    values: dict[tuple[str, float, str, str], list[float]] = {}
    for record in context.records:
        if record.value is not None:
            key = (record.key.dataset, record.key.noise, record.key.method, record.metric)
            values.setdefault(key, []).append(record.value)
    found = []
    for number in numbers:
        if number.table == table:
            keys = [(number.dataset, number.noise, method, number.metric) for method in number.methods]
            hit = next((key for key in keys if key in values), None)
            found.append(PublishedComparison(number, hit[2] if hit else "", summarise(values[hit]) if hit else None))
    return found
