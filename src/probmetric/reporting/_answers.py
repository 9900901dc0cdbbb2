"""The answers a report opens with: which method is best, by how much, is it significant, is its uncertainty worth it.

Uncertainty is judged by what was measured, each over seeds with its 95 % t-interval:

    finds errors    share of the gain a perfect ordering would bring when the least certain images are removed:
                    (mean accuracy over the sparsification curve - accuracy a) / (-a ln a); 0 is chance, 1 perfect
    finds strangers AUROC of uncertainty against out-of-distribution images; 0.5 is chance
    follows truth   Spearman correlation with a known difficulty, where one was evaluated; 0 is chance
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.metrics import label
from probmetric.reporting._comparison import LEVEL, Cell, summarise
from probmetric.reporting._render import number

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.reporting.tables import Group, ResultTable, Row

GOOD = {"errors": 0.3, "strangers": 0.75, "truth": 0.3}
CHANCE = {"errors": 0.0, "strangers": 0.5, "truth": 0.0}


@dataclass(frozen=True)
class Answer:
    """Which method is best on one dataset, in sentences."""

    title: str
    best: str
    value: str
    metric: str
    margin: str
    significance: str


@dataclass(frozen=True)
class Evidence:
    """One measurement of an uncertainty: what, its text, and `good`, `weak`, `none`, `inverted` or `single`."""

    name: str
    text: str
    grade: str


@dataclass(frozen=True)
class Trust:
    """Whether one method's uncertainty can be trusted on one dataset."""

    label: str
    verdict: str
    evidence: Mapping[str, Evidence]


def answers(table: ResultTable) -> list[Answer]:
    """One answer per dataset and noise rate, by the first metric of the table."""
    return [_answer(table, group) for group in table.groups]


def _answer(table: ResultTable, group: Group) -> Answer:
    column = table.columns[0]
    ranked = [(row, cell) for row in group.rows if (cell := row.cells[0]) is not None]
    ranked.sort(key=lambda pair: pair[1].mean, reverse=column.direction != "lower")
    if not ranked:
        return Answer(group.title, "not run", "", column.heading, "No run on this dataset is finished.", "")
    best, cell = ranked[0]
    mean, half_width = number(column, cell)
    value = f"{mean} ± {half_width}" if half_width else f"{mean} (one seed)"
    if len(ranked) == 1:
        return Answer(group.title, best.label, value, column.heading, "The only method with a finished run.", "")
    runner, other = ranked[1]
    margin = f"{abs(cell.mean - other.mean):.{column.digits}f}"
    ahead = "below" if column.direction == "lower" else "above"
    return Answer(
        group.title, best.label, value, column.heading, f"{margin} {ahead} {runner.label}.", _significance(ranked)
    )


def _significance(ranked: Sequence[tuple[Row, Cell]]) -> str:
    others = ranked[1:]
    tied = [row.label for row, cell in others if cell.tied]
    untested = [row.label for row, cell in others if cell.p_value is None and not cell.tied]
    if len(untested) == len(others):
        return "Not tested: a paired test needs at least two shared seeds."
    if not tied:
        worst = max(cell.p_value for _, cell in others if cell.p_value is not None)
        return f"Significantly better than every other method tested (largest p = {worst:.2g})."
    seeds = ranked[0][1].n
    return (
        f"Not significantly better than {_listed(tied)} (p ≥ {LEVEL:g}, {seeds} seeds); more seeds would be needed "
        "to tell them apart."
    )


def trust(context: ReportContext) -> dict[str, list[Trust]]:
    """Dataset (noise included) -> judgement of every method with a finished run, in the experiment's order."""
    values = _measurements(context)
    found: dict[str, list[Trust]] = {}
    for data in context.data:
        variants = [variant for variant in context.variants if (data, variant) in values]
        judged = [_judge(context.label(variant), values[data, variant]) for variant in variants]
        if judged := [item for item in judged if item.evidence]:
            found[data] = judged
    return found


def _measurements(context: ReportContext) -> dict[tuple[str, str], dict[str, list[float]]]:
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for record in context.records:
        name = _evidence_name(record.metric)
        if name and record.value is not None:
            mine = found.setdefault((record.key.data, record.key.variant), {})
            mine.setdefault(name, []).append(record.value)
    for run in context.runs:
        share = ordering_share(run.curves.get("sparsification"))
        if share is not None:
            found.setdefault((run.key.data, run.key.variant), {}).setdefault("Finds errors", []).append(share)
    return found


def _evidence_name(metric: str) -> str | None:
    parts = metric.split("/")
    if parts[0] == "ood" and len(parts) > 2 and parts[-1] == "auroc":
        return f"AUROC ({'/'.join(parts[1:-1])})"
    if "spearman" in parts[-1] and parts[0] not in ("val", "last"):
        return label(metric)
    return None


def ordering_share(curve: Any) -> float | None:
    """Share of a perfect ordering's gain: 0 at chance, 1 if every error is removed before any correct answer.

    Args:
        curve: {"removed": (P,), "accuracy": (P,)}; None or an accuracy of 0 or 1 gives None.
    """
    if not curve:
        return None
    removed = np.array(curve["removed"], dtype=np.float64)
    accuracy = np.array(curve["accuracy"], dtype=np.float64)
    start = float(accuracy[0])
    if len(removed) < 2 or not 0.0 < start < 1.0:
        return None
    area = float(np.trapezoid(accuracy, removed) / (removed[-1] - removed[0]))
    perfect = np.minimum(1.0, start / np.maximum(1.0 - removed, 1e-12))
    best = float(np.trapezoid(perfect, removed) / (removed[-1] - removed[0]))
    return (area - start) / (best - start)


def _judge(label: str, values: Mapping[str, list[float]]) -> Trust:
    order = sorted(values, key=lambda name: (name != "Finds errors", name))
    evidence = {name: _grade(name, values[name]) for name in order}
    grades = [item.grade for item in evidence.values()]
    if all(grade == "good" for grade in grades):
        verdict = "yes"
    elif "good" in grades:
        verdict = "partly"
    elif "single" in grades:
        verdict = "undecided"
    else:
        verdict = "weakly" if "weak" in grades else "no"
    return Trust(label, verdict, evidence)


def _grade(name: str, values: Sequence[float]) -> Evidence:
    kind = "errors" if name == "Finds errors" else "strangers" if name.startswith("AUROC") else "truth"
    cell = summarise(values)
    if cell.half_width is None:
        return Evidence(name, f"{cell.mean:.2f}", "single")
    text = f"{cell.mean:.2f} ± {cell.half_width:.2f}"
    low, high = cell.mean - cell.half_width, cell.mean + cell.half_width
    if low > CHANCE[kind]:
        return Evidence(name, text, "good" if cell.mean >= GOOD[kind] else "weak")
    return Evidence(name, text, "inverted" if high < CHANCE[kind] else "none")


def trust_sentence(judged: Sequence[Trust], best: str) -> str:
    """Whether the uncertainty of the method labelled `best` can be trusted, and whose can on every measurement."""
    if all(item.verdict == "undecided" for item in judged):
        return "Whose uncertainty can be trusted, one seed cannot tell."
    own = next((item.verdict for item in judged if item.label == best), None)
    others = [item.label for item in judged if item.verdict == "yes" and item.label != best]
    if own == "yes":
        return f"{OWN[own]} So can that of {_listed(others)}." if others else OWN[own]
    if others:
        rest = f"The uncertainty of {_listed(others)} can be trusted."
    else:
        rest = "No method's uncertainty is good by every measure."
    return f"{OWN[own]} {rest}" if own else rest


OWN = {
    "yes": "Its uncertainty can be trusted.",
    "partly": "Its uncertainty can be trusted in part.",
    "weakly": "Its uncertainty is better than chance, but of little use.",
    "no": "Its uncertainty cannot be trusted.",
    "undecided": "Whether its uncertainty can be trusted, one seed cannot tell.",
}
NAMED = 4


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence has them; of many the first four and how many more there are."""
    if len(names) == 1:
        return names[0]
    if len(names) <= NAMED + 1:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} others"
