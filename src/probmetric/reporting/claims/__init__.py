"""Headline claims of the papers as statements that runs can confirm or refute.

A claim names a method, its opponents and a metric. On every dataset where they were run it is tested seed by seed
(paired t-test on the shared seeds, Holm-corrected over the opponents), with differences signed so that positive
speaks for the claim:

    better     the method beats every opponent
    not_worse  the method is at most `margin` worse than every opponent
    robust     from clean labels to each noise rate, the method loses less than every opponent

A claim *holds* if every opponent that was run confirms it significantly, *does not hold* if one refutes it
significantly, and is *undecided* otherwise: too few seeds, or a difference that is too small for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from probmetric.io import FileError, read_yaml
from probmetric.registry import nearest
from probmetric.reporting import _metrics
from probmetric.reporting._comparison import LEVEL
from probmetric.reporting.experiment import ood_means

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

FOLDER = Path(__file__).parent
Kind = Literal["better", "not_worse", "robust"]
Verdict = Literal["holds", "does not hold", "undecided", "not run"]
_KEYS = ("id", "source", "statement", "metric", "method", "against", "kind", "margin", "better_is")
_Values = Mapping[int, float]


@dataclass(frozen=True)
class Claim:
    """One checkable statement; `method` and each entry of `against` list alternative names, the first run counts.

    `better_is` is needed only for metrics that are no scores of their own (properties of the embedding space).
    """

    id: str
    source: str
    statement: str
    metric: str
    method: tuple[str, ...]
    against: tuple[tuple[str, ...], ...]
    kind: Kind = "better"
    margin: float = 0.0
    better_is: Literal["higher", "lower"] = "higher"


@dataclass(frozen=True)
class Finding:
    """What the runs on one dataset say about a claim.

    Attributes:
        claim: the statement.
        data: dataset (noise included) it was tested on; empty where nothing could be tested.
        verdict: `holds`, `does not hold`, `undecided` or `not run`.
        opponent: the opponent that decides: the one least favourable to the claim.
        difference: mean paired difference to it, positive in favour of the claim.
        half_width: half of its 95 % t-interval.
        effect_size: mean difference / standard deviation of the differences.
        seeds: shared seeds.
        missing: opponents that were not run there.
    """

    claim: Claim
    data: str
    verdict: Verdict
    opponent: str = ""
    difference: float | None = None
    half_width: float | None = None
    effect_size: float | None = None
    seeds: int = 0
    missing: tuple[str, ...] = ()


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
    for key in _KEYS[:6]:
        if not entry.get(key):
            raise FileError(f"{where}: {key!r} is missing.")
    kind = entry.get("kind", "better")
    if kind not in get_args(Kind):
        raise FileError(f"{where}: kind is {kind!r}: {nearest(str(kind), get_args(Kind))}")
    better_is = entry.get("better_is", _metrics.direction(entry["metric"]))
    if better_is not in ("higher", "lower"):
        raise FileError(f"{where}: state `better_is: higher` or `lower`; {entry['metric']!r} has no better direction.")
    return Claim(
        id=str(entry["id"]),
        source=str(entry["source"]),
        statement=str(entry["statement"]),
        metric=str(entry["metric"]),
        method=_alternatives(entry["method"]),
        against=tuple(_alternatives(opponent) for opponent in entry["against"]),
        kind=kind,
        margin=float(entry.get("margin", 0.0)),
        better_is=better_is,
    )


def _alternatives(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def evaluate_claims(context: ReportContext, claims: Iterable[Claim]) -> list[Finding]:
    """One finding per claim and dataset on which it can be tested; a claim without any is one "not run".

    Claims about methods that are not part of the experiment are left out.
    """
    methods = {key.method for key in context.expected}
    findings: list[Finding] = []
    for claim in claims:
        if methods & set(claim.method) and any(methods & set(names) for names in claim.against):
            values = _values(context, claim)
            found = [finding for data in context.data if (finding := _finding(claim, data, values))]
            findings += found or [Finding(claim, "", "not run")]
    return findings


def _values(context: ReportContext, claim: Claim) -> dict[str, dict[str, _Values]]:
    """Dataset -> method -> seed -> what the claim compares; plain methods only, no overrides."""
    plain: dict[str, dict[str, dict[int, float]]] = {}
    for record in context.records + ood_means(context.records, [claim.metric]):
        if record.metric == claim.metric and record.value is not None and not record.key.overrides:
            methods = plain.setdefault(record.key.data, {})
            methods.setdefault(record.key.method, {})[record.key.seed] = record.value
    if claim.kind != "robust":
        return {data: dict(methods) for data, methods in plain.items()}
    noisy = {key.data: key.dataset for key in context.expected if key.noise}
    return {
        data: {name: _change(plain.get(clean, {}).get(name, {}), seeds) for name, seeds in plain.get(data, {}).items()}
        for data, clean in noisy.items()
    }


def _change(clean: _Values, noisy: _Values) -> dict[int, float]:
    return {seed: noisy[seed] - clean[seed] for seed in noisy if seed in clean}


def _finding(claim: Claim, data: str, values: Mapping[str, Mapping[str, _Values]]) -> Finding | None:
    here = {name: seeds for name, seeds in values.get(data, {}).items() if seeds}
    method = next((name for name in claim.method if name in here), None)
    opponents = [next((name for name in names if name in here), None) for names in claim.against]
    present = [name for name in opponents if name is not None]
    if method is None or not present:
        return None
    missing = tuple(names[0] for names, name in zip(claim.against, opponents, strict=True) if name is None)
    tests = {name: _test(claim, here[method], here[name]) for name in present}
    tests = {name: test for name, test in tests.items() if test.n}
    if not tests:
        return None
    worst = min(tests, key=lambda name: tests[name].difference)
    test = tests[worst]
    return Finding(
        claim, data, _verdict(tests), worst, test.difference, test.half_width, test.effect_size, test.n, missing
    )


@dataclass(frozen=True)
class _Test:
    difference: float
    half_width: float | None
    effect_size: float | None
    p_value: float
    n: int


def _test(claim: Claim, method: _Values, opponent: _Values) -> _Test:
    """Paired test of the differences in favour of the claim, shifted by its margin."""
    from probmetric.evaluation.statistics import mean_interval, paired_test

    shared = sorted(set(method) & set(opponent))
    if not shared:
        return _Test(math.nan, None, None, math.nan, 0)
    sign = -1.0 if claim.better_is == "lower" else 1.0
    margin = claim.margin if claim.kind == "not_worse" else 0.0
    first = [sign * method[seed] for seed in shared]
    second = [sign * opponent[seed] for seed in shared]
    plain = paired_test(first, second)
    shifted = paired_test([value + margin for value in first], second)
    _, half_width = mean_interval([a - b for a, b in zip(first, second, strict=True)])
    known = len(shared) > 1
    return _Test(
        plain.difference,
        half_width if known else None,
        plain.effect_size if known else None,
        shifted.p_value if shifted.difference >= 0 else -shifted.p_value,
        len(shared),
    )


def _verdict(tests: Mapping[str, _Test]) -> Verdict:
    """Holm over the opponents; the sign of a p-value says which side its difference speaks for."""
    from probmetric.evaluation.statistics import holm

    signed = [test.p_value for test in tests.values()]
    adjusted = holm([abs(p) for p in signed]).tolist()
    sides = [math.copysign(1.0, p) if corrected < LEVEL else 0.0 for p, corrected in zip(signed, adjusted, strict=True)]
    if any(side < 0 for side in sides):
        return "does not hold"
    return "holds" if all(side > 0 for side in sides) else "undecided"
