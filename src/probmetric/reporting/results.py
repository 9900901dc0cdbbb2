"""The long table of an experiment: one row per run and metric, read from the run folders once, kept as runs.parquet.

run, data, class_split, dataset, noise, method, overrides, variant, seed, fidelity    which run it is; `data` without
               its split of the classes, 0 for the dataset's own
split          test, val, train, ood or last: which images were measured; `run` for times and facts of a training
metric         its name
value          NaN where the metric is not defined
unit           the sample for an interval beside the seeds: test classes (`class`) or, if these are training classes,
               test `image`s; `seed` if only the seed is known
unit_count     number of units; 0 where unknown
unit_error     standard error of the value over the units; NaN where unknown
unit_labels    labels of the units (U,); None if their contributions were not kept
contributions  contribution of each unit (U,), with the metric as mean; None if not kept
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from probmetric.io import FileError, atomic_path, check_readable, present
from probmetric.metrics.ood import UNANSWERABLE
from probmetric.metrics.statistics import Sample
from probmetric.metrics.units import ERRORS, PREFIX, VALUE, Curves, expanded
from probmetric.runs.folder import RunFolder, finished_runs, late_gain
from probmetric.runs.names import RunKey, legal_name, without_split

RUNS_FILE = "runs.parquet"
REPORT = "make the experiment's report again"
AS_PUBLISHED = "as_published"
NORMAL_QUANTILE = 1.959964  # half the width of a 95 % interval, in standard errors
_RUN = ("run", "data", "class_split", "dataset", "noise", "method", "overrides", "variant", "seed", "fidelity")
_UNITS = ("unit", "unit_count", "unit_error", "unit_labels", "contributions")
COLUMNS = (*_RUN, "split", "metric", "value", *_UNITS)
_SPLITS = {name: name for name in ("val", "train", "last", "ood")} | {"training": "run", "embedding": "run"}


@dataclass(frozen=True, kw_only=True)
class Series(Sample):
    """One metric of one method (with its overrides) on one dataset and noise rate, by seed.

    Attributes:
        key: a run of the method there.
        fidelity: `corrected` or `as_published`.
        unit_labels: labels of the units whose contributions are known.
    """

    key: RunKey
    fidelity: str
    unit_labels: tuple[int, ...] = ()

    @property
    def variant(self) -> str:
        """Return the method with its overrides."""
        return self.key.variant


def mean_of(series: Sample) -> float:
    """Return the mean over seeds."""
    return fmean(series.values.values())


def plays(method: str, part: str) -> bool:
    """Return whether `method` plays the `part` that a paper's table or claim names, in any fidelity."""
    return method.removesuffix(f"-{AS_PUBLISHED}") == part


_Row = dict[Hashable, Any]
Measured = dict[str, dict[str, dict[str, Series]]]  # dataset with its noise -> method -> metric -> series


def collect(runs: Iterable[str | Path | RunFolder]) -> pd.DataFrame:
    """Return the long table of finished runs, or of their folders; unfinished runs are left out."""
    rows = [row for run in finished_runs(runs) for row in _rows(run)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"value": float, "unit_error": float, "noise": float})


def _rows(run: RunFolder) -> Iterable[dict[str, Any]]:
    key, curves = run.key, run.curves
    parts = (key.dataset, key.noise, key.method, key.overrides, key.variant, key.seed)
    names = (key.run, key.group, key.class_split, *parts, run.fidelity)
    gain = late_gain(run.history)
    values = {**run.metrics, **run.times} | ({} if gain is None else {"training/late_gain": gain})
    unit = unit_of(curves) or "image"
    for metric, value in sorted(values.items()):
        kept = curves.get(f"{PREFIX}{metric}")
        error, count = _unit_error(curves.get(ERRORS, {}), metric, values)
        yield dict(zip(_RUN, names, strict=True)) | {
            "split": _SPLITS.get(metric.partition("/")[0], "test"),
            "metric": metric,
            "value": value,
            "unit": unit if kept or not isnan(error) else "seed",
            "unit_count": count,
            "unit_error": error,
            "unit_labels": kept[unit] if kept else None,
            "contributions": kept[VALUE] if kept else None,
        }


def unit_of(curves: Curves) -> str:
    """Return the name of the units whose contributions a run's curves keep: class, image, walk; "" without any."""
    kept = (curve for name, curve in curves.items() if name.startswith(PREFIX))
    return next((name for curve in kept for name in curve if name != VALUE), "")


def _unit_error(
    errors: Mapping[str, Sequence[float]], metric: str, values: Mapping[str, float | None]
) -> tuple[float, int]:
    """Return the standard error of a metric and the number of units behind it; NaN and 0 where it is unknown.

    For a mean over OOD sets (`ood/auroc`) it is the mean of their errors, no less. For a metric with the ends of its
    95 % interval over the units (`trust/added_low`, `trust/added_high`) it follows from these ends.
    """
    names = [metric] if metric in errors else [name for name in errors if _over_sets(name) == metric]
    if not names:
        low, high = (values.get(f"{metric}_{end}") for end in ("low", "high"))
        return (float("nan") if low is None or high is None else (high - low) / (2 * NORMAL_QUANTILE)), 0
    return fmean(errors[name][0] for name in names), min(int(errors[name][1]) for name in names)


def _over_sets(metric: str) -> str:
    """Return `ood/auroc` for `ood/cars/auroc`, the mean over OOD sets that holds it; empty if there is none."""
    parts = metric.split("/")
    return f"ood/{parts[-1]}" if parts[0] == "ood" and len(parts) > 2 and parts[1] != UNANSWERABLE else ""


def write_results(table: pd.DataFrame, folder: Path) -> None:
    """Write the long table as runs.parquet into `reports/<experiment>`."""
    with atomic_path(folder / RUNS_FILE) as temporary:
        table.to_parquet(temporary, index=False, compression="zstd")


def method_file_name(data: str, variant: str) -> str:
    """Return a name that every file system accepts, Windows' included: `glyphs--contrastive-dim=32`."""
    return legal_name(f"{data}--{variant}").replace("/", "-").replace(" ", "_").replace(":", "=")


def read_results(folder: Path) -> pd.DataFrame:
    """Read the long table of the report in `folder`.

    Raises:
        FileError: the table is missing or damaged.
    """
    path = folder / RUNS_FILE
    if not present(path):
        raise FileError(f"{path} is missing; {REPORT}.")
    check_readable(path)
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is damaged ({error}); {REPORT}.") from error
    if tuple(table.columns) != COLUMNS:
        raise FileError(f"{path}: expected the columns {', '.join(COLUMNS)}; {REPORT}.")
    return table


def by_method(table: pd.DataFrame, expected: Iterable[RunKey]) -> Measured:
    """Return every series of the long table by seed, in the order of the runs an experiment expects.

    Datasets have different out-of-distribution sets, but a table has one column for them: `ood/<metric>` is a run's
    mean of `ood/<set>/<metric>` over its sets (without `unanswerable`), unless it was measured under that name.

    Raises:
        FileError: runs on the same data were measured on different classes (or images).
    """
    keys = {key.run: key for key in expected}
    measured: Measured = {}
    for key in keys.values():
        measured.setdefault(key.data, {}).setdefault(key.variant, {})
    shown = table[table["value"].notna() & table["run"].isin(list(keys))].sort_values("seed", kind="stable")
    first: dict[tuple[str, str], _Row] = {}
    by_seed: dict[tuple[str, str, str], list[_Row]] = defaultdict(list)
    for row in shown.assign(kept=shown["contributions"].notna()).to_dict("records"):
        key = keys[row["run"]]
        by_seed[key.data, key.variant, row["metric"]].append(row)
        if row["kept"]:
            _check_units(row, first.setdefault((key.data, row["metric"]), row), key.data)
    for (data, variant, metric), rows in by_seed.items():
        measured[data][variant][metric] = _series(rows, keys[rows[0]["run"]])
    for methods in measured.values():
        for series_of in methods.values():
            series_of |= {name: each for name, each in _ood_means(series_of).items() if name not in series_of}
    return measured


def over_splits(measured: Measured) -> Measured:
    """Join the splits of a dataset's classes: a series has one value per split, the mean over the split's seeds.

    Other training classes change a metric more than other seeds. A test class in several splits is one unit. A dataset
    whose classes were split in one way keeps its values by seed.
    """
    groups: dict[str, list[dict[str, dict[str, Series]]]] = defaultdict(list)
    for data, methods in measured.items():
        groups[without_split(data)].append(methods)
    return {group: parts[0] if len(parts) == 1 else _joined(parts) for group, parts in groups.items()}


def _joined(parts: Iterable[Mapping[str, Mapping[str, Series]]]) -> dict[str, dict[str, Series]]:
    """Join the series of several splits of the same classes, each method -> metric -> series."""
    several: dict[str, dict[str, list[Series]]] = {}
    labels: dict[str, set[int]] = defaultdict(set)
    for methods in parts:
        for variant, series_of in methods.items():
            for metric, each in series_of.items():
                several.setdefault(variant, {}).setdefault(metric, []).append(each)
                labels[metric].update(each.unit_labels)
    return {
        variant: {metric: _value_per_split(splits, sorted(labels[metric])) for metric, splits in series_of.items()}
        for variant, series_of in several.items()
    }


def _value_per_split(splits: Sequence[Series], labels: Sequence[int]) -> Series:
    """Return one metric of a method by split; its units are `labels`, all those of any method in any split."""
    by_split = {each.key.class_split: each for each in splits}
    complete = {split: each for split, each in by_split.items() if each.contributions.keys() == each.values.keys()}
    return replace(
        splits[0],
        values={split: fmean(each.values.values()) for split, each in by_split.items()},
        contributions={
            split: expanded(np.mean(list(each.contributions.values()), axis=0), each.unit_labels, labels)
            for split, each in complete.items()
        },
        errors={split: max(each.errors.values()) for split, each in by_split.items() if each.errors},
        units=min(each.units for each in splits),
        unit_labels=tuple(labels),
    )


def _check_units(row: _Row, first: _Row, data: str) -> None:
    """Raise a FileError if a run's contributions belong to other units than the first run's: they are not compared."""
    labels, values, expected = row["unit_labels"], row["contributions"], first["unit_labels"]
    if len(labels) != len(values) or not np.array_equal(labels, expected):
        raise FileError(
            f"{row['metric']} on {data}: {row['run']} was measured on {len(labels)} units and has {len(values)} "
            f"contributions, {first['run']} on {len(expected)}, and these are not the same units in the same order; "
            "delete made/evaluate.json of the run whose data are old and run it again."
        )


def _series(rows: Sequence[_Row], key: RunKey) -> Series:
    """Return one metric of one method from its rows, one per seed."""
    kept, estimated = [row for row in rows if row["kept"]], [row for row in rows if not isnan(row["unit_error"])]
    return Series(
        key=key,
        fidelity=AS_PUBLISHED if key.method.endswith(f"-{AS_PUBLISHED}") else rows[-1]["fidelity"],
        values={row["seed"]: row["value"] for row in rows},
        contributions={row["seed"]: np.asarray(row["contributions"], dtype=np.float64) for row in kept},
        errors={row["seed"]: row["unit_error"] for row in estimated},
        units=min((int(row["unit_count"]) for row in estimated), default=0),
        unit_labels=tuple(kept[0]["unit_labels"]) if kept else (),
    )


def _ood_means(series: Mapping[str, Series]) -> dict[str, Series]:
    """Return `ood/<metric>` -> its mean over out-of-distribution sets, seed by seed, and the mean of their errors."""
    sets: dict[str, list[Series]] = defaultdict(list)
    for metric, each in series.items():
        if name := _over_sets(metric):
            sets[name].append(each)
    means = {}
    for name, parts in sets.items():
        values, errors = (_means([getattr(part, what) for part in parts]) for what in ("values", "errors"))
        units = min(part.units for part in parts)
        means[name] = replace(parts[0], values=values, contributions={}, errors=errors, units=units)
    return means


def _means(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    seeds = sorted({seed for part in parts for seed in part})
    return {seed: fmean(part[seed] for part in parts if seed in part) for seed in seeds}
