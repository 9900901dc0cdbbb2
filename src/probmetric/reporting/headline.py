"""The sentences a report opens with: how many of 100 questions are answered, how many wrongly, what training paid.

Answers are given up to the doubt that a run's certificate names; numbers are means over the seeds that hold one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from probmetric.metrics import direction
from probmetric.metrics.statistics import (
    NO_UNITS,
    Sample,
    UnitVariance,
    half_width,
    paired_test,
    shared_unit_variance,
)
from probmetric.reporting.certified import Promise
from probmetric.reporting.figures._data import by_group
from probmetric.reporting.settings import frozen_baselines

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
    if alone is None:
        return f"Of 100 questions {best.numbers}."
    promises = f", for a promise of {100 * alone.risk:g} % in place of {100 * best.risk:g} %"
    other = promises if alone.risk != best.risk else ""
    return f"Of 100 questions {best.numbers}. Frozen features alone: {alone.answered:.0f} and {alone.wrong:.0f}{other}."


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
    """Say whether the named method paid, by how much over the frozen features on the test images."""
    measured = {each.variant: each for each in context.series(answer.data, context.metrics[0])}
    if baseline not in measured or len(measured) < 2:
        return ""
    if answer.method == baseline:
        if not answer.validation_classes:
            return "Frozen features are the best you have: no step beyond them paid."
        return (
            f"Frozen features are the best you have: in {answer.validation_classes} validation classes no step beyond "
            "them is better for certain."
        )
    gain = gain_over(measured[answer.method], measured[baseline])
    text = f"{answer.best} against frozen features: {gain.difference:+.3f} {answer.metric}"
    if gain.half_width is None:
        return f"{text}, by too few seeds for an interval: frozen features may be the best you have."
    low, high = gain.difference - gain.half_width, gain.difference + gain.half_width
    worth = low > 0 if direction(context.metrics[0]) == "higher" else high < 0
    verdict = "This step paid." if worth else "That it paid is not shown; frozen features may be the best you have."
    luck = "" if answer.validation_classes else " The test images chose it too, which flatters the interval."
    return f"{text}, 95 % interval {low:+.3f} to {high:+.3f}. {verdict}{luck}"


class Gain(NamedTuple):
    """Mean difference of a method to the frozen features, and half of its 95 % interval; None with one seed."""

    difference: float
    half_width: float | None


def gain_over(method: Sample, frozen: Sample) -> Gain:
    """Return what a method gains over frozen features, which are the same whatever the seed.

    Seeds of the method and test classes (images, where these are of training classes) are samples.
    """
    seeds = list(method.values)
    constant = next(iter(frozen.values))
    same = Sample(
        dict.fromkeys(seeds, frozen.values[constant]),
        dict.fromkeys(seeds, frozen.contributions[constant]) if constant in frozen.contributions else {},
        dict.fromkeys(seeds, frozen.errors[constant]) if constant in frozen.errors else {},
        frozen.units,
    )
    units = shared_unit_variance(method, same, seeds) or NO_UNITS
    values, constants = [method.values[seed] for seed in seeds], [same.values[seed] for seed in seeds]
    test = paired_test(values, constants, units=units)
    if math.isnan(test.error):
        return Gain(test.difference, None)
    return Gain(test.difference, half_width(UnitVariance(test.error**2, len(seeds) - 1), units))
