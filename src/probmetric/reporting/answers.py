"""The answer a report opens with: which method is best on a dataset, by how much, and whether that is significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probmetric.reporting.comparison import LEVEL
from probmetric.reporting.tables import groups, number
from probmetric.reporting.words import listed

FLOOR_METHODS = ("raw_pixels", "untrained", "pixel_noise", "pixel_contrast")
NAMED = 4


@dataclass(frozen=True)
class Answer:
    """Which method is best on one dataset, in sentences; `floor` says that it learns nothing."""

    data: str
    title: str
    method: str
    best: str
    value: str
    metric: str
    margin: str
    significance: str = ""
    floor: bool = False


def answers(table: pd.DataFrame) -> list[Answer]:
    """Return one answer per dataset and noise rate, by the first metric of the table."""
    return [_answer(title, [cells[0] for cells in methods]) for title, methods in groups(table)]


def _answer(title: str, methods: Sequence[Any]) -> Answer:
    """Rank methods, given as rows of the table."""
    metric, lower, data = methods[0].heading, methods[0].direction == "lower", methods[0].data
    ranked = [cell for cell in methods if cell.status == "measured" and cell.against_best != "other length"]
    ranked.sort(key=lambda cell: cell.mean, reverse=not lower)
    if not ranked:
        return Answer(data, title, "", "not run", "", metric, "No run on this dataset is finished.")
    best = ranked[0]
    value = number(best) if best.seeds > 1 else f"{number(best)} (one seed)"
    if len(ranked) == 1:
        return Answer(data, title, best.method, best.label, value, metric, "The only method with a finished run.")
    runner_up = ranked[1]
    ahead = "below" if lower else "above"
    margin = f"{abs(best.mean - runner_up.mean):.{best.digits}f} {ahead} {runner_up.label}."
    return Answer(
        data, title, best.method, best.label, value, metric, margin, _significance(ranked), is_floor(best.method)
    )


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
