"""The answer at the top of a report: which method to take on a dataset, how it compares, and how certain this is.

Sentences above the answer say how many of 100 questions are answered, up to the doubt that a certificate names, how
many of these answers are wrong (means over the seeds with a certificate of the same risk), and whether training paid.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd

from probmetric.io import present
from probmetric.metrics import direction
from probmetric.metrics.statistics import (
    LEVEL,
    NO_UNITS,
    Sample,
    UnitVariance,
    half_width,
    paired_test,
    shared_unit_variance,
)
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.recommended import Candidate
from probmetric.reporting.settings import frozen_baselines
from probmetric.reporting.tables import groups, number
from probmetric.reporting.words import count_words, group_title, listed, repetition
from probmetric.runs.folder import RunFolder
from probmetric.trust.certificates import Certificate


@dataclass(frozen=True)
class Promise:
    """The promise of the certificates of a method's seeds, for 100 questions.

    Attributes:
        answered: how many are answered; 0 if no threshold can be certified.
        wrong: how many of these answers are wrong.
        risk: largest share of wrong answers among those given.
        confidence: chance that this holds.
    """

    answered: float
    wrong: float
    risk: float
    confidence: float

    @classmethod
    def of(cls, runs: Sequence[RunFolder]) -> Promise | None:
        """Return the mean over the runs that hold a certificate of their own embeddings, or None without one.

        Only certificates of the same promise have a mean: the promise of most runs counts, and of equals the one with
        the larger risk.
        """
        made = [certificate for run in runs if (certificate := certificate_of(run))]
        if not made:
            return None
        promises = Counter((certificate.risk, -certificate.confidence) for certificate in made)
        risk, least = max(promises, key=lambda promise: (promises[promise], promise))
        alike = [each for each in made if (each.risk, -each.confidence) == (risk, least)]
        answered, wrong = (100 * fmean(getattr(c, name) / c.queries for c in alike) for name in ("answered", "errors"))
        return cls(answered, wrong, risk, -least)

    @property
    def numbers(self) -> str:
        """Return words such as `77 are answered, 4 of them wrong`."""
        answered = count_words(self.answered)
        return f"{answered} {'is' if answered == '1' else 'are'} answered, {count_words(self.wrong)} of them wrong"


def certificate_of(run: RunFolder) -> Certificate | None:
    """Return a run's certificate, or None if it has none or only one of earlier embeddings."""
    if not present(run.certificate_file):
        return None
    certificate = Certificate.load(run.certificate_file)
    return certificate if certificate.gallery == run.digest_of(run.embeddings_file("test")) else None


@dataclass(frozen=True)
class Held:
    """A run's certificate in words, and its page, relative to the report."""

    repetition: str
    text: str
    page: str


def certificates(context: ReportContext) -> dict[str, dict[str, list[Held]]]:
    """Return title of the dataset -> label of the method -> certificates of its runs, by seed."""
    held: dict[str, dict[str, list[Held]]] = {}
    for run in sorted(context.runs, key=lambda run: run.key):
        if present(run.certificate_file):
            methods = held.setdefault(group_title(run.key.group), {})
            page = quote(os.path.relpath(run.certificate_page, context.folder), safe="/+=")
            methods.setdefault(context.label(run.key.variant), []).append(Held(repetition(run.key), _words(run), page))
    return held


def _words(run: RunFolder) -> str:
    certificate = certificate_of(run)
    if certificate is None:
        return "made for embeddings that this run no longer has; certify again"
    wanted = f"{100 * certificate.risk:g} % of the answers given are wrong"
    if certificate.threshold is None:
        return f"nothing was certified: at every threshold more than {wanted}, or the images are too few to tell"
    return (
        f"at most {wanted}, with confidence {100 * certificate.confidence:g} %; {100 * certificate.coverage:.0f} % of "
        f"the queries are answered ({certificate.score.replace('_', ' ')} decides which); valid for "
        f"{certificate.valid_for}"
    )


FLOOR_METHODS = ("raw_pixels", "untrained", "pixel_noise", "pixel_contrast")
NAMED = 4


@dataclass(frozen=True)
class Answer:
    """Which method is best on one dataset, in sentences.

    `mean` is its first metric, `value` the same in words. `floor`: neither this method nor the best on the test images
    learns. `chosen_by` names the validation units that chose the method; empty if test images chose it.

    Its first sentences (`with_promises`) are `lead`: how many questions the method answers, and the frozen features;
    `promise`: the promise for new questions; `step`: whether training paid. `certified` is the promise of the method's
    certificates; None without one.
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
    chosen_by: str = ""
    mean: float = math.nan
    lead: str = ""
    promise: str = ""
    step: str = ""
    certified: Promise | None = None


def answers(table: pd.DataFrame, recommended: Mapping[str, Candidate] | None = None) -> list[Answer]:
    """Return one answer per dataset and noise rate, by the first metric of the table.

    Args:
        table: an experiment's table (`tables.result_table`).
        recommended: dataset -> the method that its validation images recommend; without one, test images decide.
    """
    chosen = recommended or {}
    grouped = ((title, [cells[0] for cells in methods]) for title, methods in groups(table))
    return [_answer(title, cells, chosen.get(cells[0].data)) for title, cells in grouped]


def _answer(title: str, methods: Sequence[Any], recommended: Candidate | None) -> Answer:
    """Rank methods, given as rows of the table."""
    metric, lower, data = methods[0].heading, methods[0].direction == "lower", methods[0].data
    measured = [cell for cell in methods if cell.status == "measured"]
    ranked = [cell for cell in measured if cell.against_best != "other length"]
    ranked.sort(key=lambda cell: (cell.against_best != "best", cell.mean if lower else -cell.mean))
    if not ranked:
        return Answer(data, title, "", "not run", "", metric, "No run on this dataset is finished.")
    validated = [cell for cell in measured if recommended and cell.method == recommended.method]
    named, leader = validated[0] if validated else ranked[0], ranked[0]
    value = number(named) if named.seeds > 1 else f"{number(named)} (one seed)"
    answer = Answer(
        data, title, named.method, named.label, value, metric, "The only method with a finished run.", mean=named.mean
    )
    if ranked == [named]:
        return answer
    if named is leader:
        other, margin, significance = ranked[1], "", _significance(ranked)
    else:
        other, margin = leader, ", the best of those compared on the test images. These had no say in the choice"
        significance = _behind(named)
    ahead = "above" if named.mean > other.mean else "below"
    return replace(
        answer,
        margin=f"That is {abs(named.mean - other.mean):.{named.digits}f} {ahead} {other.label}{margin}.",
        significance=significance,
        floor=is_floor(named.method) and is_floor(leader.method),
        chosen_by=recommended.evidence if recommended and validated else "",
    )


def _behind(cell: Any) -> str:
    """Say whether a method that is not the best on the test images is significantly worse."""
    if cell.against_best == "other length":
        return "Not tested: it was trained for longer or shorter than the others."
    if cell.against_best == "worse":
        return f"It is significantly worse than at least one better method (p = {cell.p_holm:.2g})."
    tested = cell.against_best in ("not worse", "no power")
    return "It is not significantly worse than any." if tested else "Not tested against it: too few shared seeds."


def is_floor(variant: str) -> bool:
    """Return whether a method learns nothing and is run only as a floor for the others."""
    return variant.partition("+")[0] in FLOOR_METHODS


def _significance(ranked: Sequence[Any]) -> str:
    others = ranked[1:]
    tied = [cell for cell in others if cell.against_best in ("not worse", "no power")]
    untested = [cell.label for cell in others if cell.against_best == "untested"]
    worse = [cell.p_holm for cell in others if cell.against_best == "worse"]
    if not any(cell.against_best for cell in others):
        return ""
    if len(untested) == len(others):
        return "Not tested against the others: a paired test needs at least three shared seeds."
    missing = f" Not tested against {listed(untested, NAMED)}: fewer than three shared seeds." if untested else ""
    if tied:
        names, largest = listed([cell.label for cell in tied], NAMED), max(cell.detectable for cell in tied)
        return (
            f"Not significantly better than {names} (p ≥ {LEVEL:g}, {ranked[0].seeds} seeds). A true difference below "
            f"{largest:.2g} would often be missed here; to tell them apart, run more seeds.{missing}"
        )
    if len(others) == 1:
        return f"Significantly better than {others[0].label} (p = {max(worse):.2g})."
    which = "Every other method" if not untested else f"Each of the {len(worse)} other methods tested"
    return f"{which} is significantly worse than at least one better method (largest p = {max(worse):.2g}).{missing}"


def with_promises(context: ReportContext, answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers with their first sentences."""
    frozen = frozen_baselines(context)
    told = []
    for answer in answers:
        runs = context.methods.get(answer.data, {})
        best = Promise.of(runs.get(answer.method, ()))
        baseline = frozen.get(answer.data)
        alone = Promise.of(runs[baseline]) if baseline and answer.method != baseline else None
        step = _step(context, answer, baseline)
        told.append(replace(answer, lead=_lead(best, alone), promise=_held(best), step=step, certified=best))
    return told


def in_numbers(metric: str, answers: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """Return dataset -> content of `headline.json`: the method, its first metric, the shares answered and wrong."""
    numbers: dict[str, dict[str, Any]] = {}
    for answer in (each for each in answers if each.method):
        numbers[answer.data] = {"method": answer.method, metric.split("/")[-1]: answer.mean}
        if best := answer.certified:
            numbers[answer.data] |= {"answered": round(best.answered, 1), "wrong": round(best.wrong, 1)}
    return numbers


def _lead(best: Promise | None, alone: Promise | None) -> str:
    if best is None:
        return ""
    if not best.answered:
        return f"Of 100 questions none can be answered: more than {100 * best.risk:g} % of answers may be wrong."
    if alone is None:
        return f"Of 100 questions {best.numbers}."
    promises = f" (certified for a risk of {100 * alone.risk:g} %, not {100 * best.risk:g} %)"
    other = promises if alone.risk != best.risk else ""
    return f"Of 100 questions {best.numbers}. With frozen features alone, {alone.numbers}{other}."


def _held(promise: Promise | None) -> str:
    if promise is None:
        return "No certificate and no promise for new images: too few test images, or all answers right or wrong."
    if not promise.answered:
        return "To promise something for new images, more test images or a better model are needed."
    return (
        f"The certificate promises, for new questions like the test images: at most {100 * promise.risk:g} % of the "
        f"answers given are wrong, with confidence {100 * promise.confidence:g} %."
    )


def _step(context: ReportContext, answer: Answer, baseline: str | None) -> str:
    """Say whether the named method paid, and how much it gains over the frozen features on the test images."""
    measured = context.series(answer.data, context.metrics[0])
    if baseline not in measured or len(measured) < 2:
        return ""
    if answer.method == baseline:
        if not answer.chosen_by:
            return "Training added nothing: frozen features are the best method on the test images."
        return f"Frozen features are the safe choice: on {answer.chosen_by} no other method is clearly better."
    gain = gain_over(measured[answer.method], measured[baseline], by_split=context.by_split(answer.data))
    if gain is None:
        return f"Unknown gain: {answer.best} and frozen features were run on different splits of the classes."
    text = f"Gain of {answer.best} over frozen features: {gain.difference:+.3f} {answer.metric}"
    if gain.half_width is None:
        return f"{text}. There are too few seeds for an interval, so frozen features may be the best you have."
    low, high = gain.difference - gain.half_width, gain.difference + gain.half_width
    worth = low > 0 if direction(context.metrics[0]) == "higher" else high < 0
    over = " over the test data, of one training only" if gain.once else ""
    verdict = "This step paid." if worth else "The gain is not certain; frozen features may be the best you have."
    luck = "" if answer.chosen_by else " The same test images chose this method, so the gain may look too large."
    return f"{text} (95 % interval {low:+.3f} to {high:+.3f}{over}). {verdict}{luck}"


class Gain(NamedTuple):
    """Mean difference of a method to the frozen features, and half of its 95 % interval.

    Attributes:
        difference: the mean difference.
        half_width: half of the interval; None if neither seeds nor test classes give one.
        once: whether there is only one seed; the interval then holds for that training.
    """

    difference: float
    half_width: float | None
    once: bool = False


def gain_over(method: Sample, frozen: Sample, *, by_split: bool = False) -> Gain | None:
    """Return the gain of a method over frozen features; None if `by_split` values share no split of the classes.

    Frozen features are the same for every seed, so one seed stands for all; they differ between splits. Samples are the
    method's seeds (or splits) and the test classes (test images, if their classes are training classes).
    """
    constant = next(iter(frozen.values))
    pairs = {key: key if key in frozen.values else constant for key in method.values}
    if by_split:
        pairs = {key: key for key in method.values if key in frozen.values}
    if not pairs:
        return None

    def paired(values: Mapping[int, Any]) -> dict[int, Any]:
        return {key: values[other] for key, other in pairs.items() if other in values}

    same = Sample(paired(frozen.values), paired(frozen.contributions), paired(frozen.errors), frozen.units)
    units = shared_unit_variance(method, same, list(pairs))
    test = paired_test([method.values[key] for key in pairs], list(same.values.values()), units=units or NO_UNITS)
    if math.isnan(test.error):
        return Gain(test.difference, None if units is None else half_width(NO_UNITS, units), once=len(pairs) == 1)
    return Gain(test.difference, half_width(UnitVariance(test.error**2, len(pairs) - 1), units or NO_UNITS))
