"""Published numbers beside ours: difference, whether the printed ± and our interval explain it, and the protocols.

A row of a paper's table is compared with a run of ours on the same dataset, at the same noise rate, with the same
metric. Nothing else is: an experiment with its dataset substituted (`pfml/table2@glyphs`) and a dataset prepared from a
subset of its images have nothing to do with published numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from probmetric.data.manifest import SUMMARY, read_summary
from probmetric.io import of_kind, present
from probmetric.reporting._comparison import Cell, summarise
from probmetric.reporting._measured import Series, plays, series
from probmetric.reporting.published import PublishedNumber
from probmetric.runs.names import split_data_name, table_of

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

_Values = Mapping[int, float]
Verdict = Literal["not run", "not measured", "one seed", "inside", "outside"]


@dataclass(frozen=True)
class PublishedComparison:
    """A printed number and ours; `ours` is None where there is none, `method` is then the run that lacks the metric.

    `protocol` says how the two were made differently; empty where nothing is known to differ.
    """

    published: PublishedNumber
    method: str = ""
    ours: Cell | None = None
    protocol: str = ""

    @property
    def difference(self) -> float | None:
        """Ours - published."""
        return None if self.ours is None else self.ours.mean - self.published.value

    @property
    def verdict(self) -> Verdict:
        """Whether the difference is explained by our interval and the printed ±, or why that cannot be said."""
        if self.ours is None or self.difference is None:
            return "not measured" if self.method else "not run"
        if self.ours.half_width is None:
            return "one seed"
        allowed = math.hypot(self.ours.half_width, self.published.half_width)
        return "inside" if abs(self.difference) <= allowed else "outside"


def compare_published(context: ReportContext, numbers: Iterable[PublishedNumber]) -> list[PublishedComparison]:
    """The numbers of the table an experiment repeats, beside ours; one comparison for every method that plays the row.

    `pfml/table2@glyphs` repeats `pfml/table2` too, with nothing to compare: all its rows are "not run".
    """
    substitute = "@" in context.name
    asked = [number for number in numbers if number.table == table_of(context.name)]
    found = {} if substitute or not asked else series(context, {number.metric for number in asked})
    subsets = {data for data, _ in found if _is_subset(context, data)}
    found = {place: items for place, items in found.items() if place[0] not in subsets}
    present = set() if substitute else {(record.key.data, record.key.variant) for record in context.records}
    present = {place for place in present if place[0] not in subsets}
    compared = [item for number in asked for item in _compare(number, found, present)]
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
    """How our run was made, against how the papers made theirs; empty where both keep test images out of it."""
    paper = item.published.table.partition("/")[0]
    split = set(item.published.datasets) <= set(_SPLIT)
    if not split and not (paper == "lam" and set(item.published.datasets) <= set(_OF_LAM)):
        return ""
    runs = [run for run in context.runs if run.key.variant == item.method and run.key.data in item.published.data]
    chosen = str(runs[0].find("settings.training.selection", default="validation")) if runs else "validation"
    theirs = f"{'trained on all training classes, ' if split else ''}{_THEIRS.get(paper, 'best test epoch')}"
    return f"{_OURS[chosen].format(kind='classes' if split else 'data')}; paper: {theirs}"


def _is_subset(context: ReportContext, data: str) -> bool:
    """Whether a dataset was prepared from some of its images (`subset: true` among its options)."""
    run = next((run for run in context.runs if run.key.data == data), None)
    prepared = context.prepared if run is None else Path(run.find("settings.prepared", default=context.prepared))
    folders = (prepared / name for name in {data, split_data_name(data)[0]})
    return any(_options(folder).get("subset") for folder in folders if present(folder / SUMMARY))


def _options(folder: Path) -> dict[str, Any]:
    """Options a prepared dataset was made with."""
    found: dict[str, Any] = read_summary(folder).get("options", {})
    return of_kind(found, dict[str, Any], folder / SUMMARY, "prepare it again")  # type: ignore[no-any-return]


def _compare(
    number: PublishedNumber, found: Mapping[tuple[str, str], Sequence[Series]], present: Collection[tuple[str, str]]
) -> list[PublishedComparison]:
    mine = _played(found, number, number.method)
    bases = _played(found, number, number.relative_to)
    compared = []
    for variant, (fidelity, values) in mine.items():
        if number.relative_to:
            values = _change(values, bases, fidelity, number.unit.change)
        if values:
            compared.append(PublishedComparison(number, variant, summarise(list(values.values()))))
    if compared:
        return compared
    here = {variant for data, variant in present if data in number.data}
    lacking = [variant for variant in here if number.method and plays(variant.partition("+")[0], number.method)]
    return [PublishedComparison(number, min(lacking, default=""))]


def _played(
    found: Mapping[tuple[str, str], Sequence[Series]], number: PublishedNumber, part: str
) -> dict[str, tuple[str, _Values]]:
    """Method -> fidelity and values by seed; with folds, means over them, for seeds that were run on every fold."""
    by_fold = [
        {item.variant: item for item in found.get((data, number.metric), ()) if part and plays(item.key.method, part)}
        for data in number.data
    ]
    played: dict[str, tuple[str, _Values]] = {}
    for variant, first in by_fold[0].items():
        if all(variant in fold for fold in by_fold):
            folds = [fold[variant].values for fold in by_fold]
            seeds = [seed for seed in first.values if all(seed in fold for fold in folds)]
            played[variant] = (first.fidelity, {seed: fmean(fold[seed] for fold in folds) for seed in seeds})
    return played


def _change(values: _Values, bases: Mapping[str, tuple[str, _Values]], fidelity: str, change: int | None) -> _Values:
    """Relative change, seed by seed, from the method a number refers to, in the same fidelity where it was run."""
    order = sorted(bases.values(), key=lambda base: base[0] != fidelity)
    if not order:
        return {}
    base = order[0][1]
    quotients = {seed: value / base[seed] for seed, value in values.items() if base.get(seed)}
    return {seed: change * (quotient - 1) if change else quotient for seed, quotient in quotients.items()}
