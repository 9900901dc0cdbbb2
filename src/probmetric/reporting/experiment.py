"""What a report is about: the runs an experiment asks for, the metrics and figures it shows, and where files lie."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from probmetric.reporting._words import override_words
from probmetric.reporting.aggregate import Record, found_run, read_records
from probmetric.reporting.record import REPORTS, read_report_record
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import MADE, RESULTS, RunKey, override_items

if TYPE_CHECKING:
    from probmetric.planning.plans import ReportPlan


@dataclass(frozen=True)
class ReportContext:
    """An experiment and its files; everything the tables, figures and the page need to know.

    Attributes:
        name: the experiment's name, `demo` or `pfml/table2`.
        expected: the runs the experiment asks for, in the experiment's order; those without metrics.json are "not run".
        metrics: columns of the table; the first one decides which method is called best.
        folder: `reports/<experiment>`.
        results: folder that holds the run folders.
        prepared: folder that holds the prepared datasets.
        title: heading of the page.
        description: one paragraph below it.
        figures: names of the figures, in the order of the page.
        labels: method -> text shown instead of the method's name.
        budgets: method -> training runs spent on choosing its settings; others had none.
        tuned: method with settings a search chose -> the method whose settings they are.
        tuned_on: method with settings a search chose -> the dataset it chose them on.
        substituted: the experiment whose datasets this one replaces; empty where nothing is replaced.
        left_out: method of that experiment -> why it cannot run on the substitute.
        kept: run -> why, of the runs that code of an earlier release made and that are shown marked.
        stale: run -> why, of the runs whose results are not what is planned and that are not shown.
    """

    name: str
    expected: tuple[RunKey, ...]
    metrics: tuple[str, ...]
    folder: Path
    results: Path = RESULTS
    prepared: Path = Path("data/prepared")
    title: str = ""
    description: str = ""
    figures: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, int] = field(default_factory=dict)
    tuned: Mapping[str, str] = field(default_factory=dict)
    tuned_on: Mapping[str, str] = field(default_factory=dict)
    substituted: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    stale: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: ReportPlan) -> ReportContext:
        """The context of a planned experiment; runs that earlier code made are marked as `aggregate` found them."""
        record = read_report_record(plan.experiment)
        found = record.get("runs", {})
        runs = [found_run(name, found.get(name, {}).get("made", "")).key for name in plan.shown]
        rest = dict(plan.report)
        columns, prepared = tuple(rest.pop("metrics")), Path(rest.pop("prepared"))
        return cls(
            plan.experiment,
            tuple(runs),
            columns,
            REPORTS / plan.experiment,
            prepared=prepared,
            kept={name: entry["why"] for name, entry in found.items() if entry["made"]},
            stale=record.get("left_out", {}),
            **(rest | {"figures": tuple(rest.get("figures", ()))}),
        )

    @classmethod
    def create(
        cls, name: str, runs: Iterable[str | Path], metrics: Iterable[str], folder: str | Path, **rest: object
    ) -> ReportContext:
        """A context from run folders (absolute, or below the results folder).

        Raises:
            ValueError: no run or no metric is named.
        """
        expected = tuple(dict.fromkeys(RunKey.parse(run) for run in runs))
        if not expected or not (columns := tuple(metrics)):
            raise ValueError(f"experiment {name!r}: a report needs at least one run and one metric.")
        return cls(name, expected, columns, Path(folder), **rest)  # type: ignore[arg-type]

    @functools.cached_property
    def records(self) -> list[Record]:
        """Rows of runs.csv that belong to this experiment, and the means over OOD sets its metrics ask for."""
        wanted = set(self.expected)
        records = [record for record in read_records(self.folder / "runs.csv") if record.key in wanted]
        return records + ood_means(records, self.metrics)

    @functools.cached_property
    def runs(self) -> list[RunFolder]:
        """Runs of this experiment that its report shows, in the experiment's order."""
        shown = [key for key in self.expected if key.run not in self.stale]
        runs = [RunFolder(self.results / key.run, made=key.made) for key in shown]
        return [run for run in runs if run.finished]

    @functools.cached_property
    def missing(self) -> list[RunKey]:
        """Runs the experiment asks for that are not in runs.csv."""
        present = {record.key for record in self.records}
        return [key for key in self.expected if key not in present]

    @property
    def data(self) -> list[str]:
        """Datasets with their noise, in the experiment's order."""
        return list(dict.fromkeys(key.data for key in self.expected))

    @property
    def variants(self) -> list[str]:
        """Methods with their overrides, in the experiment's order."""
        return list(dict.fromkeys(key.variant for key in self.expected))

    @functools.cached_property
    def shared_overrides(self) -> list[str]:
        """Overrides (`training.epochs=2`) that every run of the experiment has."""
        sets = [override_items(key.overrides) for key in self.expected]
        return [item for item in sets[0] if all(item in other for other in sets)]

    def label(self, variant: str) -> str:
        """What a reader sees for a method: its label or its name, then in words what tells it from others."""
        method, _, overrides = variant.partition("+")
        own = [item for item in override_items(overrides) if item not in self.shared_overrides]
        own = [
            f"kept from {item.removeprefix(MADE)}" if item.startswith(MADE) else override_words(item) for item in own
        ]
        return ", ".join([self.labels.get(method) or method, *own])


def ood_means(records: Iterable[Record], metrics: Iterable[str]) -> list[Record]:
    """Rows `ood/<metric>`: a run's mean of `ood/<set>/<metric>` over its out-of-distribution sets.

    Datasets have different sets, and a table has one column for them. Only what `metrics` asks for and nobody measured
    under that name is computed.
    """
    records = list(records)
    measured = {record.metric for record in records}
    asked = {name for name in metrics if name.startswith("ood/") and name.count("/") == 1} - measured
    values: dict[tuple[RunKey, str, str], list[float]] = defaultdict(list)
    for record in records:
        group, _, rest = record.metric.partition("/")
        name = f"ood/{rest.rpartition('/')[2]}"
        if group == "ood" and name in asked and record.value is not None:
            values[record.key, record.fidelity, name].append(record.value)
    return [Record(key, fidelity, name, fmean(found)) for (key, fidelity, name), found in values.items()]
