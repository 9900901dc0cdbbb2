"""Claims tested on the runs of an experiment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probmetric.io import FileError
from probmetric.metrics.statistics import (
    LEAST_SEEDS,
    LEVEL,
    NO_UNITS,
    UnitVariance,
    half_width,
    holm,
    paired_test,
    seeds_needed,
    shared_unit_variance,
)
from probmetric.reporting.claims import Claim, Finding, Names, Verdict
from probmetric.reporting.claims.preconditions import tuned_elsewhere, unmet
from probmetric.reporting.comparison import Overrides, longest, overrides_of, rarer_lengths, usual
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.results import AS_PUBLISHED, Series, plays
from probmetric.reporting.words import listed
from probmetric.runs.names import split_data_name

POWERFUL = 2.8


def evaluate_claims(context: ReportContext, claims: Iterable[Claim]) -> list[Finding]:
    """Return findings of every claim: one per dataset (and fidelity) that can test it, or one "not run".

    If a method was run with several values of an option, one version stands for it: a version with settings chosen by a
    search if there is one; then the version with the overrides that most methods have on the dataset, or the one
    without overrides, or the longest of versions that differ only in length. A length with fewer seeds than another is
    ignored. A sweep alone has no such version; the claim is not testable there.
    """
    keys = {data: [key for key in context.expected if key.group == data] for data in context.data}
    common = {data: usual(of_data) for data, of_data in keys.items()}
    rarer = {data: rarer_lengths(of_data) for data, of_data in keys.items()}
    findings: list[Finding] = []
    for claim in claims:
        tested = [
            finding
            for data in context.data
            for fidelity in ("corrected", AS_PUBLISHED)
            if (finding := _Case(context, claim, data, fidelity, common[data], rarer[data]).finding())
        ]
        findings += tested or [Finding(claim, "", "not run")]
    return corrected_over_claims(findings)


def corrected_over_claims(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with their verdicts after Holm's correction over all that were tested and are testable."""
    testable = (None if each.verdict == "not testable here" else each.p_value for each in findings)
    p_values = [math.nan if p_value is None else p_value for p_value in testable]
    return [
        each if math.isnan(p_value) else replace(each, corrected=each.verdict if p_value < LEVEL else "undecided")
        for each, p_value in zip(findings, holm(p_values).tolist(), strict=True)
    ]


@dataclass(frozen=True)
class _Case:
    """A claim on one dataset, for the runs of one fidelity."""

    context: ReportContext
    claim: Claim
    data: str
    fidelity: str
    usual: Overrides
    rarer: Collection[str]

    @property
    def clean(self) -> str:
        """Return the dataset without its label noise."""
        return split_data_name(self.data)[0]

    def finding(self) -> Finding | None:
        claim = self.claim
        if claim.kind == "robust" and self.data == self.clean:
            return None
        method = self._series(claim.metric, claim.method, (self.fidelity,))
        if method is None:
            return self._several()
        metric, fidelities = claim.against_metric or claim.metric, (self.fidelity, "corrected")
        opponents = {names[0]: self._series(metric, names, fidelities) for names in claim.against}
        present = {item.variant: item for item in opponents.values() if item is not None}
        tests = self._tests(method, present)
        if not tests:
            return None
        missing = tuple(name for name, item in opponents.items() if item is None)
        variants = [method.variant, *present]
        reasons = unmet(self.context, claim, self.data, variants)
        finding = _finding(claim, self.data, tests, missing, reasons)
        tuned_on = tuned_elsewhere(self.context, self.data, variants)
        printed = claim.model_copy(update={"metric": claim.as_printed, "as_printed": ""}) if claim.as_printed else None
        as_printed = replace(self, claim=printed).finding() if printed else None
        return replace(finding, fidelity=self.fidelity, tuned_on=tuned_on, as_printed=as_printed)

    def _tests(self, method: Series, opponents: Mapping[str, Series]) -> dict[str, _Test]:
        """Return the test against each opponent that shares a seed; for a threshold, the test of the method alone."""
        claim = self.claim
        if claim.kind == "exceeds":
            at = dict.fromkeys(method.values, claim.threshold)
            each = {seed: np.full_like(values, claim.threshold) for seed, values in method.contributions.items()}
            exact = replace(method, values=at, contributions=each, errors=dict.fromkeys(at, 0.0))
            return {"": _test(claim, method, exact)}
        other_metric = claim.against_metric or claim.metric
        sample = self._sample(method, claim.metric)
        samples = {name: self._sample(item, other_metric) for name, item in opponents.items()}
        return {
            name: _test(claim, sample, other)
            for name, other in samples.items()
            if sample.values.keys() & other.values.keys()
        }

    def _several(self) -> Finding | None:
        """Return a finding that the claim's method was run with several settings, or None if it was not."""
        versions = next(filter(None, self._versions(self.claim.metric, self.claim.method, (self.fidelity,))), None)
        if versions is None:
            return None
        labels = listed([self.context.label(each.variant) for each in versions], most=2)
        reason = f"{labels} were run, and most methods here have none of these settings, so no run stands for the claim"
        return Finding(self.claim, self.data, "not testable here", fidelity=self.fidelity, unmet=(reason,))

    def _series(self, metric: str, names: Names, fidelities: Names) -> Series | None:
        """Return the first of `names` that was run, in the first of `fidelities` with a run; tuned if possible."""
        for versions in self._versions(metric, names, fidelities):
            alike = [each for each in versions if overrides_of(each.key) == self.usual]
            plain = [each for each in versions if not overrides_of(each.key)]
            longer = longest(each.key for each in versions)
            if len(chosen := alike or plain or [each for each in versions if each.key in longer]) == 1:
                return chosen[0]
        return None

    def _versions(self, metric: str, names: Names, fidelities: Names) -> Iterator[list[Series]]:
        """Yield the runs of each name and fidelity, whatever their overrides; tuned ones first."""
        series = self.context.series(self.data, metric)
        here = [item for variant, item in series.items() if variant not in self.rarer]
        tuned = self.context.tuned
        versions = [(item, tuned[item.key.method]) for item in here if item.key.method in tuned]
        for among in (versions, [(item, item.key.method) for item in here]):
            for name, fidelity in itertools.product(names, fidelities):
                yield [item for item, part in among if item.fidelity == fidelity and plays(part, name)]

    def _sample(self, after: Series, metric: str) -> Series:
        """Return the measured values; for `robust`, their change by the noise."""
        if self.claim.kind != "robust":
            return after
        clean = self.context.series(self.clean, metric).get(after.variant)
        return _change(after, clean) if clean else replace(after, values={}, contributions={}, errors={})


def _change(after: Series, before: Series) -> Series:
    """Return differences seed by seed and unit by unit; their standard errors are unknown."""
    both = after.values.keys() & before.values.keys()
    with_units = both & after.contributions.keys() & before.contributions.keys()
    if with_units and after.unit_labels != before.unit_labels:
        raise FileError(
            f"{after.key.run} and {before.key.run} were measured on different units ({len(after.unit_labels)} and "
            f"{len(before.unit_labels)}); prepare both datasets again from the same test split."
        )
    contributions = {seed: after.contributions[seed] - before.contributions[seed] for seed in with_units}
    values = {seed: after.values[seed] - before.values[seed] for seed in both}
    return replace(after, values=values, contributions=contributions, errors={})


@dataclass(frozen=True)
class _Test:
    """One paired test; `shifted` is the difference with the claim's margin, whose sign and size decide."""

    difference: float
    half_width: float | None
    effect_size: float | None
    p_value: float
    shifted: float
    units: UnitVariance | None
    n: int


def _test(claim: Claim, method: Series, opponent: Series) -> _Test:
    """Test the paired differences in favour of the claim, shifted by its margin; the two share a seed."""
    shared = sorted(method.values.keys() & opponent.values.keys())
    sign = -1.0 if claim.better_is == "lower" else 1.0
    first = [sign * method.values[seed] for seed in shared]
    second = [sign * opponent.values[seed] for seed in shared]
    margins = [_margin(claim, opponent.values[seed]) for seed in shared]
    with_margin = [value + margin for value, margin in zip(first, margins, strict=True)]
    units = shared_unit_variance(method, opponent, shared)
    plain, shifted = (paired_test(values, second, units=units or NO_UNITS) for values in (first, with_margin))
    of_seeds = UnitVariance(plain.error**2, len(shared) - 1)
    return _Test(
        difference=plain.difference,
        half_width=half_width(of_seeds, units or NO_UNITS) if plain.error > 0 else None,
        effect_size=plain.effect_size if math.isfinite(plain.effect_size) else None,
        p_value=shifted.p_value if len(shared) >= LEAST_SEEDS else math.nan,
        shifted=shifted.difference,
        units=units,
        n=len(shared),
    )


def _margin(claim: Claim, value: float) -> float:
    if claim.kind != "not_worse":
        return 0.0
    return claim.margin * abs(value) if claim.margin_is == "share" else claim.margin


def _finding(claim: Claim, data: str, tests: Mapping[str, _Test], missing: Names, reasons: Names) -> Finding:
    """Return the verdict, Holm-corrected over the opponents, and the deciding test: the least favourable behind it."""
    adjusted = dict(zip(tests, holm([test.p_value for test in tests.values()]).tolist(), strict=True))
    verdict, deciding = _verdict(tests, adjusted, missing)
    worst = min(deciding, key=lambda name: tests[name].difference)
    test, undecided = tests[worst], verdict == "undecided"
    p_value = max(adjusted[name] for name in deciding) if verdict.startswith("holds") else adjusted[worst]
    needed, units_decide = _needed(test, len(claim.against) or 1) if undecided else (None, False)
    return Finding(
        claim=claim,
        data=data,
        verdict="not testable here" if reasons else verdict,
        opponent=worst,
        difference=test.difference,
        half_width=test.half_width,
        effect_size=test.effect_size,
        p_value=None if math.isnan(p_value) else p_value,
        seeds=test.n,
        missing=missing,
        unmet=reasons,
        seeds_needed=needed,
        units_decide=units_decide,
        units_counted=test.units is not None,
    )


def _verdict(tests: Mapping[str, _Test], adjusted: Mapping[str, float], missing: Names) -> tuple[Verdict, list[str]]:
    """Return the verdict and the opponents behind it; with missing opponents a claim can only hold in part."""
    significant = [name for name in tests if adjusted[name] < LEVEL]
    if refuting := [name for name in significant if tests[name].shifted < 0]:
        return "does not hold", refuting
    if unclear := [name for name in tests if name not in significant]:
        return "undecided", unclear
    return "holds in part" if missing else "holds", significant


def _needed(test: _Test, opponents: int) -> tuple[int | None, bool]:
    """Return (seeds that would decide, whether the test classes are too few for any number of seeds).

    Both take the difference found as the true one, at Holm's strictest level and a power of 80 %.
    """
    if test.n < LEAST_SEEDS:
        return LEAST_SEEDS, False
    if test.effect_size is None:
        return None, False
    if test.units and abs(test.shifted) < POWERFUL * math.sqrt(test.units.variance):
        return None, True
    scale = abs(test.difference / test.effect_size) if test.effect_size else 0.0
    return (seeds_needed(test.shifted / scale, level=LEVEL / opponents) if scale else None), False
