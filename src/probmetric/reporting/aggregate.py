"""What every run measured and the time it took -> one tidy table, and the means DVC compares between revisions."""

from __future__ import annotations

import csv
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from probmetric.io import FileError, atomic_path, present, read_csv, write_json
from probmetric.reporting._selection import late_gain
from probmetric.reporting.record import REPORTS, write_report_record
from probmetric.runs.folder import STEPS, RunFolder, finished_runs
from probmetric.runs.names import RESULTS, RunKey, legal_name

if TYPE_CHECKING:
    from probmetric.planning.plans import ReportPlan

log = logging.getLogger(__name__)
COLUMNS = ("run", "dataset", "noise", "method", "overrides", "seed", "made", "fidelity", "metric", "value")


@dataclass(frozen=True)
class Record:
    """One row of runs.csv: one metric of one run; `value` is None where the metric is not defined."""

    key: RunKey
    fidelity: str
    metric: str
    value: float | None


def aggregate_experiment(plan: ReportPlan) -> None:
    """Gather the runs of an experiment that are what their plans say into runs.csv and metrics.json.

    A run whose record does not fit its plan is left out, with the reason; one that earlier code made and that is kept
    forms a variant of its own. What was found stands in made.json.
    """
    judge = plan.judge()
    verdicts = {name: judge.run_verdict(name) for name in plan.shown}
    shown = {name: {"made": "", "why": verdict.why} for name, verdict in verdicts.items() if verdict.usable}
    left_out = {name: verdict.why for name, verdict in verdicts.items() if verdict.state == "stale"}
    for name in (name for name, verdict in verdicts.items() if verdict.state == "missing"):
        _check_links(found_run(name))
    folder, runs = REPORTS / plan.experiment, [found_run(name, mark["made"]) for name, mark in shown.items()]
    aggregate(runs, folder / "runs.csv", folder / "metrics.json", metrics=plan.report["metrics"])
    write_report_record(plan.experiment, shown, left_out)
    if left_out:
        name, why = next(iter(left_out.items()))
        log.warning("%d of %d runs are left out, such as %s: %s", len(left_out), len(verdicts), name, why)


def _check_links(run: RunFolder) -> None:
    """Raise `FileError` where a file of the run is a link that leads nowhere: such a run is not just unfinished."""
    for file in (file for step in STEPS for file in run.step_files(step)):
        present(file)


def found_run(name: str, made: str = "") -> RunFolder:
    """A run by its name; `made` marks the code of an earlier release."""
    return RunFolder(RESULTS / name, made=made)


def aggregate(
    runs: Iterable[str | Path | RunFolder],
    output_csv: str | Path,
    summary_json: str | Path,
    *,
    metrics: Sequence[str] | None = None,
) -> None:
    """Write what finished runs measured and what they took.

    Args:
        runs: runs, or their folders; those that are not finished are left out.
        output_csv: tidy table to write, one row per run and metric.
        summary_json: means over seeds to write, one key per dataset, noise rate, method and metric.
        metrics: metrics of the summary; all that were measured by default.
    """
    records = [
        Record(run.key, run.fidelity, metric, value)
        for run in finished_runs(runs)
        for metric, value in sorted(_measured(run).items())
    ]
    _write_records(output_csv, records)
    write_json(summary_json, summarise(records, metrics))


def _measured(run: RunFolder) -> dict[str, float | None]:
    gain = late_gain(run.history)
    return {**run.metrics, **run.times} | ({} if gain is None else {"training/late_gain": gain})


def summarise(records: Iterable[Record], metrics: Sequence[str] | None = None) -> dict[str, float]:
    """Mean over seeds by key; keys use only letters, digits, `_ - . space : /`, as MLflow and DVC allow."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.value is not None and (metrics is None or record.metric in metrics):
            values[legal_name(f"{record.key.data}/{record.key.variant}/{record.metric}")].append(record.value)
    return {name: fmean(found) for name, found in sorted(values.items())}


def read_records(path: str | Path) -> list[Record]:
    """Read a runs.csv written by `aggregate`."""
    fix = "run the aggregate step again"
    names, rows = read_csv(path, fix)
    if tuple(names) != COLUMNS:
        raise FileError(f"{path}: expected the columns {', '.join(COLUMNS)}; {fix}.")
    try:
        return [_record(row) for row in rows]
    except ValueError as error:
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error


def _record(row: dict[str, str]) -> Record:
    key = RunKey(row["dataset"], float(row["noise"]), row["method"], row["overrides"], int(row["seed"]), row["made"])
    return Record(key, row["fidelity"], row["metric"], float(row["value"]) if row["value"] else None)


def _write_records(path: str | Path, records: Sequence[Record]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for record in records:
            key = record.key
            value = "" if record.value is None else repr(float(record.value))
            name = [key.run, key.dataset, f"{key.noise:g}", key.method, key.overrides, key.seed, key.made]
            writer.writerow([*name, record.fidelity, record.metric, value])
