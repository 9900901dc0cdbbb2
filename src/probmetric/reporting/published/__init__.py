"""Published numbers beside ours: difference, and whether the published value lies in our 95 % interval.

The numbers are in `<paper>.csv` beside this file, transcribed from the papers (README.md says how). A row of the
paper's table is compared with a run of ours on the same dataset, at the same noise rate, with the same metric. Nothing
else is: an experiment with its dataset substituted (`pfml/table2@glyphs`) and a dataset prepared from a subset of its
images have nothing to do with published numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from probmetric.io import FileError, read_json
from probmetric.names import data_name, split_data_name
from probmetric.reporting import _metrics
from probmetric.reporting._comparison import Cell, summarise
from probmetric.reporting._measured import Series, plays, series

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

FOLDER = Path(__file__).parent
COLUMNS = ("table", "row", "method", "relative_to", "dataset", "noise", "metric", "value", "spread", "unit")
_Values = Mapping[int, float]
Verdict = Literal["not run", "not measured", "one seed", "inside", "outside"]


@dataclass(frozen=True)
class Unit:
    """How a number is printed: `value` x `scale` is what our metrics hold, `sign` text stands behind it.

    With `change` it is not a metric's value but its change from another method's: +1 an increase, -1 a decrease, each
    relative; 0 the quotient itself.
    """

    scale: float
    sign: str = ""
    change: int | None = None


UNITS = {
    "percent": Unit(0.01, " %"),
    "fraction": Unit(1.0),
    "seconds": Unit(1.0, " s"),
    "percent_increase": Unit(0.01, " %", +1),
    "percent_decrease": Unit(0.01, " %", -1),
    "ratio": Unit(1.0, " x", 0),
}


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number; `value` and `spread` are in the unit of our metrics (fractions), whatever the paper prints.

    Attributes:
        table: the experiment that repeats the paper's table, `pfml/table2`.
        row: row as printed.
        method: the part a method of ours has to play (`_measured`); empty for what is not implemented.
        relative_to: the part whose value the printed change refers to; empty for plain values.
        datasets: the prepared dataset, without its noise; several (folds) stand for the mean over them.
        noise: rate of wrong training labels.
        metric: our name of what was measured.
        value: the number.
        spread: what is printed behind its ±.
        unit: unit and digits in print.
        digits: decimals in print.
    """

    table: str
    row: str
    method: str
    relative_to: str
    datasets: tuple[str, ...]
    noise: float
    metric: str
    value: float
    spread: float | None
    unit: Unit
    digits: int

    @property
    def title(self) -> str:
        """`cub`, `cub, 20 % label noise` or `cub-mlrc1 to cub-mlrc4, mean`."""
        first, *others = self.datasets
        name = f"{first} to {others[-1]}, mean" if others else first
        return f"{name}, {100 * self.noise:g} % label noise" if self.noise else name

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the prepared datasets, noise included."""
        return tuple(data_name(dataset, self.noise) for dataset in self.datasets)

    @property
    def heading(self) -> str:
        """The metric as a reader sees it, with the unit."""
        text = {None: "", 1: ", increase", -1: ", decrease", 0: ", quotient"}[self.unit.change]
        unit = f" [{self.unit.sign.strip()}]" if self.unit.sign else ""
        return f"{_metrics.heading(self.metric)}{text}{unit}"

    def text(self, value: float, *, signed: bool = False) -> str:
        """A value of ours with the unit and digits of the printed one."""
        return f"{value / self.unit.scale:{'+' if signed else ''}.{self.digits}f}"


@dataclass(frozen=True)
class PublishedComparison:
    """A printed number and ours; `ours` is None where there is none, `method` is then the run that lacks the metric."""

    published: PublishedNumber
    method: str = ""
    ours: Cell | None = None

    @property
    def difference(self) -> float | None:
        """Ours - published."""
        return None if self.ours is None else self.ours.mean - self.published.value

    @property
    def verdict(self) -> Verdict:
        """Whether the published value lies in our interval, or why that cannot be said."""
        if self.ours is None or self.difference is None:
            return "not measured" if self.method else "not run"
        if self.ours.half_width is None:
            return "one seed"
        return "inside" if abs(self.difference) <= self.ours.half_width else "outside"


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
    unit = UNITS.get(row["unit"])
    if unit is None:
        raise FileError(f"{where}: unit is {row['unit']!r}; allowed: {', '.join(UNITS)}.")
    if (unit.change is None) != (not row["relative_to"]):
        raise FileError(f"{where}: `relative_to` belongs to the units of a change; unit is {row['unit']!r}.")
    try:
        value, noise = float(row["value"]) * unit.scale, float(row["noise"])
        spread = float(row["spread"]) * unit.scale if row["spread"] else None
    except ValueError as error:
        raise FileError(f"{where}: {error}; value, spread and noise are numbers.") from error
    names = {name: row[name] for name in ("table", "row", "method", "relative_to", "metric")}
    datasets = tuple(row["dataset"].split("|"))
    digits = len(row["value"].partition(".")[2])
    return PublishedNumber(
        **names, datasets=datasets, noise=noise, value=value, spread=spread, unit=unit, digits=digits
    )


def compare_published(context: ReportContext, numbers: Iterable[PublishedNumber]) -> list[PublishedComparison]:
    """The numbers of the table an experiment repeats, beside ours; one comparison for every method that plays the row.

    `pfml/table2@glyphs` repeats `pfml/table2` too, with nothing to compare: all its rows are "not run".
    """
    table, _, substitute = context.name.partition("@")
    asked = [number for number in numbers if number.table == table]
    found = {} if substitute or not asked else series(context, {number.metric for number in asked})
    subsets = {data for data, _ in found if _is_subset(context, data)}
    found = {place: items for place, items in found.items() if place[0] not in subsets}
    present = set() if substitute else {(record.key.data, record.key.variant) for record in context.records}
    present = {place for place in present if place[0] not in subsets}
    return [item for number in asked for item in _compare(number, found, present)]


def _is_subset(context: ReportContext, data: str) -> bool:
    """Whether a dataset was prepared from some of its images (`subset: true` among its options)."""
    run = next((run for run in context.runs if run.key.data == data), None)
    prepared = context.prepared if run is None else Path(run.find("settings.prepared", default=context.prepared))
    folders = (prepared / name for name in {data, split_data_name(data)[0]})
    summaries = [read_json(folder / "summary.json") for folder in folders if (folder / "summary.json").exists()]
    return any(summary.get("options", {}).get("subset") for summary in summaries)


def _compare(
    number: PublishedNumber, found: Mapping[tuple[str, str], Sequence[Series]], present: Collection[tuple[str, str]]
) -> list[PublishedComparison]:
    mine = _played(found, number, number.method)
    bases = _played(found, number, number.relative_to)
    compared = []
    for variant, (fidelity, values) in mine.items():
        if number.relative_to:
            values = _change(values, bases, fidelity, number.unit.change)
        if values:
            compared.append(PublishedComparison(number, variant, summarise(list(values.values()))))
    if compared:
        return compared
    here = {variant for data, variant in present if data in number.data}
    lacking = [variant for variant in here if number.method and plays(variant.partition("+")[0], number.method)]
    return [PublishedComparison(number, min(lacking, default=""))]


def _played(
    found: Mapping[tuple[str, str], Sequence[Series]], number: PublishedNumber, part: str
) -> dict[str, tuple[str, _Values]]:
    """Method -> fidelity and values by seed; with folds, means over them, for seeds that were run on every fold."""
    by_fold = [
        {item.variant: item for item in found.get((data, number.metric), ()) if part and plays(item.key.method, part)}
        for data in number.data
    ]
    played: dict[str, tuple[str, _Values]] = {}
    for variant, first in by_fold[0].items():
        if all(variant in fold for fold in by_fold):
            folds = [fold[variant].values for fold in by_fold]
            seeds = [seed for seed in first.values if all(seed in fold for fold in folds)]
            played[variant] = (first.fidelity, {seed: fmean(fold[seed] for fold in folds) for seed in seeds})
    return played


def _change(values: _Values, bases: Mapping[str, tuple[str, _Values]], fidelity: str, change: int | None) -> _Values:
    """Relative change, seed by seed, from the method a number refers to, in the same fidelity where it was run."""
    order = sorted(bases.values(), key=lambda base: base[0] != fidelity)
    if not order:
        return {}
    base = order[0][1]
    quotients = {seed: value / base[seed] for seed, value in values.items() if base.get(seed)}
    return {seed: change * (quotient - 1) if change else quotient for seed, quotient in quotients.items()}
