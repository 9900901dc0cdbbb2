"""Judge an uncertainty by three questions, and compare it with the scores that every search returns for free.

Each question is answered `yes`, `no` or `undecided`, or not at all if no metric for it was measured:

    errors       does it tell wrong answers from right ones? AUROC, 0.5 is chance
    strangers    does it tell out-of-distribution images? AUROC, 0.5 is chance
    probability  do probabilities mean what they say? calibration error (ECE)

`yes` needs an interval over seeds and test classes (images, if these are of training classes) that is better than the
threshold *and* the floor. The floor is the best score without cost: a free score (`probmetric.trust.scores`) or, if
run, the uncertainty of an untrained network, of raw pixels or of a pixel statistic. `no` needs an interval on the wrong
side. An uncertainty is trusted if all three answers are yes.

Correlation with the strength of distortions, if known, is shown with its floor but does not decide. The verdicts hold
for the test images of the experiment, without a guarantee for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probmetric.metrics import label
from probmetric.reporting.answers import is_floor
from probmetric.reporting.comparison import Cell, summarise
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.results import Series, mean_of
from probmetric.reporting.words import group_title
from probmetric.trust.scores import free_scores, list_scores

Question = Literal["errors", "strangers", "probability", "difficulty"]
Verdict = Literal["yes", "no", "undecided"]

LEAST_AUROC = 0.75
LARGEST_ECE = 0.05
QUESTIONS: Mapping[Question, str] = {
    "errors": "which answers are wrong",
    "strangers": "which images are strangers",
    "probability": "how probable an answer is",
}
ERRORS = ("sparsification/error_auroc", "classification/error_auroc")
CALIBRATION = ("calibration/ece", "calibration/retrieval_ece")


TOGETHER = {"free together": "trust/free", "with the method's": "trust/both"}
SELECTIVE = {
    "AUGRC": "augrc",
    "E-AURC": "e_aurc",
    "error rate of the surest 80 %": "risk_at_coverage_80",
    "share answered at 5 % errors": "coverage_at_risk_5",
}


@dataclass(frozen=True)
class Evidence:
    """One measurement of an uncertainty.

    Attributes:
        question: the question it answers.
        name: name for a table's head.
        text: value and interval.
        verdict: `yes`, `no` or `undecided`.
        floor: the best score without cost, None if none was measured.
        why: reason why the verdict is not yes; empty for yes.
    """

    question: Question
    name: str
    text: str
    verdict: Verdict
    floor: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Trust:
    """Whether one method's uncertainty can be trusted on one dataset, by metric and by question."""

    label: str
    evidence: Mapping[str, Evidence]

    def answer(self, question: Question) -> Verdict | None:
        """Return the worst verdict on a question, or None if no metric for it was measured."""
        verdicts = {item.verdict for item in self.of(question)}
        return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), None)

    def of(self, question: Question) -> list[Evidence]:
        """Return the evidence on a question."""
        return [item for item in self.evidence.values() if item.question == question]

    @property
    def verdict(self) -> str:
        """Return `yes` if all three answers are yes, `partly` if one is, `no` if none can be, else `undecided`."""
        answers = [self.answer(question) for question in QUESTIONS]
        if all(answer == "yes" for answer in answers):
            return "yes"
        if "yes" in answers:
            return "partly"
        return "undecided" if "undecided" in answers else "no"


_WORST_FIRST: tuple[Verdict, ...] = ("no", "undecided", "yes")


def trust(context: ReportContext) -> dict[str, list[Trust]]:
    """Return title of the dataset -> judgement of every method with a finished run, in the experiment's order."""
    judged = {
        group_title(data): [
            Trust(context.label(variant), evidence)
            for variant, series in methods.items()
            if (evidence := _evidence(variant, series, methods))
        ]
        for data, methods in context.measured.items()
    }
    return {title: methods for title, methods in judged.items() if methods}


_Metrics = Mapping[str, Series]


def _evidence(variant: str, series: _Metrics, methods: Mapping[str, _Metrics]) -> dict[str, Evidence]:
    """Return metric -> its evidence about a method's uncertainty."""
    evidence = {}
    for metric, sample in sorted(series.items()):
        if question := _question(metric, series):
            cell, counted = summarise(sample), sample.unit_variance(list(sample.values)) is not None
            floor = _floor(metric, variant, methods, free=question != "difficulty")
            evidence[metric] = _grade(question, metric, cell, floor, units=counted)
    return evidence


def _question(metric: str, measured: _Metrics) -> Question | None:
    """Return the question that `metric` answers, given the metrics that were measured."""
    parts = metric.split("/")
    if metric == next((name for name in ERRORS if name in measured), None):
        return "errors"
    if metric == next((name for name in CALIBRATION if name in measured), None):
        return "probability"
    if parts[0] == "ood" and len(parts) > 2 and parts[-1] == "auroc":
        return "strangers"
    return "difficulty" if "spearman" in parts[-1] and parts[0] not in ("val", "last") else None


def _floor(metric: str, variant: str, methods: Mapping[str, _Metrics], *, free: bool) -> float | None:
    """Return the best mean of the search's free scores and of methods that learn nothing.

    It is None if none of these was measured, or if free scores exist (`free`) but were not measured.
    """
    names = (f"{metric}_{score}" for score in free_scores())
    of_search = [mean_of(methods[variant][name]) for name in names if name in methods[variant]]
    trivial = [
        mean_of(series[metric])
        for name, series in methods.items()
        if name != variant and is_floor(name) and metric in series
    ]
    return max(of_search + trivial, default=None) if of_search or not free else None


def _grade(question: Question, metric: str, cell: Cell, floor: float | None, *, units: bool) -> Evidence:
    """Return the evidence with the verdict of one measurement.

    Args:
        question: the question it answers.
        metric: name of the metric.
        cell: mean and interval.
        floor: the best score without cost.
        units: whether the interval covers the test classes (or images).
    """
    name = label(metric)
    if cell.half_width is None:
        return Evidence(question, name, f"{cell.mean:.2f}", "undecided", floor, "one seed")
    text = f"{cell.mean:.2f} ± {cell.half_width:.2f}"
    low, high = cell.mean - cell.half_width, cell.mean + cell.half_width
    if question == "difficulty":
        least = max(floor or 0.0, 0.0)
        verdict: Verdict = "yes" if low > least else "no" if high < least else "undecided"
        return Evidence(question, name, text, verdict, floor)
    if question == "probability":
        verdict, why = ("yes", "") if high <= LARGEST_ECE else ("no", f"above {LARGEST_ECE:g}")
        if verdict == "no" and low <= LARGEST_ECE:
            verdict, why = "undecided", f"the interval reaches beyond {LARGEST_ECE:g}"
    else:
        verdict, why = _detects(low, high, floor)
    if verdict == "yes" and not units:
        verdict, why = "undecided", "the interval leaves out the test classes"
    return Evidence(question, name, text, verdict, floor, why)


def _detects(low: float, high: float, floor: float | None) -> tuple[Verdict, str]:
    """Return whether an AUROC between `low` and `high` beats chance and `floor`, and why if it does not."""
    if high < LEAST_AUROC:
        return "no", "below chance" if high < 0.5 else f"below {LEAST_AUROC:g}"
    if floor is not None and high <= floor:
        return "no", f"no better than the free score ({floor:.2f})"
    if low < LEAST_AUROC:
        return "undecided", f"the interval reaches below {LEAST_AUROC:g}"
    if floor is None:
        return "undecided", "free scores were not measured"
    if low <= floor:
        return "undecided", f"not clearly better than the free score ({floor:.2f})"
    return "yes", ""


@dataclass(frozen=True)
class ScoreRow:
    """One method: its values by column, the column of the largest, and the gain of its scores over the free ones."""

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
    unit: str

    @property
    def adds(self) -> bool:
        """Return whether the table says for any method what its scores add."""
        return any(row.added for row in self.rows)


def score_tables(context: ReportContext) -> dict[str, list[ScoreTable]]:
    """Return tables of scores that tell a wrong answer: a method's own uncertainty and a search's free scores.

    Cells are AUROCs, means over seeds; the best of a row is marked. For wrong answers the first column is the gain of
    the method's scores over all free scores together: the difference of two cross-fitted AUROCs, `trust/added`, with
    the table's interval. A last table shows what answering only the surest questions is worth, by the method's own
    uncertainty and by P(right), which is made from free scores.

    Returns:
        Title of the dataset -> tables: wrong answers, strangers, both at once; empty ones are left out.
    """
    return {
        group_title(data): shown for data, methods in context.measured.items() if (shown := _tables(context, methods))
    }


def _tables(context: ReportContext, methods: Mapping[str, _Metrics]) -> list[ScoreTable]:
    names = (name.split("/") for series in methods.values() for name in series)
    sets = sorted({parts[1] for parts in names if len(parts) == 3 and (parts[0], parts[2]) == ("ood", "auroc")})
    questions = [("Wrong answers", "sparsification/error_auroc")]
    questions += [(f"Strangers ({name})", f"ood/{name}/auroc") for name in sets]
    questions += [(f"Wrong answers and strangers ({name})", f"ood/{name}/scod_auroc") for name in sets]
    tables = [_table(context, title, _columns(metric), methods) for title, metric in questions]
    selective = {
        f"{column}, {whose}": f"{group}/{metric}"
        for column, metric in SELECTIVE.items()
        for whose, group in (("own", "sparsification"), ("by P(right)", "p_right"))
    }
    named = selective | {"EDC": "verification/edc"}  # EDC where pairs are verified
    tables.append(_table(context, "Answering only the surest", named, methods, alike=False))
    return [table for table in tables if table.rows]


def _columns(metric: str) -> dict[str, str]:
    """Return column -> metric: the method's own uncertainty, scores together, single ones, the free ones first."""
    free = free_scores()
    names = free + [name for name in list_scores() if name not in free]
    together = TOGETHER if metric == "sparsification/error_auroc" else {}
    return {"own": metric} | together | {name.replace("_", " "): f"{metric}_{name}" for name in names}


def _table(
    context: ReportContext, title: str, named: Mapping[str, str], methods: Mapping[str, _Metrics], *, alike: bool = True
) -> ScoreTable:
    """Return the table of metrics by column; `alike` columns are AUROCs, of which the best is marked."""
    rows = []
    for variant, series in methods.items():
        values = {column: mean_of(series[name]) for column, name in named.items() if name in series}
        if len(values) > alike:
            single = {column: value for column, value in values.items() if column not in TOGETHER}
            best = max(single, key=single.__getitem__) if alike else ""
            adds = added(series) if TOGETHER.keys() <= named.keys() else ""
            rows.append(ScoreRow(context.label(variant), values, best, adds))
    columns = [column for column in named if any(column in row.values for row in rows)]
    return ScoreTable(title, columns, rows, "AUROC" if alike else "lower is better, except for the share answered")


def added(series: _Metrics) -> str:
    """Return the gain of a method's scores, in words: `+0.003 [+0.001, +0.005]`; empty if it was not measured.

    The interval is that of the table, over seeds and classes; for a single seed, over classes.
    """
    if not {"trust/added", "trust/added_low", "trust/added_high"} <= set(series):
        return ""
    cell = summarise(series["trust/added"])
    low, high = (mean_of(series[f"trust/added_{end}"]) for end in ("low", "high"))
    if cell.half_width is not None:
        low, high = cell.mean - cell.half_width, cell.mean + cell.half_width
    return f"{cell.mean:+.3f} [{low:+.3f}, {high:+.3f}]"
