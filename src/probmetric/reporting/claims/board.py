"""Findings about the papers' claims for readers: a line per claim, a column per dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from probmetric.metrics import label
from probmetric.reporting.claims import Claim, Finding
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.words import group_title, plus_minus

LEGEND = (
    "Each claim is tested by a paired t-test over seeds: at least three seeds, 5 % level, Holm-corrected over the "
    "claim's opponents. After correction: the verdict when the tests of all claims on this page are corrected together "
    "(Holm). Number: mean difference to the least favourable opponent ± half-width of its 95 % interval, over seeds "
    "and test classes (unless they are said not to be counted). A positive number speaks for the claim; where a loss "
    "is allowed, so does a smaller loss. d: mean difference / standard deviation of the differences. Undecided: not "
    "significant either way. Seeds that would decide: with 80 % probability, if the true difference is as large as "
    "measured. Not testable here: a precondition of the claim is not met, so the number says nothing about the paper."
)
_SENTENCE = {
    "holds": "{} hold{s} on every dataset tested",
    "holds in part": "{} hold{s} against the opponents that were run",
    "holds on some": "{} hold{s} on some datasets and {are} undecided on others",
    "does not hold": "{} do{es} not hold",
    "differs": "{} depend{s} on the dataset",
    "undecided": "{} {are} undecided",
    "not testable here": "{} {are} not testable here (see why in the table)",
}


@dataclass(frozen=True)
class Line:
    """One claim: its verdict over all datasets, as tested and after correction over all claims, and the findings.

    `cells` holds the findings per dataset, two if both fidelities were run.
    """

    claim: Claim
    overall: str
    corrected: str
    cells: tuple[tuple[Finding, ...], ...]


@dataclass(frozen=True)
class Board:
    """The claims that were tested, by dataset, and those that were not."""

    titles: tuple[str, ...]
    lines: tuple[Line, ...]
    not_run: tuple[Claim, ...]

    @property
    def corrected(self) -> str:
        """Say in one sentence how many verdicts are left after correction over all claims."""
        findings = [each for line in self.lines for cell in line.cells for each in cell if each.corrected]
        decided = [each for each in findings if each.verdict != "undecided"]
        left = sum(each.corrected != "undecided" for each in decided)
        if not decided:
            return ""
        return (
            f"{len(findings)} tests were made at a level of 5 % each. Corrected over all of them (Holm), {left} of the "
            f"{len(decided)} verdicts remain. The table shows both."
        )

    @property
    def summary(self) -> str:
        """Say in one sentence how many claims hold, and how many could not be tested."""
        papers = [line for line in self.lines if not line.claim.ours]
        count = Counter(line.overall for line in papers)
        parts = [_counted(text, count[name]) for name, text in _SENTENCE.items() if count[name]]
        total = len(papers) + sum(not claim.ours for claim in self.not_run)
        ours = len(self.lines) - len(papers)
        more = f" In addition, {ours} of our own {'is' if ours == 1 else 'are'} tested." if ours else ""
        if not parts:
            return f"None of {total} claims of the papers was run here.{more}"
        return f"{len(papers)} of {total} claims of the papers were run here: {', '.join(parts)}.{more}"


def _counted(text: str, number: int) -> str:
    one = number == 1
    return text.format(number, s="s" if one else "", es="es" if one else "", are="is" if one else "are")


def board(context: ReportContext, findings: Sequence[Finding]) -> Board:
    """Arrange the findings: no column for a dataset without a test, the experiment's paper first."""
    tested = [data for data in context.data if any(finding.data == data for finding in findings)]
    claims = list(dict.fromkeys(finding.claim for finding in findings))
    claims.sort(key=lambda claim: claim.paper != context.name.partition("/")[0])
    lines, not_run = [], []
    for claim in claims:
        tested_here = [finding for finding in findings if finding.claim == claim and finding.data]
        if tested_here:
            cells = tuple(tuple(finding for finding in tested_here if finding.data == data) for data in tested)
            corrected = [each.corrected or each.verdict for each in tested_here]
            lines.append(Line(claim, overall([each.verdict for each in tested_here]), overall(corrected), cells))
        else:
            not_run.append(claim)
    return Board(tuple(map(group_title, tested)), tuple(lines), tuple(not_run))


def overall(of_datasets: Iterable[str]) -> str:
    """Return one verdict over datasets; a claim refuted on one "does not hold", unless another dataset confirms it.

    Datasets on which the claim is not testable count only if no dataset can test it.
    """
    verdicts = set(of_datasets)
    if verdicts == {"not testable here"}:
        return "not testable here"
    verdicts.discard("not testable here")
    if len(verdicts) == 1:
        return verdicts.pop()
    if verdicts == {"holds", "holds in part"}:
        return "holds in part"
    holds = not verdicts.isdisjoint(("holds", "holds in part"))
    if "does not hold" in verdicts:
        return "differs" if holds else "does not hold"
    return "holds on some" if holds else "undecided"


def verdict(finding: Finding) -> str:
    """Return words such as `does not hold`, `holds against the 4 of 5 that ran`."""
    if finding.verdict != "holds in part":
        return finding.verdict
    opponents = len(finding.claim.against)
    return f"holds against the {opponents - len(finding.missing)} of {opponents} that ran"


def numbers(finding: Finding) -> str:
    """Return the difference in words: `+0.021 ± 0.008`."""
    if finding.difference is None:
        return ""
    size = abs(finding.difference)
    digits = 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{finding.difference:+.{digits}f}{plus_minus(finding.half_width, digits)}"


def details(finding: Finding, name: Callable[[str], str]) -> str:
    """Return words such as `to ProxyNCA++, d +1.2, 5 seeds, as published; not run: arcface`."""
    claim = finding.claim
    if finding.difference is None:
        return "; ".join(finding.unmet)
    against = f"from {claim.threshold:g}" if claim.kind == "exceeds" else f"to {name(finding.opponent)}"
    margin = f"{-100 * claim.margin:g} %" if claim.margin_is == "share" else f"{-claim.margin:g}"
    allowed = f"allowed: {margin}" if claim.margin else ""
    effect = "" if finding.effect_size is None else f"d {finding.effect_size:+.1f}"
    seeds = f"{finding.seeds} seed{'s' if finding.seeds != 1 else ''}"
    sample = "" if finding.units_counted else "test classes not counted"
    fidelity = "" if finding.fidelity == "corrected" else finding.fidelity.replace("_", " ")
    text = ", ".join(filter(None, (against, allowed, effect, seeds, sample, fidelity)))
    opponents = f"opponent{'s' if len(finding.missing) > 1 else ''} not run alike: {', '.join(finding.missing)}"
    tuned = f"settings tuned on {' and '.join(finding.tuned_on)}" if finding.tuned_on else ""
    missing = opponents if finding.missing else ""
    return "; ".join(filter(None, (text, tuned, missing, needed(finding), *finding.unmet, _as_printed(finding))))


def _as_printed(finding: Finding) -> str:
    """Return words such as `by ECE (retrieval as published): does not hold, -0.009 ± 0.003`."""
    other = finding.as_printed
    return f"by {label(other.claim.metric)}: {other.verdict}, {numbers(other)}" if other else ""


def needed(finding: Finding) -> str:
    """Return `about 12 seeds would decide` for a finding that more seeds could decide, else an empty text."""
    if finding.verdict != "undecided":
        return ""
    if finding.units_decide:
        return "too few test classes for any number of seeds to decide"
    if finding.seeds_needed is None:
        return "more than 1,000 seeds would be needed"
    return f"about {finding.seeds_needed} seeds would decide"


def csv_text(findings: Sequence[Finding]) -> str:
    """Return one line per claim and dataset, full precision."""
    rows = [
        {
            "claim": finding.claim.id,
            "source": finding.claim.source,
            "statement": finding.claim.statement,
            "kind": finding.claim.kind,
            "metric": finding.claim.metric,
            "dataset": finding.data,
            "fidelity": finding.fidelity,
            "verdict": finding.verdict,
            "corrected_over_claims": finding.corrected,
            "opponent": finding.opponent,
            "difference": finding.difference,
            "ci95_half_width": finding.half_width,
            "effect_size": finding.effect_size,
            "p_holm": finding.p_value,
            "seeds": finding.seeds,
            "units_counted": "yes" if finding.units_counted else "no",
            "opponents_not_run": " ".join(finding.missing),
            "seeds_needed": needed(finding),
            "not_testable": "; ".join(finding.unmet),
            "as_printed": _as_printed(finding),
            "rests_on": finding.claim.rests_on,
        }
        for finding in findings
    ]
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
