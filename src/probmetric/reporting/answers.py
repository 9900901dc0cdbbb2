"""The answer a report opens with: which method to take on a dataset, how it compares, and what of that is certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from probmetric.reporting.comparison import LEVEL
from probmetric.reporting.tables import groups, number
from probmetric.reporting.words import listed

if TYPE_CHECKING:
    from probmetric.reporting.recommended import Candidate

FLOOR_METHODS = ("raw_pixels", "untrained", "pixel_noise", "pixel_contrast")
NAMED = 4


@dataclass(frozen=True)
class Answer:
    """Which method is best on one dataset, in sentences.

    `floor` says that it learns nothing. `validation_classes` is how many classes chose it, 0 where its test images did.
    """

    data: str
    title: str
    method: str
    best: str
    value: str
    metric: str
    margin: str
    significance: str = ""
    floor: bool = False
    validation_classes: int = 0


def answers(table: pd.DataFrame, recommended: Mapping[str, Candidate] | None = None) -> list[Answer]:
    """Return one answer per dataset and noise rate, by the first metric of the table.

    Args:
        table: an experiment's table (`tables.result_table`).
        recommended: dataset -> the method that its validation images recommend; elsewhere test images decide.
    """
    chosen = recommended or {}
    grouped = ((title, [cells[0] for cells in methods]) for title, methods in groups(table))
    return [_answer(title, cells, chosen.get(cells[0].data)) for title, cells in grouped]


def _answer(title: str, methods: Sequence[Any], recommended: Candidate | None) -> Answer:
    """Rank methods, given as rows of the table."""
    metric, lower, data = methods[0].heading, methods[0].direction == "lower", methods[0].data
    ranked = [cell for cell in methods if cell.status == "measured" and cell.against_best != "other length"]
    ranked.sort(key=lambda cell: cell.mean, reverse=not lower)
    if not ranked:
        return Answer(data, title, "", "not run", "", metric, "No run on this dataset is finished.")
    validated = [cell for cell in ranked if recommended and cell.method == recommended.method]
    named, leader = validated[0] if validated else ranked[0], ranked[0]
    value = number(named) if named.seeds > 1 else f"{number(named)} (one seed)"
    answer = Answer(data, title, named.method, named.label, value, metric, "The only method with a finished run.")
    if len(ranked) == 1:
        return answer
    if named is leader:
        ahead, other = "below" if lower else "above", ranked[1]
        margin, significance = "", _significance(ranked)
    else:
        ahead, other = "above" if lower else "below", leader
        margin, significance = ", which is best on the test images; these had no say", _behind(named)
    return replace(
        answer,
        margin=f"{abs(named.mean - other.mean):.{named.digits}f} {ahead} {other.label}{margin}.",
        significance=significance,
        floor=is_floor(named.method),
        validation_classes=len(recommended.by_class) if recommended and validated else 0,
    )


def _behind(cell: Any) -> str:
    """Say whether a method that is not the best on the test images is significantly worse."""
    if cell.against_best == "worse":
        return f"It is significantly worse than one of the better ones (p = {cell.p_holm:.2g})."
    tested = cell.against_best in ("not worse", "no power")
    return "It is not significantly worse than any." if tested else "Not tested: too few shared seeds."


def is_floor(variant: str) -> bool:
    """Whether a method learns nothing and is run as a floor for those that do."""
    return variant.partition("+")[0] in FLOOR_METHODS


def _significance(ranked: Sequence[Any]) -> str:
    others = ranked[1:]
    tied = [cell for cell in others if cell.against_best in ("not worse", "no power")]
    untested = [cell.label for cell in others if cell.against_best == "untested"]
    worse = [cell.p_holm for cell in others if cell.against_best == "worse"]
    if not any(cell.against_best for cell in others):
        return ""
    if len(untested) == len(others):
        return "Not tested: a paired test needs at least three shared seeds."
    missing = f" Not tested against {listed(untested, NAMED)}: fewer than three shared seeds." if untested else ""
    if tied:
        names, largest = listed([cell.label for cell in tied], NAMED), max(cell.detectable for cell in tied)
        return (
            f"Not significantly better than {names} (p ≥ {LEVEL:g}, {ranked[0].seeds} seeds): differences below "
            f"{largest:.2g} are often missed here; more seeds would be needed to tell them apart.{missing}"
        )
    if len(others) == 1:
        return f"Significantly better than {others[0].label} (p = {max(worse):.2g})."
    which = "Every other method" if not untested else f"Each of the {len(worse)} other methods tested"
    return f"{which} is significantly worse than one of the better ones (largest p = {max(worse):.2g}).{missing}"
