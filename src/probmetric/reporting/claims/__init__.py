"""Headline claims of the papers as statements that runs can confirm or refute.

A claim names a method, its opponents and a metric. It is tested seed by seed on every dataset where both were run
(paired t-test on the shared seeds, Holm-corrected over the opponents). A positive difference speaks for the claim:

    better     the method beats every opponent
    not_worse  the method is at most `margin` worse than every opponent; `margin_is: share`: a share of its value
    robust     from clean labels to each noise rate, the method loses less than every opponent
    exceeds    the metric exceeds `threshold` (with better_is: lower, stays below it); no opponents

Verdicts:

    holds               every opponent was run, and each comparison confirms the claim significantly
    holds in part       each opponent that was run confirms it significantly, but some were not run
    does not hold       one comparison refutes it significantly
    undecided           otherwise: too few seeds (fewer than three cannot decide), or too small a difference for them
    not testable here   the paper's setting is not given (`needs`: clean labels, training that had converged, settings
                        tuned at equal budgets or published, a backbone, a closed or an open set)
    not run             the claim's runs do not exist

Test classes (test images, if their classes are training classes) count as a sample too if their contributions were
kept. A second verdict is corrected over all tested claims of the report (Holm), because of 25 tests at 5 % one or two
are wrong by chance. If a paper's metric is unsound, a sound metric decides, and the verdict by the paper's metric is
shown beside it (`as_printed`).

Every claim names its basis: printed numbers, checked against the transcribed tables, or a sentence of the paper. Our
own questions have the source `ours` and are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from probmetric.config import Strict, parse
from probmetric.io import read_yaml
from probmetric.metrics import direction

FOLDER = Path(__file__).parent
OURS = "ours"
Kind = Literal["better", "not_worse", "robust", "exceeds"]
Verdict = Literal["holds", "holds in part", "does not hold", "undecided", "not testable here", "not run"]
Need = Literal[
    "clean_labels",
    "noise_as_published",
    "converged",
    "tuned_or_published",
    "closed_set",
    "open_set",
    "resnet50",
    "same_hardware",
    "few_samples",
]
Names = tuple[str, ...]
USUAL_NEEDS: tuple[Need, ...] = ("clean_labels", "converged", "tuned_or_published")


def _alternatives(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]
Alternatives = Annotated[tuple[Text, ...], BeforeValidator(_alternatives), Field(min_length=1)]


class Claim(Strict):
    """One checkable statement.

    Attributes:
        id: short unique name.
        source: paper and table, `pfml, table 2`.
        statement: the claim in one sentence.
        metric: the metric compared.
        method: alternative parts (`probmetric.reporting.results.plays`); the first that was run counts.
        against: the opponents, each a list of alternatives.
        against_metric: the opponents' metric, if it is another one.
        as_printed: the paper's own metric, if it is unsound: shown, but without effect on the verdict.
        kind: how it is tested, see above.
        margin: for `not_worse`.
        margin_is: whether `margin` is a difference or a share of the opponent's value.
        threshold: for `exceeds`.
        better_is: needed only for metrics that are no scores of their own (properties of the embedding space).
        needs: conditions without which runs say nothing about the claim.
        printed: the printed numbers it rests on, `<table> <dataset>[+noise<rate>] [<metric>]: <part>=<value>[±<spread>]
            ...`; with a metric only if it is not the claim's.
        quoted: the paper's own words.
        differs: how and why our test differs from the paper's; empty if it does not.
    """

    id: Text
    source: Text
    statement: Text
    metric: Text
    method: Alternatives
    against: tuple[Alternatives, ...] = ()
    against_metric: str = ""
    as_printed: str = ""
    kind: Kind = "better"
    margin: float = 0.0
    margin_is: Literal["difference", "share"] = "difference"
    threshold: float = 0.0
    better_is: Literal["higher", "lower"] = "higher"
    needs: tuple[Need, ...] = USUAL_NEEDS
    printed: Names = ()
    quoted: str = ""
    differs: str = ""

    @model_validator(mode="after")
    def _supported(self) -> Claim:
        if self.kind != "exceeds" and not self.against:
            raise ValueError("'against' is missing")
        if not self.ours and not (self.printed or self.quoted):
            raise ValueError("state the printed numbers it rests on (`printed`), or quote the paper (`quoted`)")
        return self

    @property
    def ours(self) -> bool:
        """Return whether it is our own question, which no paper answers."""
        return self.paper == OURS

    @property
    def rests_on(self) -> str:
        """Return the printed numbers, the paper's words, and how our test differs."""
        quoted = f"“{self.quoted}”" if self.quoted else ""
        return "; ".join(filter(None, [*self.printed, quoted, self.differs and f"our test differs: {self.differs}"]))

    @property
    def paper(self) -> str:
        """Return the paper's short name."""
        return self.source.partition(",")[0]

    @property
    def metrics(self) -> set[str]:
        """Return all metrics that the claim needs."""
        return {self.metric, self.against_metric or self.metric, self.as_printed or self.metric}


@dataclass(frozen=True)
class Finding:
    """What the runs on one dataset say about a claim.

    Attributes:
        claim: the statement.
        data: dataset (noise included) of the test; empty if no test was possible.
        verdict: `holds`, `holds in part`, `does not hold`, `undecided`, `not testable here` or `not run`.
        corrected: the verdict after correction over all claims that were tested; empty if none was.
        fidelity: `corrected` or `as_published`, of the claim's method.
        opponent: the deciding opponent: the least favourable of those behind the verdict; empty for a threshold.
        difference: mean paired difference to the opponent, positive in favour of the claim.
        half_width: half of its 95 % interval over seeds and, if contributions were kept, test classes (images).
        effect_size: mean difference / standard deviation of the differences.
        p_value: p-value of the deciding test, Holm-corrected over the opponents; for a claim that holds, the largest.
        seeds: shared seeds.
        missing: opponents that were not run there.
        unmet: why the claim is not testable here, one reason each.
        tuned_on: other datasets, or one split of this one, that settings of some of the methods were tuned on.
        seeds_needed: if undecided: seeds that would decide it with 80 % probability, if the true difference is the one
            found; None if more than 1,000 would be needed.
        units_decide: if undecided: whether there are too few test classes for any number of seeds.
        units_counted: whether interval and test take the test classes (or images) for a sample too, or the seeds only.
        as_printed: verdict by the paper's own, unsound metric.
    """

    claim: Claim
    data: str
    verdict: Verdict
    corrected: Verdict | Literal[""] = ""
    fidelity: str = ""
    opponent: str = ""
    difference: float | None = None
    half_width: float | None = None
    effect_size: float | None = None
    p_value: float | None = None
    seeds: int = 0
    missing: Names = ()
    unmet: Names = ()
    tuned_on: Names = ()
    seeds_needed: int | None = None
    units_decide: bool = False
    units_counted: bool = False
    as_printed: Finding | None = None


def load_claims(folder: Path = FOLDER) -> list[Claim]:
    """Read every claim of a folder's YAML files.

    Raises:
        ConfigError: an unknown key, kind or a missing value, with the file and the claim.
    """
    claims = []
    for path in sorted(folder.glob("*.yaml")):
        for entry in read_yaml(path) or []:
            name = entry.get("id", "?") if isinstance(entry, dict) else "?"
            if isinstance(entry, dict) and entry.get("metric"):
                entry = {"better_is": direction(str(entry["metric"]))} | entry
            claims.append(parse(Claim, entry, f"{path}, claim {name!r}"))
    return claims
