"""What a report is about: the runs an experiment asks for, the metrics and figures it shows, and where files lie."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from probmetric.reporting._runs import Run, RunKey
from probmetric.reporting.aggregate import Record, read_records


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
    """

    name: str
    expected: tuple[RunKey, ...]
    metrics: tuple[str, ...]
    folder: Path
    results: Path = Path("results")
    prepared: Path = Path("data/prepared")
    title: str = ""
    description: str = ""
    figures: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

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
        """Rows of runs.csv that belong to this experiment."""
        wanted = set(self.expected)
        return [record for record in read_records(self.folder / "runs.csv") if record.key in wanted]

    @functools.cached_property
    def runs(self) -> list[Run]:
        """Finished runs of this experiment, in the experiment's order."""
        runs = [Run(self.results / key.run, key) for key in self.expected]
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

    def label(self, variant: str) -> str:
        """What a reader sees for a method: its label or its name, then the overrides."""
        method, _, overrides = variant.partition(",")
        shown = self.labels.get(method) or method
        return f"{shown}, {overrides.replace(',', ', ')}" if overrides else shown
