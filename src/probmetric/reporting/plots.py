"""CSV files that `dvc plots show` and `dvc plots diff` read: the same names in every revision, x and y in columns.

plots/means.csv                          name, one column per metric of the table (template bar_horizontal)
plots/validation/<data>--<method>.csv    epoch, validation_metric, mean over seeds
plots/sparsification/<data>--<method>.csv  removed, accuracy, mean over seeds
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from probmetric.io import atomic_path
from probmetric.runs.names import legal_name

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder


def write_plots(context: ReportContext) -> list[Path]:
    """Write the CSV files of an experiment into `reports/<experiment>/plots`; returns their paths."""
    folder = context.folder / "plots"
    paths = [_write(folder / "means.csv", *_means(context))]
    groups: dict[str, list[RunFolder]] = defaultdict(list)
    for run in context.runs:
        groups[_file_name(f"{run.key.data}--{run.key.variant}")].append(run)
    for name, runs in groups.items():
        for kind, (head, rows) in {"validation": _validation(runs), "sparsification": _sparsification(runs)}.items():
            if rows:
                paths.append(_write(folder / kind / f"{name}.csv", head, rows))
    return paths


def _file_name(text: str) -> str:
    """A name every file system takes, Windows' included: `glyphs--contrastive-dim=32`."""
    return legal_name(text).replace("/", "-").replace(" ", "_").replace(":", "=")


def _means(context: ReportContext) -> tuple[list[str], list[list[object]]]:
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in context.records:
        if record.value is not None and record.metric in context.metrics:
            values[record.key.data, record.key.variant][record.metric].append(record.value)
    head = ["name", *(metric.replace("/", "_") for metric in context.metrics)]
    rows: list[list[object]] = []
    for data in context.data:
        for variant in context.variants:
            if found := values.get((data, variant)):
                means = [fmean(found[metric]) if found[metric] else "" for metric in context.metrics]
                rows.append([f"{data}/{variant}", *means])
    return head, rows


def _validation(runs: Sequence[RunFolder]) -> tuple[list[str], list[list[object]]]:
    by_epoch: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for row in run.history:
            epoch, value = row.get("epoch"), row.get("val_metric")
            if epoch is not None and value is not None:
                by_epoch[epoch].append(value)
    return ["epoch", "validation_metric"], [[int(epoch), fmean(by_epoch[epoch])] for epoch in sorted(by_epoch)]


def _sparsification(runs: Sequence[RunFolder]) -> tuple[list[str], list[list[object]]]:
    from probmetric.reporting.figures._data import mean_curve

    curve = mean_curve([run.curves.get("sparsification") for run in runs], "removed", "accuracy", points=50)
    rows: list[list[object]] = [] if curve is None else [[float(x), float(y)] for x, y in zip(*curve, strict=True)]
    return ["removed", "accuracy"], rows


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    return path
