"""What tells a wrong answer: every method's own uncertainty beside the scores that any search returns for nothing.

One table per question and dataset. Cells are AUROCs, means over seeds; the best of a row is marked. For wrong answers
the first column says what the method's scores add to the free ones together: the difference of two cross-fitted AUROCs,
with its interval over the classes (`trust/added`), averaged over seeds.

A last table asks what answering only the surest is worth, by the method's own uncertainty and by P(right), which is
made of free scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from probmetric.trust import scores

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

Means = Mapping[str, float]


SELECTIVE = {
    "AUGRC": "augrc",
    "E-AURC": "e_aurc",
    "error rate of the surest 80 %": "risk_at_coverage_80",
    "share answered at 5 % errors": "coverage_at_risk_5",
}


@dataclass(frozen=True)
class ScoreRow:
    """One method: its values by column, the column of the largest, and what its scores add."""

    label: str
    values: Mapping[str, float]
    best: str
    added: str = ""


@dataclass(frozen=True)
class ScoreTable:
    """One question on one dataset."""

    title: str
    columns: Sequence[str]
    rows: Sequence[ScoreRow]
    adds: bool = False
    unit: str = "AUROC"


def score_tables(context: ReportContext) -> dict[str, list[ScoreTable]]:
    """Dataset (noise included) -> tables: wrong answers, then strangers, then both at once; empty ones are left out."""
    return {data: tables for data in context.data if (tables := _of(context, data))}


def _of(context: ReportContext, data: str) -> list[ScoreTable]:
    means = {variant: _means(context, data, variant) for variant in context.variants}
    sets = sorted({name.split("/")[1] for mine in means.values() for name in mine if _is_of_set(name)})
    asked = [("Wrong answers", "sparsification/error_auroc")]
    asked += [(f"Strangers ({name})", f"ood/{name}/auroc") for name in sets]
    asked += [(f"Wrong answers and strangers ({name})", f"ood/{name}/scod_auroc") for name in sets]
    tables = [_table(context, title, metric, means) for title, metric in asked]
    return [table for table in (*tables, _selective(context, means)) if table.rows]


def _is_of_set(name: str) -> bool:
    return name.startswith("ood/") and name.endswith("/auroc") and name.count("/") == 2


def _means(context: ReportContext, data: str, variant: str) -> Means:
    found: dict[str, list[float]] = {}
    for record in context.records:
        if record.value is not None and (record.key.data, record.key.variant) == (data, variant):
            found.setdefault(record.metric, []).append(record.value)
    return {name: fmean(values) for name, values in found.items()}


def _table(context: ReportContext, title: str, metric: str, means: Mapping[str, Means]) -> ScoreTable:
    errors = metric == "sparsification/error_auroc"
    together = {"free together": "trust/free", "with the method's": "trust/both"} if errors else {}
    named = {"own": metric} | together | {name.replace("_", " "): f"{metric}_{name}" for name in _ordered()}
    rows = []
    for variant, mine in means.items():
        values = {column: mine[name] for column, name in named.items() if name in mine}
        if len(values) > 1:
            best = max((column for column in values if column not in together), key=values.__getitem__)
            rows.append(ScoreRow(context.label(variant), values, best, added(mine) if errors else ""))
    columns = [column for column in named if any(column in row.values for row in rows)]
    return ScoreTable(title, columns, rows, adds=errors and any(row.added for row in rows))


def _selective(context: ReportContext, means: Mapping[str, Means]) -> ScoreTable:
    """What answering only the surest is worth: own uncertainty, then P(right); EDC where pairs are verified."""
    named: dict[str, str] = {}
    for column, metric in SELECTIVE.items():
        named |= {f"{column}, own": f"sparsification/{metric}", f"{column}, by P(right)": f"p_right/{metric}"}
    named["EDC"] = "verification/edc"
    rows = []
    for variant, mine in means.items():
        values = {column: mine[name] for column, name in named.items() if name in mine}
        if values:
            rows.append(ScoreRow(context.label(variant), values, ""))
    columns = [column for column in named if any(column in row.values for row in rows)]
    return ScoreTable("Answering only the surest", columns, rows, unit="lower is better but for the share answered")


def _ordered() -> list[str]:
    """Scores, the free ones first."""
    free = scores.free_scores()
    return free + [name for name in scores.list_scores() if name not in free]


def added(means: Means) -> str:
    """What a method adds, in words: `+0.003 [+0.001, +0.005]`; empty where it was not measured."""
    if not {"trust/added", "trust/added_low", "trust/added_high"} <= set(means):
        return ""
    value, low, high = (means[f"trust/{name}"] for name in ("added", "added_low", "added_high"))
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
