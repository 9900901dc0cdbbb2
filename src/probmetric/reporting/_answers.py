"""The answers a report opens with: which method is best, by how much, is it significant, is its uncertainty worth it.

An uncertainty is asked three questions, each answered `yes`, `no`, `undecided`, or not at all where nothing was
measured:

    errors       does it tell wrong answers from right ones? AUROC, 0.5 is chance
    strangers    does it tell out-of-distribution images? AUROC, 0.5 is chance
    probability  do probabilities mean what they say? calibration error (ECE)

`yes` needs an interval over seeds and test images that clears the threshold *and* whatever costs nothing: the free
scores, which every search returns (`probmetric.trust.scores`), and the uncertainty of an untrained network, of raw
pixels or of a statistic of them where those were run. `no` needs an interval on the wrong side. An uncertainty is
trusted if all three say yes.

Correlation with the strength of distortions, where it is known, is shown beside them with its floor and decides
nothing. These are measurements on the test images of the experiment, no guarantee for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from probmetric.metrics import label
from probmetric.reporting._comparison import LEVEL, Cell, summarise
from probmetric.reporting._per_image import image_errors
from probmetric.reporting._render import number
from probmetric.trust.scores import free_scores

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.reporting.tables import Group, ResultTable, Row

Question = Literal["errors", "strangers", "probability", "difficulty"]
Verdict = Literal["yes", "no", "undecided"]

LEAST_AUROC = 0.75
LARGEST_ECE = 0.05
QUESTIONS: Mapping[Question, str] = {
    "errors": "which answers are wrong",
    "strangers": "which images are strangers",
    "probability": "how probable an answer is",
}
FLOOR_METHODS = ("raw_pixels", "untrained", "pixel_noise", "pixel_contrast")
ERRORS = ("sparsification/error_auroc", "classification/error_auroc")
CALIBRATION = ("calibration/ece", "calibration/retrieval_ece")


@dataclass(frozen=True)
class Answer:
    """Which method is best on one dataset, in sentences; `floor` says that it learns nothing."""

    title: str
    best: str
    value: str
    metric: str
    margin: str
    significance: str
    floor: bool = False


@dataclass(frozen=True)
class Evidence:
    """One measurement of an uncertainty.

    Attributes:
        question: what it answers.
        name: for a table's head.
        text: value and interval.
        verdict: `yes`, `no` or `undecided`.
        floor: the best of what costs nothing, None where it was not measured.
        why: what keeps the verdict from being yes; empty for yes.
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
        """The worst verdict on a question; None where nothing was measured."""
        found = {item.verdict for item in self.of(question)}
        return next((verdict for verdict in _WORST_FIRST if verdict in found), None)

    def of(self, question: Question) -> list[Evidence]:
        """What was measured about a question."""
        return [item for item in self.evidence.values() if item.question == question]

    @property
    def verdict(self) -> str:
        """`yes` if all three questions are, `partly` if one is, `no` if none can be, else `undecided`."""
        given = [self.answer(question) for question in QUESTIONS]
        if all(answer == "yes" for answer in given):
            return "yes"
        if "yes" in given:
            return "partly"
        return "undecided" if "undecided" in given else "no"


_WORST_FIRST: tuple[Verdict, ...] = ("no", "undecided", "yes")


def answers(table: ResultTable) -> list[Answer]:
    """One answer per dataset and noise rate, by the first metric of the table."""
    return [_answer(table, group) for group in table.groups]


def _answer(table: ResultTable, group: Group) -> Answer:
    column = table.columns[0]
    ranked = [(row, cell) for row in group.rows if (cell := row.cells[0]) is not None and cell.ranked]
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
    margin = f"{margin} {ahead} {runner.label}."
    floor = is_floor(best.method)
    return Answer(group.title, best.label, value, column.heading, margin, _significance(ranked), floor)


def is_floor(variant: str) -> bool:
    """Whether a method learns nothing and is run as a floor for those that do."""
    return variant.partition("+")[0] in FLOOR_METHODS


def _significance(ranked: Sequence[tuple[Row, Cell]]) -> str:
    others = ranked[1:]
    tied = [row.label for row, cell in others if cell.tied]
    untested = [row.label for row, cell in others if cell.untested]
    worse = [cell.p_value for _, cell in others if cell.state == "worse" and cell.p_value is not None]
    if not any(cell.state for _, cell in others):
        return ""
    if len(untested) == len(others):
        return "Not tested: a paired test needs at least three shared seeds."
    missing = f" Not tested against {_listed(untested)}: fewer than three shared seeds." if untested else ""
    if tied:
        seeds = ranked[0][1].n
        return (
            f"Not significantly better than {_listed(tied)} (p ≥ {LEVEL:g}, {seeds} seeds); more seeds would be needed "
            f"to tell them apart.{missing}"
        )
    which = "every other method tested" if not untested else f"the {len(worse)} other methods it was tested against"
    return f"Significantly better than {which} (largest p = {max(worse):.2g}).{missing}"


def trust(context: ReportContext) -> dict[str, list[Trust]]:
    """Dataset (noise included) -> judgement of every method with a finished run, in the experiment's order."""
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for record in context.records:
        if record.value is not None:
            mine = values.setdefault((record.key.data, record.key.variant), {})
            mine.setdefault(record.metric, {})[record.key.seed] = record.value
    found: dict[str, list[Trust]] = {}
    for data in context.data:
        here = {variant: values[data, variant] for variant in context.variants if (data, variant) in values}
        judged = [_judge(context, data, variant, here) for variant in here]
        if judged := [item for item in judged if item.evidence]:
            found[data] = judged
    return found


_Measured = Mapping[str, Mapping[int, float]]


def _judge(context: ReportContext, data: str, variant: str, here: Mapping[str, _Measured]) -> Trust:
    measured = here[variant]
    asked = {metric: question for metric in sorted(measured) if (question := _question(metric, measured))}
    order = sorted(asked, key=lambda metric: [*QUESTIONS, "difficulty"].index(asked[metric]))
    evidence = {}
    for metric in order:
        errors = image_errors(context, data, metric).get(variant, {})
        known = [errors[seed] for seed in measured[metric] if seed in errors]
        cell = summarise(list(measured[metric].values()), known)
        floor = _floor(metric, variant, here, free=asked[metric] != "difficulty")
        evidence[metric] = _grade(asked[metric], metric, cell, floor, images=len(known) == cell.n)
    return Trust(context.label(variant), evidence)


def _question(metric: str, measured: _Measured) -> Question | None:
    """What `metric` answers, of the metrics that were measured."""
    parts = metric.split("/")
    if metric == next((name for name in ERRORS if name in measured), None):
        return "errors"
    if metric == next((name for name in CALIBRATION if name in measured), None):
        return "probability"
    if parts[0] == "ood" and len(parts) > 2 and parts[-1] == "auroc":
        return "strangers"
    return "difficulty" if "spearman" in parts[-1] and parts[0] not in ("val", "last") else None


def _floor(metric: str, variant: str, here: Mapping[str, _Measured], *, free: bool = True) -> float | None:
    """The best mean of the search's free scores and of methods that learn nothing.

    None where nothing of it was measured, or the free scores were not although there are any (`free`).
    """
    names = (f"{metric}_{score}" for score in free_scores())
    given = [_mean(here[variant][name]) for name in names if name in here[variant]]
    trivial = [
        _mean(measured[metric])
        for name, measured in here.items()
        if name != variant and is_floor(name) and metric in measured
    ]
    return max(given + trivial, default=None) if given or not free else None


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)


def _grade(question: Question, metric: str, cell: Cell, floor: float | None, *, images: bool) -> Evidence:
    """The verdict of one measurement.

    Args:
        question: what it answers.
        metric: its name.
        cell: mean and interval.
        floor: the best of what costs nothing.
        images: whether the interval covers the test images.
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
    if verdict == "yes" and not images:
        verdict, why = "undecided", "the interval leaves out the test images"
    return Evidence(question, name, text, verdict, floor, why)


def _detects(low: float, high: float, floor: float | None) -> tuple[Verdict, str]:
    """Whether an AUROC between `low` and `high` is useful, and worth more than what costs nothing."""
    if high < LEAST_AUROC:
        return "no", "below chance" if high < 0.5 else f"below {LEAST_AUROC:g}"
    if floor is not None and high <= floor:
        return "no", f"no more than what is free ({floor:.2f})"
    if low < LEAST_AUROC:
        return "undecided", f"the interval reaches below {LEAST_AUROC:g}"
    if floor is None:
        return "undecided", "free scores were not measured"
    if low <= floor:
        return "undecided", f"not above what is free ({floor:.2f})"
    return "yes", ""


def trust_sentence(judged: Sequence[Trust], best: str) -> str:
    """What the uncertainty of the method labelled `best` can be trusted for, and whose can for everything."""
    own = next((item for item in judged if item.label == best), None)
    others = [item.label for item in judged if item.verdict == "yes" and item.label != best]
    rest = f"The uncertainty of {_listed(others)} can be trusted for all three." if others else ""
    return " ".join(filter(None, (_own(own) if own else "", rest)))


def _own(trust: Trust) -> str:
    given = {question: trust.answer(question) for question in QUESTIONS}
    if all(answer == "yes" for answer in given.values()):
        return f"Its uncertainty can be trusted to tell {_listed(list(QUESTIONS.values()))}."
    parts = []
    for answer, text in _SAID.items():
        named = [QUESTIONS[question] for question, found in given.items() if found == answer]
        if named:
            parts.append(text.format(_listed(named)))
    return f"{' '.join(parts)}"


_SAID = {
    "yes": "Its uncertainty can be trusted to tell {}.",
    "no": "It cannot be trusted to tell {}.",
    "undecided": "Undecided: whether it tells {}.",
    None: "Not measured: {}.",
}
NAMED = 4


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence has them; of many the first four and how many more there are."""
    if len(names) == 1:
        return names[0]
    if len(names) <= NAMED + 1:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} others"
