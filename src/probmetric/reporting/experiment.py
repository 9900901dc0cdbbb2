"""The context of a report: the runs an experiment asks for, their measurements, and the folders of files.

A finished report is signed. `reports/<experiment>/page.json` then names the runs left out and the report's files:
{"stale": {run: why it is left out}, "files": {name: SHA-256}}.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from probmetric.io import FileError, present, read_json, sha256_file, write_json
from probmetric.reporting.comparison import other_lengths
from probmetric.reporting.results import REPORT, Measured, Series, by_method, over_splits, read_results
from probmetric.reporting.words import override_words
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import RESULTS, RunKey, override_items

if TYPE_CHECKING:
    from probmetric.planning.plans import ReportPlan
    from probmetric.runs.made import Verdict

REPORTS = Path("reports")
PAGE = "page.json"


def sign(folder: Path, stale: Mapping[str, str] | None = None) -> None:
    """Sign the report in `folder`: write the `stale` runs left out (run -> why) and the digests of its files."""
    paths = sorted([*folder.glob("[!.]*"), *folder.glob("figures/[!.]*"), *folder.glob("metrics/[!.]*")])
    files = {str(path.relative_to(folder)): sha256_file(path) for path in paths if path.is_file() and path.name != PAGE}
    write_json(folder / PAGE, {"stale": dict(stale or {}), "files": files})


def signed_record(folder: Path, fix: str = REPORT, only: Collection[str] = ()) -> dict[str, Any]:
    """Return the record of the report in `folder` (or an empty one), and check its files (only those in `only`).

    Raises:
        FileError: a file is missing or has changed since the report was signed; the message says to `fix` it.
    """
    record: dict[str, Any] = {"stale": {}, "files": {}}
    if present(folder / PAGE):
        record |= read_json(folder / PAGE, fix, dict[str, dict[str, str]])
    for name, digest in record["files"].items():
        if (not only or name in only) and sha256_file(folder / name) != digest:
            raise FileError(f"{folder / name} was damaged or edited since it was written; {fix}.")
    return record


log = logging.getLogger(__name__)


def stale_runs(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return the runs whose results do not fit the plan, run -> why, and log a warning."""
    stale = {name: verdict.why for name, verdict in verdicts.items() if verdict.state == "stale"}
    if stale:
        first = next(iter(stale.items()))
        log.warning("%d of %d runs are left out, such as %s: %s", len(stale), len(verdicts), *first)
    return stale


@dataclass(frozen=True)
class ReportContext:
    """An experiment and its files; everything the tables, figures and the page need to know.

    Attributes:
        name: the experiment's name, `demo` or `pfml/table2`.
        expected: the runs the experiment asks for, in its order; runs without metrics.json are "not run".
        metrics: columns of the table; the first one decides which method is called best.
        folder: `reports/<experiment>`.
        results: folder that holds the run folders.
        prepared: folder that holds the prepared datasets.
        title: heading of the page.
        description: one paragraph below it.
        figures: names of the figures, in the order of the page.
        labels: method -> text shown instead of the method's name.
        budgets: method -> training runs spent on choosing its settings; for other methods none.
        tuned: method with settings chosen by a search -> the method that the search started from.
        tuned_on: method with settings chosen by a search -> the dataset of the search.
        plan: digest of the planned runs with their settings, the metrics and the claims.
        committed: that digest in the experiment file, written before there were results; empty if it has none.
        stale: run -> why, for runs that are not shown because their results do not fit the plan.
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
    plan: str = ""
    committed: str = ""
    stale: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: ReportPlan, stale: Mapping[str, str] | None = None) -> ReportContext:
        """Return the context of a planned experiment, without its `stale` runs: by default, those its record names."""
        rest = dict(plan.report)
        return cls(
            plan.experiment,
            tuple(map(RunKey.parse, plan.shown)),
            tuple(rest.pop("metrics")),
            REPORTS / plan.experiment,
            prepared=Path(rest.pop("prepared")),
            stale=signed_record(REPORTS / plan.experiment, only=["runs.parquet"])["stale"] if stale is None else stale,
            **(rest | {"figures": tuple(rest.get("figures", ()))}),
        )

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """Return the rows of the long table (`results`) that belong to this experiment."""
        table = read_results(self.folder)
        return table[table["run"].isin([key.run for key in self.expected])]

    @functools.cached_property
    def by_seed(self) -> Measured:
        """Return dataset (noise and split of its classes included) -> method -> metric -> series by seed."""
        return by_method(self.table, self.expected)

    @functools.cached_property
    def measured(self) -> Measured:
        """Return dataset (noise included) -> method -> metric -> series, in the experiment's order."""
        return over_splits(self.by_seed)

    def series(self, data: str, metric: str) -> dict[str, Series]:
        """Return method -> its `metric` on a dataset; methods without values are left out."""
        methods = self.measured.get(data, {})
        return {variant: series[metric] for variant, series in methods.items() if metric in series}

    def by_data(self, metric: str) -> dict[str, dict[str, Series]]:
        """Return dataset -> method -> its `metric`; methods without values are left out."""
        return {data: methods for data in self.data if (methods := self.series(data, metric))}

    def ranked(self, metric: str) -> dict[str, dict[str, Series]]:
        """Return the same as `by_data`, without variants of another length of training, which are not compared."""
        others = {data: other_lengths(key for key in self.expected if key.group == data) for data in self.data}
        return {
            data: {variant: series for variant, series in methods.items() if variant not in others[data]}
            for data, methods in self.by_data(metric).items()
        }

    @functools.cached_property
    def runs(self) -> list[RunFolder]:
        """Return the finished runs that the report shows, in the experiment's order."""
        shown = [key.run for key in self.expected if key.run not in self.stale]
        return [run for name in shown if (run := RunFolder(self.results / name)).finished]

    @functools.cached_property
    def methods(self) -> dict[str, dict[str, list[RunFolder]]]:
        """Return dataset (noise included) -> method -> its finished runs, in the experiment's order."""
        groups: dict[str, dict[str, list[RunFolder]]] = {}
        for run in self.runs:
            groups.setdefault(run.key.group, {}).setdefault(run.key.variant, []).append(run)
        return groups

    def trained_by(self, run: RunFolder) -> RunFolder:
        """Return the run that trained the encoder of `run`: itself, or the one whose encoder it uses."""
        encoder = run.find("encoder")
        return run if run.history or not isinstance(encoder, str) else RunFolder.named(encoder, self.results)

    @functools.cached_property
    def missing(self) -> list[RunKey]:
        """Return the runs that the experiment asks for and that have no results."""
        finished = set(self.table["run"])
        return [key for key in self.expected if key.run not in finished]

    @property
    def data(self) -> list[str]:
        """Return the datasets with their noise, without splits of their classes, in the experiment's order."""
        return list(dict.fromkeys(key.group for key in self.expected))

    def by_split(self, data: str) -> bool:
        """Return whether a dataset has one value per split of its classes instead of one per seed."""
        return len({key.class_split for key in self.expected if key.group == data}) > 1

    @property
    def variants(self) -> list[str]:
        """Return the methods with their overrides, in the experiment's order."""
        return list(dict.fromkeys(key.variant for key in self.expected))

    @functools.cached_property
    def shared_overrides(self) -> list[str]:
        """Return the overrides (`training.epochs=2`) that every run of the experiment has."""
        sets = [override_items(key.overrides) for key in self.expected]
        return [item for item in sets[0] if all(item in other for other in sets)]

    def label(self, variant: str) -> str:
        """Return the text for a method: its label or name, then the overrides that tell it from others, in words."""
        method, _, overrides = variant.partition("+")
        apart = [item for item in override_items(overrides) if item not in self.shared_overrides]
        return ", ".join([self.labels.get(method) or method, *map(override_words, apart)])

    def ordered(self, variants: Iterable[str]) -> list[str]:
        """Return methods in the experiment's order, each once."""
        wanted = set(variants)
        return [variant for variant in self.variants if variant in wanted]
