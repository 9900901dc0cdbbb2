"""What was measured, looked up by the part a method plays: papers' tables and claims name parts, experiments methods.

A part `pfml-proxy_anchor` is played by the method of that name and by `pfml-proxy_anchor-as_published`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probmetric.reporting.aggregate import Record
from probmetric.reporting.experiment import ood_means

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.names import RunKey

AS_PUBLISHED = "as_published"


def plays(method: str, part: str) -> bool:
    """Whether `method` plays `part`, in whatever fidelity."""
    return method.removesuffix(f"-{AS_PUBLISHED}") == part


@dataclass(frozen=True)
class Series:
    """One metric of one method (with its overrides) on one dataset and noise rate, by seed."""

    key: RunKey
    fidelity: str
    values: Mapping[int, float]

    @property
    def variant(self) -> str:
        """Method with its overrides."""
        return self.key.variant


def series(context: ReportContext, metrics: Collection[str]) -> dict[tuple[str, str], list[Series]]:
    """(dataset with its noise, metric) -> series, in the experiment's order; a method without values has none."""
    found: dict[tuple[str, str, str], dict[int, Record]] = defaultdict(dict)
    records = context.records + ood_means(context.records, metrics)
    for record in records:
        if record.metric in metrics and record.value is not None:
            found[record.key.data, record.metric, record.key.variant][record.key.seed] = record
    order = {variant: place for place, variant in enumerate(context.variants)}
    grouped: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for (data, metric, _), seeds in sorted(found.items(), key=lambda item: order[item[0][2]]):
        first = next(iter(seeds.values()))
        values = {seed: record.value for seed, record in sorted(seeds.items()) if record.value is not None}
        fidelity = AS_PUBLISHED if first.key.method.endswith(f"-{AS_PUBLISHED}") else first.fidelity
        grouped[data, metric].append(Series(first.key, fidelity, values))
    return dict(grouped)
