"""Headline claims of the papers as statements that runs can confirm or refute.

A claim names a method, its opponents and a metric. On every dataset where they were run it is tested seed by seed
(paired t-test on the shared seeds, Holm-corrected over the opponents), with differences signed so that positive
speaks for the claim:

    better     the method beats every opponent
    not_worse  the method is at most `margin` worse than every opponent; with `margin_is: share`, of its value
    robust     from clean labels to each noise rate, the method loses less than every opponent
    exceeds    the metric exceeds `threshold` (with better_is: lower, stays below it); no opponents

A claim *holds* if every opponent that was run confirms it significantly, *does not hold* if one refutes it
significantly, and is *undecided* otherwise: too few seeds, or a difference that is too small for them. A claim whose
runs do not exist is *not run*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from probmetric.io import FileError, read_yaml
from probmetric.metrics import direction
from probmetric.registry import nearest

FOLDER = Path(__file__).parent
Kind = Literal["better", "not_worse", "robust", "exceeds"]
Verdict = Literal["holds", "does not hold", "undecided", "not run"]
Names = tuple[str, ...]
_REQUIRED = ("id", "source", "statement", "metric", "method")
_KEYS = (*_REQUIRED, "against", "against_metric", "kind", "margin", "margin_is", "threshold", "better_is")


@dataclass(frozen=True)
class Claim:
    """One checkable statement.

    Attributes:
        id: short unique name.
        source: paper and table, `pfml, table 2`.
        statement: what is claimed, in one sentence.
        metric: what is compared.
        method: alternative parts (`probmetric.reporting._measured`); the first that was run counts.
        against: the opponents, each a list of alternatives.
        against_metric: the opponents' metric, where it is another one.
        kind: how it is tested, see above.
        margin: for `not_worse`.
        margin_is: whether `margin` is a difference or a share of the opponent's value.
        threshold: for `exceeds`.
        better_is: needed only for metrics that are no scores of their own (properties of the embedding space).
    """

    id: str
    source: str
    statement: str
    metric: str
    method: Names
    against: tuple[Names, ...] = ()
    against_metric: str = ""
    kind: Kind = "better"
    margin: float = 0.0
    margin_is: Literal["difference", "share"] = "difference"
    threshold: float = 0.0
    better_is: Literal["higher", "lower"] = "higher"

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.source.partition(",")[0]

    @property
    def metrics(self) -> set[str]:
        """Everything that has to be measured."""
        return {self.metric, self.against_metric or self.metric}


@dataclass(frozen=True)
class Finding:
    """What the runs on one dataset say about a claim.

    Attributes:
        claim: the statement.
        data: dataset (noise included) it was tested on; empty where nothing could be tested.
        verdict: `holds`, `does not hold`, `undecided` or `not run`.
        fidelity: `corrected` or `as_published`: of the method the claim is about.
        opponent: the one that decides: the least favourable of those behind the verdict; empty against a threshold.
        difference: mean paired difference to it, positive in favour of the claim.
        half_width: half of its 95 % t-interval.
        effect_size: mean difference / standard deviation of the differences.
        p_value: of the deciding test, Holm-corrected over the opponents.
        seeds: shared seeds.
        missing: opponents that were not run there.
    """

    claim: Claim
    data: str
    verdict: Verdict
    fidelity: str = ""
    opponent: str = ""
    difference: float | None = None
    half_width: float | None = None
    effect_size: float | None = None
    p_value: float | None = None
    seeds: int = 0
    missing: Names = ()


def load_claims(folder: Path = FOLDER) -> list[Claim]:
    """Read every claim of a folder's YAML files.

    Raises:
        FileError: an unknown key, kind or a missing value, with the file and the claim.
    """
    claims = []
    for path in sorted(folder.glob("*.yaml")):
        for entry in read_yaml(path) or []:
            claims.append(_claim(entry, f"{path}, claim {entry.get('id', '?')!r}"))
    return claims


def _claim(entry: Mapping[str, Any], where: str) -> Claim:
    for key in entry:
        if key not in _KEYS:
            raise FileError(f"{where}: unknown key {key!r}: {nearest(key, _KEYS)}")
    kind = entry.get("kind", "better")
    if kind not in get_args(Kind):
        raise FileError(f"{where}: kind is {kind!r}: {nearest(str(kind), get_args(Kind))}")
    for key in (*_REQUIRED, *(() if kind == "exceeds" else ("against",))):
        if not entry.get(key):
            raise FileError(f"{where}: {key!r} is missing.")
    better_is = entry.get("better_is", direction(entry["metric"]))
    if better_is not in ("higher", "lower"):
        raise FileError(f"{where}: state `better_is: higher` or `lower`; {entry['metric']!r} has no better direction.")
    margin_is = entry.get("margin_is", "difference")
    if margin_is not in ("difference", "share"):
        raise FileError(f"{where}: margin_is is {margin_is!r}; allowed: difference, share.")
    return Claim(
        **{key: str(entry[key]) for key in ("id", "source", "statement", "metric")},
        method=_alternatives(entry["method"]),
        against=tuple(_alternatives(opponent) for opponent in entry.get("against", ())),
        against_metric=str(entry.get("against_metric", "")),
        kind=kind,
        margin=float(entry.get("margin", 0.0)),
        margin_is=margin_is,
        threshold=float(entry.get("threshold", 0.0)),
        better_is=better_is,
    )


def _alternatives(value: str | Sequence[str]) -> Names:
    return (value,) if isinstance(value, str) else tuple(value)
