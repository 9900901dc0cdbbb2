"""Published numbers, transcribed from the papers into `<paper>.csv` beside this file (README.md says how)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pandas as pd

from probmetric.data.manifest import SUMMARY, read_summary
from probmetric.io import FileError, of_kind, present, read_csv
from probmetric.metrics import heading
from probmetric.metrics.statistics import Sample
from probmetric.reporting.comparison import Cell, summarise
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.results import plays
from probmetric.reporting.words import group_title
from probmetric.runs.names import data_name, split_data_name, table_of

FOLDER = Path(__file__).parent
RUNS, T_OF_RUNS = 5, 2.776
COLUMNS = ("table", "row", "method", "relative_to", "dataset", "noise", "metric", "value", "spread", "unit")


@dataclass(frozen=True)
class Unit:
    """How a number is printed: `value` x `scale` is in the unit of our metrics; the text `sign` follows the number.

    With `change` the number is a metric's change from another method's value: +1 a relative increase, -1 a relative
    decrease, 0 the quotient. A number is not `comparable` if it is the change of a quantity that our metric only ranks
    in the same order; it is shown without a number of ours.
    """

    scale: float
    sign: str = ""
    change: int | None = None
    comparable: bool = True


UNITS = {
    "percent": Unit(0.01, " %"),
    "fraction": Unit(1.0),
    "seconds": Unit(1.0, " s"),
    "percent_increase": Unit(0.01, " %", +1),
    "percent_decrease": Unit(0.01, " %", -1),
    "percent_of_other": Unit(0.01, " %", +1, comparable=False),
    "ratio": Unit(1.0, " x", 0),
}


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number; `value` and `spread` are in the unit of our metrics (fractions), whatever the paper prints.

    Attributes:
        table: the experiment that repeats the paper's table, `pfml/table2`.
        row: row as printed.
        method: the part that a method of ours has to play (`results.plays`); empty if none is implemented.
        relative_to: the part whose value the printed change refers to; empty for plain values.
        datasets: the prepared dataset, without its noise; several (folds) stand for the mean over them.
        noise: rate of wrong training labels.
        metric: our name of the metric.
        value: the number.
        spread: the number printed behind its ±.
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
        """Return `cub`, `cub, 20 % label noise` or `cub-mlrc1 to cub-mlrc4, mean`."""
        first, *others = self.datasets
        name = f"{first} to {others[-1]}, mean" if others else first
        return group_title(data_name(name, self.noise))

    @property
    def half_width(self) -> float:
        """Return half of the 95 % interval of the printed mean over five runs, rounding included.

        The ± is a standard deviation over runs, in `vmf` the standard error of their mean. Without a ± only the
        rounding is known.
        """
        rounding = 0.5 * self.unit.scale * 10.0**-self.digits
        if self.spread is None:
            return rounding
        error = self.spread if self.table.startswith("vmf/") else self.spread / RUNS**0.5
        return max(T_OF_RUNS * error, rounding)

    @property
    def data(self) -> tuple[str, ...]:
        """Return the names of the prepared datasets, noise included."""
        return tuple(data_name(dataset, self.noise) for dataset in self.datasets)

    @property
    def heading(self) -> str:
        """Return the metric's name for readers, with the unit."""
        text = {None: "", 1: ", increase", -1: ", decrease", 0: ", quotient"}[self.unit.change]
        unit = f" [{self.unit.sign.strip()}]" if self.unit.sign else ""
        return f"{heading(self.metric)}{text}{unit}"

    def text(self, value: float, *, signed: bool = False) -> str:
        """Return a value of ours with the unit and digits of the printed one."""
        return f"{value / self.unit.scale:{'+' if signed else ''}.{self.digits}f}"


def load_published(folder: Path = FOLDER) -> list[PublishedNumber]:
    """Return every transcribed number.

    Raises:
        FileError: a file has other columns, a value that is no number, or an unknown unit.
    """
    return [number for path in sorted(folder.glob("*.csv")) for number in _load(path)]


def _load(path: Path) -> Iterable[PublishedNumber]:
    columns, rows = read_csv(path, "restore it from the package")
    if tuple(columns) != COLUMNS:
        raise FileError(f"{path}: expected the columns {', '.join(COLUMNS)}.")
    for line, row in enumerate(rows, start=2):
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


LEGEND = (
    "First number: as the paper prints it, with its ±. Measured: our mean ± half-width of the 95 % t-interval over "
    "seeds, then the difference measured - published. Inside: our interval and the interval of the printed mean (its ± "
    "over five runs, or rounding) together explain the difference. A published number is compared only with runs on "
    "the same whole dataset at the same noise rate. Where the protocols differ, both are stated."
)
_Values = Mapping[int, float]
Verdict = Literal["not comparable", "not run", "not measured", "one seed", "inside", "outside"]


@dataclass(frozen=True)
class PublishedComparison:
    """A printed number and ours. `ours` is None if there is none; `method` then names the run without the metric.

    `protocol` says how the two were made differently; empty if no difference is known.
    """

    published: PublishedNumber
    method: str = ""
    ours: Cell | None = None
    protocol: str = ""

    @property
    def difference(self) -> float | None:
        """Return ours - published."""
        return None if self.ours is None else self.ours.mean - self.published.value

    @property
    def verdict(self) -> Verdict:
        """Return whether our interval and the printed ± explain the difference, or why this cannot be said."""
        if not self.published.unit.comparable:
            return "not comparable"
        if self.ours is None:
            return "not measured" if self.method else "not run"
        if self.ours.half_width is None:
            return "one seed"
        allowed = math.hypot(self.ours.half_width, self.published.half_width)
        return "inside" if abs(self.ours.mean - self.published.value) <= allowed else "outside"


def compare_published(context: ReportContext, numbers: Iterable[PublishedNumber]) -> list[PublishedComparison]:
    """Compare the table that an experiment repeats with our numbers, once for every method that plays a row's part.

    `pfml/table2@glyphs` repeats `pfml/table2` too, but has no number to compare: all its rows are "not run".
    """
    wanted = [number for number in numbers if number.table == table_of(context.name)]
    if "@" in context.name:
        return [PublishedComparison(number) for number in wanted]
    whole = {data for data in context.data if not _is_subset(context, data)} if wanted else set()
    compared = [item for number in wanted for item in _compare(context, number, whole)]
    return [replace(item, protocol=_protocol(context, item)) if item.ours else item for item in compared]


_SPLIT = ("cub", "cars", "sop")
_OF_LAM = ("fashion_mnist", "cifar10", "lfw")
_THEIRS = {
    "lam": "last epoch, but the best test epoch where another method's network is used (post-hoc, PFE, ensemble)",
    "pfml": "how the epoch was chosen is not stated",
}
_OURS = {
    "validation": "ours: 15 % of the training {kind} held out to choose the epoch",
    "refit": "ours: epoch chosen on 15 % of the training {kind}, then trained on all",
    "as_published": "ours: as the paper, which leaks",
}


def _protocol(context: ReportContext, item: PublishedComparison) -> str:
    """Say how our run was made differently from the papers'; empty if both keep test images out of it."""
    paper = item.published.table.partition("/")[0]
    split = set(item.published.datasets) <= set(_SPLIT)
    if not split and not (paper == "lam" and set(item.published.datasets) <= set(_OF_LAM)):
        return ""
    runs = [run for run in context.runs if run.key.variant == item.method and run.key.data in item.published.data]
    chosen = str(runs[0].find("settings.training.selection", default="validation")) if runs else "validation"
    theirs = f"{'trained on all training classes, ' if split else ''}{_THEIRS.get(paper, 'best test epoch')}"
    return f"{_OURS[chosen].format(kind='classes' if split else 'data')}; paper: {theirs}"


def _is_subset(context: ReportContext, data: str) -> bool:
    """Return whether a dataset was prepared from some of its images (`subset: true` among its options)."""
    run = next((run for run in context.runs if run.key.data == data), None)
    prepared = context.prepared if run is None else Path(run.find("settings.prepared", default=context.prepared))
    folders = (prepared / name for name in {data, split_data_name(data)[0]})
    return any(_options(folder).get("subset") for folder in folders if present(folder / SUMMARY))


def _options(folder: Path) -> dict[str, Any]:
    """Return the options that a prepared dataset was made with."""
    options: dict[str, Any] = read_summary(folder).get("options", {})
    return of_kind(options, dict[str, Any], folder / SUMMARY, "prepare it again")  # type: ignore[no-any-return]


def _compare(context: ReportContext, number: PublishedNumber, whole: set[str]) -> list[PublishedComparison]:
    """Compare with every method that plays the number's part on the `whole` datasets."""
    if not number.unit.comparable:
        return [PublishedComparison(number)]
    bases = _played(context, number, number.relative_to, whole)
    compared = []
    for variant, (fidelity, values) in _played(context, number, number.method, whole).items():
        if number.relative_to:
            values = _change(values, bases, fidelity, number.unit.change)
        if values:
            compared.append(PublishedComparison(number, variant, summarise(Sample(values))))
    if compared:
        return compared
    finished = context.table[context.table["data"].isin(whole.intersection(number.data))]
    lacking = [variant for variant in finished["variant"].unique() if plays(variant.partition("+")[0], number.method)]
    return [PublishedComparison(number, min(lacking, default="") if number.method else "")]


def _played(
    context: ReportContext, number: PublishedNumber, part: str, whole: set[str]
) -> dict[str, tuple[str, _Values]]:
    """Return method -> fidelity and values by seed; with folds, means over folds, for seeds run on every fold."""
    if not whole.issuperset(number.data):
        return {}
    by_fold = [context.series(data, number.metric) for data in number.data]
    played: dict[str, tuple[str, _Values]] = {}
    for variant, first in by_fold[0].items():
        if part and plays(first.key.method, part) and all(variant in fold for fold in by_fold):
            folds = [fold[variant].values for fold in by_fold]
            seeds = [seed for seed in first.values if all(seed in fold for fold in folds)]
            played[variant] = (first.fidelity, {seed: fmean(fold[seed] for fold in folds) for seed in seeds})
    return played


def _change(values: _Values, bases: Mapping[str, tuple[str, _Values]], fidelity: str, change: int | None) -> _Values:
    """Return the relative change, seed by seed, from the method a number refers to, if possible in its fidelity."""
    order = sorted(bases.values(), key=lambda base: base[0] != fidelity)
    if not order:
        return {}
    base = order[0][1]
    quotients = {seed: value / base[seed] for seed, value in values.items() if base.get(seed)}
    return {seed: change * (quotient - 1) if change else quotient for seed, quotient in quotients.items()}


Line = dict[str, PublishedComparison]  # heading of a metric -> what is printed, and ours
Block = dict[tuple[str, str], Line]  # row of the paper's table, method of ours beside it -> line


def blocks(comparisons: Sequence[PublishedComparison]) -> dict[str, Block]:
    """Return a block per dataset and noise rate, by its title, in the paper's order."""
    made: dict[str, Block] = defaultdict(dict)
    for item in comparisons:
        number = item.published
        made[number.title].setdefault((number.row, item.method), {})[number.heading] = item
    return dict(made)


def headings(comparisons: Sequence[PublishedComparison], title: str) -> list[str]:
    """Return the metrics of a block, in the paper's order."""
    return list(dict.fromkeys(item.published.heading for item in comparisons if item.published.title == title))


def printed(number: PublishedNumber) -> str:
    """Return `66.7 ± 0.6`, as in print."""
    return number.text(number.value) + ("" if number.spread is None else f" ± {number.text(number.spread)}")


def ours(item: PublishedComparison) -> str:
    """Return `65.1 ± 1.2`, `not run` or `not measured`."""
    if item.ours is None:
        return item.verdict
    number, half_width = item.published, item.ours.half_width
    return number.text(item.ours.mean) + ("" if half_width is None else f" ± {number.text(half_width)}")


def judged(item: PublishedComparison) -> str:
    """Return `-1.6, inside`, with the protocols if they differ; empty without a run."""
    if item.difference is None:
        return ""
    text = f"{item.published.text(item.difference, signed=True)}, {item.verdict}"
    return f"{text}; {item.protocol}" if item.protocol else text


_IN_INTERVAL: Mapping[str, str] = {"inside": "yes", "outside": "no"}
_CSV_COLUMNS = (
    *("table", "row", "dataset", "noise", "metric", "published", "published_spread", "method", "ours"),
    *("ci95_half_width", "seeds", "difference", "published_in_interval", "protocol"),
)


def csv_text(comparisons: Sequence[PublishedComparison]) -> str:
    """Return one line per published number and method of ours, full precision, in the unit of our metrics."""
    rows = []
    for item in comparisons:
        number, cell = item.published, item.ours
        spread = "" if number.spread is None else f"{number.spread:.6g}"
        place = (number.table, number.row, " ".join(number.datasets), f"{number.noise:g}", number.metric)
        measured = (cell.mean, cell.half_width, cell.n) if cell else (None, None, 0)
        verdict = _IN_INTERVAL.get(item.verdict, item.verdict)
        rows.append(
            (*place, f"{number.value:.6g}", spread, item.method, *measured, item.difference, verdict, item.protocol)
        )
    return pd.DataFrame(rows, columns=list(_CSV_COLUMNS)).to_csv(index=False, lineterminator="\n")
