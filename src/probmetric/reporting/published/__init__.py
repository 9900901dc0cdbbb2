"""Published numbers, transcribed from the papers into `<paper>.csv` beside this file (README.md says how)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from probmetric.io import FileError, read_csv
from probmetric.metrics import heading
from probmetric.reporting.words import group_title
from probmetric.runs.names import data_name

FOLDER = Path(__file__).parent
RUNS, T_OF_RUNS = 5, 2.776
COLUMNS = ("table", "row", "method", "relative_to", "dataset", "noise", "metric", "value", "spread", "unit")


@dataclass(frozen=True)
class Unit:
    """How a number is printed: `value` x `scale` is what our metrics hold, `sign` text stands behind it.

    With `change` it is not a metric's value but its change from another method's: +1 an increase, -1 a decrease, each
    relative; 0 the quotient itself. What is not `comparable` is a change of a quantity that our metric only orders as:
    it is printed and stands beside nothing.
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
        method: the part a method of ours has to play (`results.plays`); empty for what is not implemented.
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
        return group_title(data_name(name, self.noise))

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the printed mean over five runs, and of what rounding hides.

        The ± is a standard deviation over runs, in `vmf` the standard error of their mean; without one only the
        rounding is known.
        """
        rounding = 0.5 * self.unit.scale * 10.0**-self.digits
        if self.spread is None:
            return rounding
        error = self.spread if self.table.startswith("vmf/") else self.spread / RUNS**0.5
        return max(T_OF_RUNS * error, rounding)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the prepared datasets, noise included."""
        return tuple(data_name(dataset, self.noise) for dataset in self.datasets)

    @property
    def heading(self) -> str:
        """The metric as a reader sees it, with the unit."""
        text = {None: "", 1: ", increase", -1: ", decrease", 0: ", quotient"}[self.unit.change]
        unit = f" [{self.unit.sign.strip()}]" if self.unit.sign else ""
        return f"{heading(self.metric)}{text}{unit}"

    def text(self, value: float, *, signed: bool = False) -> str:
        """A value of ours with the unit and digits of the printed one."""
        return f"{value / self.unit.scale:{'+' if signed else ''}.{self.digits}f}"


def load_published(folder: Path = FOLDER) -> list[PublishedNumber]:
    """Every transcribed number.

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
