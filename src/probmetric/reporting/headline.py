"""The sentences a report opens with: how many of 100 questions are answered, how many wrongly, what training paid.

Answers are given up to the doubt that a run's certificate names; numbers are means over the seeds that hold one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probmetric.metrics import label
from probmetric.reporting.certified import Promise
from probmetric.reporting.figures._data import by_group
from probmetric.reporting.settings import HOW_TO_ADD_FROZEN, frozen_baselines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probmetric.reporting.answers import Answer
    from probmetric.reporting.experiment import ReportContext


@dataclass(frozen=True)
class Headline:
    """The first sentences about one dataset.

    Attributes:
        lead: how many questions the best method answers, and the frozen features.
        promise: what holds for new questions.
        step: whether training paid.
    """

    lead: str
    promise: str
    step: str


def headlines(context: ReportContext, answers: Sequence[Answer]) -> dict[str, Headline]:
    """Return title of the dataset -> its first sentences."""
    frozen, methods = frozen_baselines(context), by_group(context)
    told = {}
    for answer in answers:
        runs = methods.get(answer.data, {})
        best = Promise.of(runs.get(answer.method, ()))
        baseline = frozen.get(answer.data)
        alone = Promise.of(runs[baseline]) if baseline else None
        lead = _lead(best, alone if answer.method != baseline else None)
        told[answer.title] = Headline(lead, _held(best), _step(context, answer, baseline))
    return told


def _lead(best: Promise | None, alone: Promise | None) -> str:
    if best is None:
        return ""
    if not best.answered:
        return f"Of 100 questions none can be answered: more than {100 * best.risk:g} % of the answers may be wrong."
    beside = f" Frozen features alone: {alone.answered:.0f} and {alone.wrong:.0f}." if alone else ""
    return f"Of 100 questions {best.numbers}.{beside}"


def _held(promise: Promise | None) -> str:
    if promise is None:
        return "No certificate: too few test images, or all answers right or wrong. Nothing is promised for new images."
    if not promise.answered:
        return "More test images, or a better model, would be needed to promise something."
    return (
        f"Promised for new questions like the test images: at most {100 * promise.risk:g} % of the answers given are "
        f"wrong, with confidence {100 * promise.confidence:g} %."
    )


def _step(context: ReportContext, answer: Answer, baseline: str | None) -> str:
    """Say which method paid, by how much over the frozen features."""
    others = [variant for variant in by_group(context).get(answer.data, {}) if variant != baseline]
    if answer.method == baseline:
        return "Frozen features are the best you have: no training paid here." if others else ""
    return ""
