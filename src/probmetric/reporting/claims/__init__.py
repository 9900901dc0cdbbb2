"""Headline claims of the papers as statements that runs can confirm or refute.

A claim names a method, its opponents and a metric. On every dataset where they were run it is tested seed by seed
(paired t-test on the shared seeds, Holm-corrected over the opponents), with differences signed so that positive
speaks for the claim:

    better     the method beats every opponent
    not_worse  the method is at most `margin` worse than every opponent; with `margin_is: share`, of its value
    robust     from clean labels to each noise rate, the method loses less than every opponent
    exceeds    the metric exceeds `threshold` (with better_is: lower, stays below it); no opponents

A claim *holds* if every opponent was run and confirms it significantly, *holds in part* if those that were run do and
some were not, *does not hold* if one refutes it significantly, and is *undecided* otherwise: there are too few seeds
(fewer than three decide nothing), or the difference is too small for them. Test classes (where these are training
classes: test images) count as a sample too where their contributions were kept.

Every claim has a second verdict, corrected over all claims of the report that were tested (Holm): of 25 tests at 5 %
one or two are wrong by chance. Where a paper's metric is unsound, the claim is decided on the sound one, and what the
paper's own says stands beside it (`as_printed`).

A paper's claim is about trained models in the paper's setting. Where that is not given (`needs`: clean labels, training
that had converged, settings tuned at equal budgets or published, a backbone, a closed or an open set) the claim is
*not testable here*, whatever the numbers say. A claim whose runs do not exist is *not run*.

Every claim states what it rests on: printed numbers, checked against the transcribed tables, or a sentence of the
paper. Questions of our own have the source `ours` and are counted apart.
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
        statement: what is claimed, in one sentence.
        metric: what is compared.
        method: alternative parts (`probmetric.reporting.results.plays`); the first that was run counts.
        against: the opponents, each a list of alternatives.
        against_metric: the opponents' metric, where it is another one.
        as_printed: the paper's own metric, where it is unsound: read too, but it decides nothing.
        kind: how it is tested, see above.
        margin: for `not_worse`.
        margin_is: whether `margin` is a difference or a share of the opponent's value.
        threshold: for `exceeds`.
        better_is: needed only for metrics that are no scores of their own (properties of the embedding space).
        needs: what must be given before runs say anything about the claim.
        printed: the printed numbers it rests on, `<table> <dataset>[+noise<rate>] [<metric>]: <part>=<value>[±<spread>]
            ...`; the metric only where it is not the claim's.
        quoted: the paper's own words.
        differs: how our test is not the paper's, and why; empty where it is.
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
        """Whether it is a question of our own, which no paper answers."""
        return self.paper == OURS

    @property
    def rests_on(self) -> str:
        """The printed numbers, the paper's words, and how our test differs."""
        quoted = f"“{self.quoted}”" if self.quoted else ""
        return "; ".join(filter(None, [*self.printed, quoted, self.differs and f"our test differs: {self.differs}"]))

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.source.partition(",")[0]

    @property
    def metrics(self) -> set[str]:
        """Everything that has to be measured."""
        return {self.metric, self.against_metric or self.metric, self.as_printed or self.metric}


@dataclass(frozen=True)
class Finding:
    """What the runs on one dataset say about a claim.

    Attributes:
        claim: the statement.
        data: dataset (noise included) it was tested on; empty where nothing could be tested.
        verdict: `holds`, `holds in part`, `does not hold`, `undecided`, `not testable here` or `not run`.
        corrected: the verdict after correction over all claims that were tested; empty where none was.
        fidelity: `corrected` or `as_published`: of the method the claim is about.
        opponent: the one that decides: the least favourable of those behind the verdict; empty against a threshold.
        difference: mean paired difference to it, positive in favour of the claim.
        half_width: half of its 95 % interval over seeds and, where contributions were kept, test classes (images).
        effect_size: mean difference / standard deviation of the differences.
        p_value: of the deciding test, Holm-corrected over the opponents; of one that holds the largest of its tests.
        seeds: shared seeds.
        missing: opponents that were not run there.
        unmet: why the claim is not testable here, one reason each.
        tuned_on: other datasets, or one split of this one, that settings of some of the methods were tuned on.
        seeds_needed: where undecided: seeds that would decide it with 80 % probability if the difference is as large as
            it looks; None where more than 1,000 would be needed.
        units_decide: where undecided: no number of seeds would do, there are too few test classes.
        units_counted: whether interval and test take the test classes (or images) for a sample too, or the seeds only.
        as_printed: what the paper's own, unsound metric says.
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
