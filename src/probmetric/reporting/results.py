"""The long table of an experiment: one row per run and metric, read from the run folders once, kept as runs.parquet.

run, data, dataset, noise, method, overrides, variant, seed, fidelity    which run it is
split        test, val, train, ood or last: which images were measured; `run` for times and facts of a training
metric       its name
value        NaN where the metric is not defined
unit         what is resampled for an interval: `image` where the test images are a sample beside the seeds, or `seed`
image_error  standard error of the value over the test images; NaN where unknown
images       values of single test images whose mean is the metric; None where they were not kept
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from probmetric.io import FileError, atomic_path, check_readable, present, write_json
from probmetric.metrics.statistics import Doubles
from probmetric.runs.folder import RunFolder, finished_runs
from probmetric.runs.names import RunKey, legal_name

RUNS_FILE, SUMMARY_FILE = "runs.parquet", "metrics.json"
AGAIN = "make the experiment's report again"
AS_PUBLISHED = "as_published"
TINY = 1e-9
_RUN = ("run", "data", "dataset", "noise", "method", "overrides", "variant", "seed", "fidelity")
COLUMNS = (*_RUN, "split", "metric", "value", "unit", "image_error", "images")
_SPLITS = {name: name for name in ("val", "train", "last", "ood")} | {"training": "run", "embedding": "run"}


@dataclass(frozen=True)
class Series:
    """One metric of one method (with its overrides) on one dataset and noise rate, by seed.

    Attributes:
        key: a run of the method there.
        fidelity: `corrected` or `as_published`.
        values: seed -> value.
        images: seed -> values of single test images (N,), where they were kept.
        errors: seed -> standard error of the value over the test images, where it was estimated.
    """

    key: RunKey
    fidelity: str
    values: dict[int, float] = field(default_factory=dict)
    images: dict[int, Doubles] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """Method with its overrides."""
        return self.key.variant


def plays(method: str, part: str) -> bool:
    """Whether `method` plays the `part` that a paper's table or claim names, in whatever fidelity."""
    return method.removesuffix(f"-{AS_PUBLISHED}") == part


Measured = dict[str, dict[str, dict[str, Series]]]  # dataset with its noise -> method -> metric -> series


def collect(runs: Iterable[str | Path | RunFolder]) -> pd.DataFrame:
    """Return the long table of finished runs, or of their folders; those that are not finished are left out."""
    rows = [row for run in finished_runs(runs) for row in _rows(run)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"value": float, "image_error": float, "noise": float})


def _rows(run: RunFolder) -> Iterable[dict[str, Any]]:
    key, errors = run.key, run.curves.get("image_errors", {})
    names = (key.run, key.data, key.dataset, key.noise, key.method, key.overrides, key.variant, key.seed, run.fidelity)
    gain = late_gain(run.history)
    values = {**run.metrics, **run.times} | ({} if gain is None else {"training/late_gain": gain})
    for metric, value in sorted(values.items()):
        group, _, name = metric.partition("/")
        images = run.curves.get(f"images/{name}") if group == "retrieval" else None
        error = _image_error(errors, metric)
        yield dict(zip(_RUN, names, strict=True)) | {
            "split": _SPLITS.get(group, "test"),
            "metric": metric,
            "value": value,
            "unit": "image" if images or error is not None else "seed",
            "image_error": error,
            "images": images["value"] if images else None,
        }


def _image_error(errors: Mapping[str, Sequence[float]], metric: str) -> float | None:
    """Return the standard error of a metric; of a mean over OOD sets (`ood/auroc`) the mean of theirs, no less."""
    if metric in errors:
        return float(errors[metric][0])
    group, _, kind = metric.partition("/")
    sets = [float(error[0]) for name, error in errors.items() if name.startswith("ood/") and name.endswith(f"/{kind}")]
    return fmean(sets) if group == "ood" and "/" not in kind and sets else None


def late_gain(history: Sequence[Mapping[str, float | None]]) -> float | None:
    """Return how much better the last fifth of the epochs is than those before, by their best, as a share of it.

    Args:
        history: rows of history.csv; None without at least five validations.
    """
    values = validations(history)
    last = max(1, len(values) // 5)
    if len(values) < 5:
        return None
    before, after = max(values[:-last]), max(values[-last:])
    return (after - before) / max(abs(before), TINY)


def validations(history: Sequence[Mapping[str, float | None]]) -> list[float]:
    """Return the validation metric of every epoch that has one."""
    return [value for row in history if (value := row.get("val_metric")) is not None]


def write_results(table: pd.DataFrame, folder: Path, metrics: Sequence[str] | None = None) -> None:
    """Write runs.parquet and metrics.json into the report's folder.

    Args:
        table: the long table.
        folder: `reports/<experiment>`.
        metrics: metrics of the summary; all that were measured by default.
    """
    with atomic_path(folder / RUNS_FILE) as temporary:
        table.to_parquet(temporary, index=False, compression="zstd")
    write_json(folder / SUMMARY_FILE, summarised(table, metrics))


def summarised(table: pd.DataFrame, metrics: Sequence[str] | None = None) -> dict[str, float]:
    """Return means over seeds by key; keys hold only letters, digits, `_ - . space : /`, as MLflow and DVC allow."""
    shown = table[table["value"].notna()]
    shown = shown if metrics is None else shown[shown["metric"].isin(list(metrics))]
    values: dict[str, list[float]] = defaultdict(list)
    for data, variant, metric, value in zip(
        *(shown[name] for name in ("data", "variant", "metric", "value")), strict=True
    ):
        values[legal_name(f"{data}/{variant}/{metric}")].append(value)
    return {name: fmean(seeds) for name, seeds in sorted(values.items())}


def read_results(folder: Path) -> pd.DataFrame:
    """Read the long table of the report in `folder`.

    Raises:
        FileError: there is none, or it is damaged.
    """
    path = folder / RUNS_FILE
    if not present(path):
        raise FileError(f"{path} is missing; {AGAIN}.")
    check_readable(path)
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is damaged ({error}); {AGAIN}.") from error
    if tuple(table.columns) != COLUMNS:
        raise FileError(f"{path}: expected the columns {', '.join(COLUMNS)}; {AGAIN}.")
    return table


def by_method(table: pd.DataFrame, expected: Iterable[RunKey]) -> Measured:
    """Return every series of the long table, in the order of the runs an experiment expects.

    Datasets have different out-of-distribution sets, and a table has one column for them: `ood/<metric>` is a run's
    mean of `ood/<set>/<metric>` over its sets, unless it was measured under that name.
    """
    keys = {key.run: key for key in expected}
    measured: Measured = {}
    for key in keys.values():
        measured.setdefault(key.data, {}).setdefault(key.variant, {})
    known = table[table["value"].notna() & table["run"].isin(list(keys))].sort_values("seed", kind="stable")
    rows: Iterable[Any] = known.itertuples()
    for row in rows:
        key = keys[row.run]
        fidelity = AS_PUBLISHED if key.method.endswith(f"-{AS_PUBLISHED}") else row.fidelity
        series = measured[key.data][key.variant].setdefault(row.metric, Series(key, fidelity))
        series.values[key.seed] = row.value
        if row.images is not None:
            series.images[key.seed] = np.asarray(row.images, dtype=np.float64)
        if not np.isnan(row.image_error):
            series.errors[key.seed] = row.image_error
    for methods in measured.values():
        for series_of in methods.values():
            series_of |= {name: each for name, each in _ood_means(series_of).items() if name not in series_of}
    return measured


def _ood_means(series: Mapping[str, Series]) -> dict[str, Series]:
    """`ood/<metric>` -> its mean over out-of-distribution sets, seed by seed, and the mean of their errors."""
    sets: dict[str, list[Series]] = defaultdict(list)
    for metric, each in series.items():
        if metric.startswith("ood/") and metric.count("/") > 1:
            sets[f"ood/{metric.rpartition('/')[2]}"].append(each)
    means = {}
    for name, parts in sets.items():
        values, errors = (_means([getattr(part, what) for part in parts]) for what in ("values", "errors"))
        means[name] = Series(parts[0].key, parts[0].fidelity, values, {}, errors)
    return means


def _means(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    seeds = sorted({seed for part in parts for seed in part})
    return {seed: fmean(part[seed] for part in parts if seed in part) for seed in seeds}
