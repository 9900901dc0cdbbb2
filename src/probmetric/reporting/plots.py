"""CSV files that `dvc plots show` and `dvc plots diff` read: the same names in every revision, x and y in columns.

plots/means.csv                          name, one column per metric of the table (template bar_horizontal)
plots/validation/<data>--<method>.csv    epoch, validation_metric, mean over seeds
plots/sparsification/<data>--<method>.csv  removed, accuracy, mean over seeds
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from probmetric.io import write_text
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures._data import by_group, mean_curve
from probmetric.reporting.results import method_file_name
from probmetric.runs.folder import RunFolder


def write_plots(context: ReportContext, table: pd.DataFrame) -> list[Path]:
    """Write the CSV files of an experiment, its `table` among them, below the report's plots/; return their paths."""
    folder = context.folder / "plots"
    paths = [_write(folder / "means.csv", _means(context, table))]
    for kind in ("validation", "sparsification"):
        (folder / kind).mkdir(exist_ok=True)  # DVC wants them, also where nothing was trained
    for data, methods in by_group(context).items():
        for variant, runs in methods.items():
            name = f"{method_file_name(data, variant)}.csv"
            for kind, points in {"validation": _validation(runs), "sparsification": _sparsification(runs)}.items():
                if len(points):
                    paths.append(_write(folder / kind / name, points))
    return paths


def _means(context: ReportContext, table: pd.DataFrame) -> pd.DataFrame:
    finished = table[table["finished"] > 0]
    names = finished["data"] + "/" + finished["method"]
    means = finished.assign(name=names).pivot(index="name", columns="metric", values="mean")
    means = means.reindex(index=names.unique(), columns=list(context.metrics)).dropna(how="all").reset_index()
    return means.rename(columns=lambda name: name.replace("/", "_"))


def _validation(runs: Sequence[RunFolder]) -> pd.DataFrame:
    rows = [(row.get("epoch"), row.get("val_metric")) for run in runs for row in run.history]
    points = pd.DataFrame(rows, columns=["epoch", "validation_metric"], dtype=float).dropna()
    return points.astype({"epoch": int}).groupby("epoch", as_index=False).mean()


def _sparsification(runs: Sequence[RunFolder]) -> pd.DataFrame:
    curve = mean_curve([run.curves.get("sparsification") for run in runs], "removed", "accuracy", points=50)
    removed, accuracy = ([], []) if curve is None else curve
    return pd.DataFrame({"removed": removed, "accuracy": accuracy})


def _write(path: Path, points: pd.DataFrame) -> Path:
    write_text(path, points.to_csv(index=False, lineterminator="\n"))
    return path
