"""Certify a threshold on the doubt of an answer below which at most a stated share of answers is wrong.

Notation: d_i is the doubt of the answer to calibration query i, w_i in {0, 1} whether it is wrong, alpha the risk asked
for, 1 - delta the confidence; R(t) = P(w = 1 | d <= t) is the risk of answering when d <= t. The certificate's t
satisfies P(R(t) > alpha) <= delta over calibration sets, for every distribution of (d, w), if deployment draws queries
as calibration did.

The thresholds to test may not depend on the answers that test them. A first threshold is tested, then larger ones, each
at the full level delta, until one fails (fixed sequence testing; Angelopoulos et al. 2021, "Learn then test"). The last
that passed is certified. The start of the sequence depends on alpha as little as possible. A threshold that passes at
alpha also passes at every larger alpha, so a larger alpha (or a lower confidence) never certifies less.

    unit "query"   Queries are drawn independently. Thresholds are the order statistics d_(k): given d_(k+1), the k
                   answers below it are independent with risk R(d_(k+1)), and k passes when P(Binomial(k, alpha) <=
                   errors) <= delta. The first k is a sixteenth of all, at most 500. But one early error would end the
                   sequence, so it waits until 6 errors could pass or an eighth of all is reached, whichever is first,
                   and in any case until 3 errors could pass. With too few queries for this (up to 131 at a risk of
                   .05), the only threshold is all answers. A larger alpha starts no later and lets no fewer errors pass
    unit "group"   Groups (people, sessions, classes that calibration does not show) are drawn independently; queries of
                   one group may depend on each other. Y_g = sum over answers of g of (alpha - w_i) / s, with s the most
                   queries of a group, has mean <= 0 if R(t) >= alpha. Then the capital of a wager, prod_g
                   (1 + lambda Y_g), group after group, ever reaches 1 / delta with probability at most delta
                   (Waudby-Smith and Ramdas 2023); if it does, t passes. A fifth of the groups is the pilot. Its doubts
                   are the thresholds. Calibration sets drawn from it say which threshold to test first, and with which
                   lambda, to certify most at the usual risks (`RISKS`): lambda (1 - alpha) = min(1, c / alpha), so that
                   every gain grows with alpha. The largest lambda loses everything to one group that is all wrong. The
                   certificate assumes that no group of deployment has more than s queries

Why a threshold may be one of the doubts that test it: let A_1, A_2, ... be the intervals of t where R(t) > alpha. R is
alpha at their ends, so the mean error between any two ends is alpha too. The numbers of doubts between the ends decide
which interval holds the first false threshold of the sequence. Given these numbers, the errors below the interval are
Binomial(n, alpha) and those inside have a larger mean, so it passes with probability at most delta. The argument breaks
ties by chance; thresholds are tried only where a tie ends, from the last end before the start on.

To take the largest of many thresholds that pass, tested on the data that named them, promises too much
(tests/trust/test_certificates.py). Geifman and El-Yaniv (2017) add a union bound, which answers fewer queries.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import scipy

from probmetric.errors import ProbMetricError
from probmetric.io import read_json, signed, unsigned, write_json
from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles, Ints
from probmetric.trust.p_right import PRight

Unit = Literal["query", "group"]

RISKS, CONFIDENCE = (0.2, 0.1, 0.05), 0.9  # of every run's certificates; `probmetric certificate` makes others
MOST_COUNTED = 10**9  # answers; beyond this, rounding is not checked
PILOT, PILOT_OF_GROUPS = 10, 5
THRESHOLDS = 40
TIMES, MOST_NEEDED, ROUNDING = 64, 100_000, 1e-9  # limits of the search for the calibration queries needed
STAKES = (1.0, 0.4, 0.2, 0.1, 0.05, 0.025, 0.012)  # c: at alpha, the share min(1, c / alpha) of the largest stake
TRIALS = 60
START, LATEST_START, PATIENT, FIRST_ERRORS = 16, 500, 8, (3, 6)  # the first threshold tested
EVERYTHING = float(np.finfo(np.float32).max)  # threshold that answers all; users can compare it with float32 doubts
_AGAIN = "certify again"


class CertificateError(ProbMetricError, ValueError):
    """No certificate is possible, or a certificate does not hold here; the message says what is needed."""


class TooFewError(CertificateError):
    """There are too few calibration queries (or groups) for this risk, even if every answer is right."""


@dataclass(frozen=True)
class Certificate:
    """Hold a threshold, the promise made for it, and the calibration it comes from; `answers` applies it.

    Attributes:
        risk: largest share of wrong answers among those given.
        confidence: chance, over calibration sets, that the promise holds.
        threshold: answers with a doubt up to it are given; None where nothing can be certified, `EVERYTHING` where
            every answer can be given.
        coverage: share of the calibration queries that are answered.
        risk_bound: upper bound of the risk that holds at this confidence for a threshold fixed before calibration. For
            the threshold that calibration chose, only `risk` is promised. 1 without a threshold.
        queries: number of calibration queries.
        answered: number of calibration queries answered.
        errors: number of calibration queries answered wrongly.
        unit: what was drawn independently, queries or groups of them (classes).
        groups: number of groups among the calibration queries; 0 where the unit is the query.
        score: name of the doubt.
        gallery: digest of the gallery that was searched.
        weights: digest of the weights that embedded it.
        calibration: digest of the calibration set.
        gallery_classes: number of classes in the gallery.
        valid_for: the deployment it holds for, in words.
        needed: where nothing is certified, about how many calibration queries with the same error rates could certify
            this risk; 0 if unknown, or if no number of them could.
        tries: number of certificates tried on this calibration set, with this one; they share the allowed error.
        weighted: whether queries were weighted to stand for a deployment that draws others.
        p_right: the map whose 1 - P(right) is the doubt, if that is the score (`PRight.plain`).
        reference: doubts of calibration queries (a sample, where there are many), which a monitor compares with.
    """

    risk: float
    confidence: float
    threshold: float | None
    coverage: float
    risk_bound: float
    queries: int
    answered: int
    errors: int
    unit: Unit = "query"
    groups: int = 0
    score: str = ""
    gallery: str = ""
    weights: str = ""
    calibration: str = ""
    gallery_classes: int = 0
    valid_for: str = ""
    needed: int = 0
    tries: int = 1
    weighted: bool = False
    p_right: dict[str, Any] | None = None
    reference: tuple[float, ...] = ()

    def answers(self, doubt: Any) -> Bools:
        """Return which of the queries with `doubt` (Q,) are answered.

        Raises:
            ValueError: a doubt that is not finite.
        """
        if arrays.to_numpy(doubt).size == 0:
            return np.zeros(0, dtype=bool)
        return _doubts(doubt, "doubt") <= (-math.inf if self.threshold is None else self.threshold)

    def check(self, *, gallery: str, weights: str) -> None:
        """Refuse a gallery or weights whose digests are not the certified ones.

        Raises:
            CertificateError: a digest differs; the message says which one and what to do.
        """
        for name, here, certified in (("gallery", gallery, self.gallery), ("weights", weights, self.weights)):
            if certified != here:
                raise CertificateError(
                    f"the certificate is for {name} {certified[:12] or '(none named)'}, here is {here[:12]}: it says "
                    f"nothing about these answers. Use the {name} it was made for, or certify again with this one."
                )

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON."""
        write_json(path, signed(asdict(self)))

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate that `save` wrote.

        Raises:
            FileError: the file is missing or damaged.
            CertificateError: the file is not a certificate.
        """
        values = read_json(path, _AGAIN)
        if not isinstance(values, dict) or "digest" not in values:
            raise CertificateError(f"{path} is no certificate, or its digest was taken out. Certify again.")
        return cls.of(unsigned(values, path, _AGAIN), str(path))

    @classmethod
    def of(cls, values: Any, name: str = "the certificate") -> Certificate:
        """Return the certificate with the fields `values`, name -> value; messages call it `name`."""
        needed = {field.name for field in fields(cls) if field.default is MISSING}
        if not isinstance(values, Mapping) or not needed <= set(values) <= {field.name for field in fields(cls)}:
            raise CertificateError(f"{name} is no certificate: it needs {', '.join(sorted(needed))}. Certify again.")
        for noun, (fits, names) in _KINDS.items():
            for field in names:
                if field in values and not fits(values[field]):
                    shown = str(values[field])[:40]
                    raise CertificateError(f"{name} is damaged: {field} is {shown}, which is no {noun}. Certify again.")
        kept = values["threshold"] is None or values["risk_bound"] <= values["risk"]
        if not kept or not values["errors"] <= values["answered"] <= values["queries"]:
            raise CertificateError(f"{name} is damaged: its counts or its bound contradict each other. Certify again.")
        return cls(**{**values, "reference": tuple(values.get("reference", ()))})


def _is_number(value: Any, low: float = -sys.float_info.max, high: float = sys.float_info.max) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _is_map(value: Any) -> bool:
    try:
        return value is None or bool(PRight.of(value))
    except (AttributeError, TypeError, ValueError):
        return False


_KINDS: dict[str, tuple[Callable[[Any], bool], tuple[str, ...]]] = {
    "share": (lambda value: _is_number(value) and 0 < value < 1, ("risk", "confidence")),
    "share of queries": (lambda value: _is_number(value, 0, 1), ("coverage", "risk_bound")),
    "count": (
        lambda value: type(value) is int and value >= 0,
        ("queries", "answered", "errors", "groups", "gallery_classes", "needed", "tries"),
    ),
    "number": (lambda value: value is None or _is_number(value), ("threshold",)),
    "yes or no": (lambda value: isinstance(value, bool), ("weighted",)),
    "text": (
        lambda value: isinstance(value, str),
        ("score", "gallery", "weights", "calibration", "valid_for"),
    ),
    "unit of drawing": (lambda value: value in get_args(Unit), ("unit",)),
    "list of numbers": (lambda value: isinstance(value, list | tuple) and all(map(_is_number, value)), ("reference",)),
    "map to P(right)": (_is_map, ("p_right",)),
}


def certify(
    doubt: Any, right: Any, *, risk: float, confidence: float = 0.9, groups: Any = None, **options: Any
) -> Certificate:
    """Certify the largest threshold at which at most `risk` of the answers given is wrong, with this confidence.

    Args:
        doubt: (Q,) doubt of the answers to the calibration queries, higher = less sure; or several, name -> (Q,). Of
            several, the pilot chooses the certificate's `score`; the other queries test it.
        right: (Q,) whether the answers are right.
        risk: share of wrong answers allowed among those given.
        confidence: chance that the promise holds.
        groups: (Q,) group of each query, such as its class if deployment has classes that calibration does not show;
            None if queries are drawn independently from deployment. No group of deployment may have more queries than
            the largest group here.
        options: `tries`, number of certificates tried on this calibration set to keep the best (each must hold with
            confidence 1 - (1 - confidence) / tries); `importance` (Q,), how many queries of deployment each query
            stands for, up to a factor; `seed` of the choice of the pilot; `noun` for groups in messages; and fields of
            `Certificate` to record: score, gallery, weights, calibration, valid_for, ...

    Returns:
        The certificate; its threshold is None if too many answers are wrong at every threshold.

    Raises:
        CertificateError: too few calibration queries (or groups) for this risk and confidence, even if all are right;
            a risk or confidence that is not between 0 and 1.
        ValueError: lengths that differ, numbers that are not finite.

    Examples:
        >>> doubt = np.linspace(0, 1, 1000)
        >>> certificate = certify(doubt, doubt < 0.5, risk=0.1)
        >>> 0.4 < certificate.coverage < 0.6, certificate.errors / certificate.answered < 0.1
        (True, True)
    """
    check_shares(risk=risk, confidence=confidence)
    tries, importance, seed, noun = (options.pop(name, default) for name, default in _OPTIONS.items())
    if not isinstance(tries, int | np.integer) or tries < 1:
        raise CertificateError(f"tries is {tries!r}; expected how many certificates are tried, at least 1.")
    scores = doubt if isinstance(doubt, Mapping) else {options.pop("score", ""): doubt}
    doubts = {name: _doubts(values, name or "doubt") for name, values in scores.items()}
    queries = len(next(iter(doubts.values()), ()))
    if any(len(values) != queries for values in doubts.values()) or not queries:
        raise ValueError(
            f"doubt has scores of {sorted({len(v) for v in doubts.values()})} entries; expected one length."
        )
    wrong = 1.0 - arrays.booleans(right, "right", count=queries)
    weights = None if importance is None else _weights(importance, queries)
    units = units_of(groups, queries)
    count, delta = int(units.max()) + 1, (1 - confidence) / tries
    generator = arrays.generator(seed)
    by_sums = groups is not None or weights is not None
    share = PILOT_OF_GROUPS if by_sums else PILOT if len(doubts) > 1 else 0
    _check_size(count, risk, 1 - delta, "labelled queries" if groups is None else noun, share)
    order, size = generator.permutation(count), _pilot_size(count, share)
    piloted = np.isin(units, order[:size])
    name = _chosen(doubts, wrong, piloted) if len(doubts) > 1 else next(iter(doubts))
    values, promise, needed = doubts[name], (risk, delta), 0
    if by_sums:
        three = (values, wrong, np.ones(queries) if weights is None else weights)
        threshold, bound = _search_groups(three, units, order[:size], order[size:], promise, generator)
    else:
        threshold, bound = _search_queries(values[~piloted], wrong[~piloted], risk, delta)
        if threshold is None:
            needed = _with_pilot(_queries_needed(values[~piloted], wrong[~piloted], risk, delta), share)
    answered = values <= (-np.inf if threshold is None else threshold)
    return Certificate(
        risk=risk,
        confidence=confidence,
        threshold=threshold,
        coverage=float(np.average(answered, weights=weights)),
        risk_bound=bound,
        queries=queries,
        answered=int(answered.sum()),
        errors=int(wrong[answered].sum()),
        unit="query" if groups is None else "group",
        groups=0 if groups is None else count,
        score=name,
        needed=needed,
        tries=int(tries),
        weighted=weights is not None,
        **options,
    )


def _doubts(values: Any, name: str) -> Doubles:
    """Return doubts (Q,), clipped to the range of float32, so that the threshold `EVERYTHING` answers all of them."""
    return np.clip(arrays.vector(values, name), -EVERYTHING, EVERYTHING)


_OPTIONS: dict[str, Any] = {"tries": 1, "importance": None, "seed": 0, "noun": "groups"}
_ONE = {"groups": "group", "classes": "class"}


def _weights(importance: Any, count: int) -> Doubles:
    weights = arrays.vector(importance, "importance", count=count)
    if weights.min() < 0 or not weights.any():
        raise ValueError(f"importance has {weights.min():g} as its least weight; expected 0 or more, not all 0.")
    return weights


def _chosen(doubts: Mapping[str, Doubles], wrong: Doubles, pilot: Bools) -> str:
    """Return the name of the score that ranks the pilot's errors last."""

    def errors_early(doubt: Doubles) -> float:
        return float(np.cumsum(wrong[pilot][np.argsort(doubt[pilot], kind="stable")]).sum())

    return min(doubts, key=lambda name: errors_early(doubts[name]))


def class_importance(labels: Any, shares: Mapping[Any, float]) -> Doubles:
    """Return the weights (Q,) of calibration queries from the deployment `shares` of their classes `labels` (Q,).

    Examples:
        >>> class_importance(["a", "a", "b"], {"a": 0.5, "b": 0.5}).tolist()
        [0.75, 0.75, 1.5]
    """
    names, numbers = arrays.names_of(labels, "labels")
    arrays.check_mapping(shares, "shares")
    missing = sorted({str(name) for name in shares} - {str(name) for name in names.tolist()})
    absent = [name for name in names.tolist() if name not in shares]
    if missing or absent:
        raise CertificateError(
            f"shares name {', '.join(missing) or 'no class'} that calibration does not show, and lack "
            f"{', '.join(map(str, absent[:3])) or 'none'} that it does; expected the same classes: leave out queries "
            "of classes that nobody will ask about."
        )
    wanted = arrays.vector([shares[name] for name in names.tolist()], "shares")
    if wanted.min() < 0 or not 0 < wanted.sum() < np.inf:
        raise CertificateError(f"shares are {wanted.min():g} to {wanted.max():g}; expected numbers from 0, not all 0.")
    return np.asarray((wanted / wanted.sum() / np.bincount(numbers) * len(numbers))[numbers])


def least_units(risk: float, confidence: float, *, pilot: int = 0) -> int:
    """Return the fewest calibration queries (or groups) that can certify `risk` if no answer is wrong.

    Args:
        risk: share of wrong answers allowed.
        confidence: chance that the promise holds.
        pilot: one of this many is taken for the pilot; 0 without a pilot.

    Examples:
        >>> least_units(0.05, 0.9), least_units(0.05, 0.9, pilot=5)
        (45, 56)
    """
    return _with_pilot(least_tested(risk, confidence), pilot)


def _with_pilot(tested: int, pilot: int) -> int:
    """Return the number of queries (or groups) that leaves `tested` of them after one of `pilot` goes to the pilot."""
    return tested + (max(1, (tested - 1) // (pilot - 1)) if pilot and tested else 0)


def least_tested(risk: float, confidence: float) -> int:
    """Return the fewest answers that put the bound at `risk` if no answer is wrong."""
    count = math.ceil(math.log1p(-confidence) / math.log1p(-risk))
    if count > MOST_COUNTED or errors_allowed(np.array([count]), risk, 1 - confidence)[0] >= 0:
        return count
    return count + 1  # by rounding


def upper_bound(errors: int, answers: int, confidence: float) -> float:
    """Return the upper Clopper-Pearson bound of the share of errors, from `errors` among `answers`; 1 without answers.

    Examples:
        >>> round(upper_bound(0, 45, 0.9), 4)
        0.0499
    """
    if errors >= answers:
        return 1.0
    return float(scipy.special.betaincinv(errors + 1, answers - errors, confidence))


def _search_queries(doubt: Doubles, wrong: Doubles, risk: float, delta: float) -> tuple[float | None, float]:
    """Return the certified threshold and the bound of its risk, where queries are the unit; `doubt`, `wrong` (Q,)."""
    order, count = np.argsort(doubt, kind="stable"), len(doubt)
    tested, errors = doubt[order], np.cumsum(wrong[order])
    allowed = errors_allowed(np.arange(1, count + 1), risk, delta)
    few, more = (int(np.searchsorted(allowed, errors_of_first)) + 1 for errors_of_first in FIRST_ERRORS)
    (start,), (usual,) = _first_tested(np.array([count]), few, more)
    ends = np.flatnonzero(np.append(np.diff(tested) > 0, True))
    ends = ends[ends >= start - 1]
    passed = errors[ends] <= allowed[ends]
    if start > usual:
        passed[0] &= errors[ends[0]] <= allowed[start - 1]
    certified = ends[: int(np.argmin(np.append(passed, False)))]
    if not len(certified):
        return None, 1.0
    last = int(certified[-1])
    threshold = EVERYTHING if last == count - 1 else max(float(tested[last]), _below(tested[last + 1]))
    return threshold, min(upper_bound(int(errors[last]), last + 1, 1 - delta), risk)


def _first_tested(counts: Ints, few: int, more: int) -> tuple[Ints, Ints]:
    """Return the answers (K,) at the first threshold tested for `counts` (K,) queries, and their usual number (K,).

    Args:
        counts: numbers of queries.
        few: fewest answers of which the smaller of `FIRST_ERRORS` may be wrong.
        more: fewest answers of which the larger of `FIRST_ERRORS` may be wrong.
    """
    usual = np.clip(counts // START, 1, LATEST_START)
    return np.minimum(np.maximum(np.maximum(usual, few), np.minimum(more, counts // PATIENT)), counts), usual


def _queries_needed(doubt: Doubles, wrong: Doubles, risk: float, delta: float) -> int:
    """Return about the fewest queries whose first threshold would pass at the error rates of these (Q,); 0 if none.

    Twice as many queries have twice the answers and errors up to each doubt; errors are rounded up. Numbers are tried
    in steps of a hundredth.
    """
    order, count = np.argsort(doubt, kind="stable"), len(doubt)
    most = min(TIMES * count, MOST_NEEDED)
    if most <= count:
        return 0
    ends = np.flatnonzero(np.append(np.diff(doubt[order]) > 0, True))
    counts = np.unique(np.geomspace(count + 1, most, int(100 * math.log(most / count)) + 1).astype(np.int64))
    start, usual = _first_tested(counts, *(_least_answers(wrongly, risk, delta) for wrongly in FIRST_ERRORS))
    first = ends[np.searchsorted(ends + 1, start * count / counts - ROUNDING)]
    errors = np.ceil(np.cumsum(wrong[order])[first] * counts / count - ROUNDING)
    answers = np.maximum(((first + 1) * counts / count + ROUNDING).astype(np.int64), start)
    passed = errors <= errors_allowed(answers, risk, delta)
    passed &= (start == usual) | (errors <= errors_allowed(start, risk, delta))
    return int(counts[passed.argmax()]) if passed.any() else 0


def _least_answers(errors: int, risk: float, delta: float) -> int:
    """Return the fewest answers that still pass with this number of errors."""
    near = int(scipy.special.bdtrin(errors, delta, risk)) + np.arange(-1, 3)
    return int(near[np.argmax(errors_allowed(near, risk, delta) >= errors)])


def _below(doubt: float) -> float:
    """Return the largest number below `doubt`; of a float32 `doubt`, the largest float32 below it."""
    single = np.float32(doubt)
    return float(np.nextafter(single if single == doubt else doubt, np.float32(-np.inf)))


def errors_allowed(answers: Ints, risk: float, delta: float) -> Doubles:
    """Return the most errors (K,) with which the numbers `answers` (K,) still pass; -1 where even 0 errors fail."""
    allowed = np.floor(np.nan_to_num(scipy.special.bdtrik(delta, answers, risk), nan=-1.0)) + 1
    for _ in range(3):  # bdtrik inverts a continuous curve, and cannot give -1
        allowed -= (allowed >= 0) & (scipy.special.bdtr(np.maximum(allowed, 0), answers, risk) > delta)
    return allowed


def _search_groups(
    values: tuple[Doubles, Doubles, Doubles],
    units: Ints,
    pilot: Ints,
    tested: Ints,
    promise: tuple[float, float],
    generator: np.random.Generator,
) -> tuple[float | None, float]:
    """Return the certified threshold and the bound of its risk, where groups are the unit.

    Args:
        values: doubt, error and weight (Q,) of the calibration queries.
        units: (Q,) number of each query's group.
        pilot: groups that choose the thresholds, the first one to test, and the stake.
        tested: the other groups, in the order of betting.
        promise: alpha, delta.
        generator: draws calibration sets from the pilot.
    """
    doubt, wrong, weights = values
    risk, delta = promise
    levels = np.unique(doubt[np.isin(units, pilot)])[:-1]
    kept = np.linspace(0, len(levels) - 1, min(len(levels), THRESHOLDS)).astype(np.int64)
    thresholds = np.append(levels[kept], EVERYTHING)
    place, count = np.searchsorted(thresholds, doubt), len(thresholds)
    cells, largest = units * count + place, np.bincount(units, weights).max()
    answers, errors = (
        np.cumsum(np.bincount(cells, each, count * (units.max() + 1)).reshape(-1, count), axis=1) / largest
        for each in (weights, weights * wrong)
    )
    start, stake = _best_stake(answers[pilot], errors[pilot], len(tested), generator)

    def passes(column: int, alpha: float) -> bool:
        evidence = group_evidence(answers[tested, column], errors[tested, column], alpha, min(1.0, stake / alpha))
        return evidence >= math.log(1 / delta)

    certified = -1
    for column in range(start, count):
        if not passes(column, risk):
            break
        certified = column
    if certified < 0:
        return None, 1.0
    low, high = 0.0, risk
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(certified, middle) else (middle, high)
    return float(thresholds[certified]), high


def group_evidence(answers: Doubles, errors: Doubles, risk: float, stake: float) -> float:
    """Return the log of the largest capital of a wager against "more than `risk` is wrong", group after group.

    Args:
        answers: (G,) answers given to each group, in units of the largest group's queries.
        errors: (G,) wrong answers of each group, in the same units.
        risk: alpha.
        stake: share of the largest stake, 1 / (1 - alpha), which loses everything to a group that is all wrong.

    Examples:
        >>> round(group_evidence(np.ones(50), np.zeros(50), 0.1, 0.5), 3)
        2.703
    """
    gains = np.maximum(stake / (1 - risk) * (risk * answers - errors), -1 + 1e-12)
    return float(np.cumsum(np.log1p(gains)).max())


def _best_stake(answers: Doubles, errors: Doubles, tested: int, generator: np.random.Generator) -> tuple[int, float]:
    """Return the threshold to test first and the stake that are expected to certify most at the usual `RISKS`.

    Calibration sets are drawn from the pilot's groups and half a group that is all wrong (Bayesian bootstrap).

    Args:
        answers: (P, T) answers of the pilot's groups up to each threshold, as in `group_evidence`.
        errors: (P, T) wrong answers.
        tested: number of groups that will test.
        generator: generator of the draws.
    """
    chances = generator.dirichlet(np.append(np.ones(len(answers)), 0.5), TRIALS)
    drawn, covered = generator.multinomial(tested, chances), answers.mean(axis=0)
    gained = np.zeros((len(STAKES), len(covered)))
    for risk in RISKS:
        sums = np.vstack([risk * answers - errors, (risk - 1) * covered])
        expected = np.zeros_like(gained)
        for row, stake in enumerate(STAKES):
            share = min(1.0, stake / risk) / (1 - risk)
            passed = drawn @ np.log1p(np.maximum(share * sums, -1 + 1e-12)) >= -math.log1p(-CONFIDENCE)
            reached = np.zeros(TRIALS)
            for column in reversed(range(len(covered))):
                reached = np.where(passed[:, column], np.maximum(reached, covered[column]), 0.0)
                expected[row, column] = reached.mean()
        gained += expected / max(expected.max(), 1e-12)
    if not gained.any():
        return len(covered) - 1, STAKES[0]
    best = int(gained.argmax())
    return best % len(covered), STAKES[best // len(covered)]


def units_of(groups: Any, count: int, name: str = "groups") -> Ints:
    """Return the number (N,) of what each of `count` entries was drawn with: its group, or without groups itself."""
    return np.arange(count) if groups is None else arrays.names_of(groups, name, count=count)[1]


def first_of_each(groups: Any, count: int) -> Ints:
    """Return the first row (G,) of every group in `groups` (N,), ascending; without groups all `count` rows."""
    return np.sort(np.unique(units_of(groups, count), return_index=True)[1])


def check_shares(**shares: float) -> None:
    """Refuse a risk or confidence that is not strictly between 0 and 1.

    Raises:
        CertificateError: one is not.
    """
    for name, value in shares.items():
        arrays.check_number(value, name)
        if not 0 < value < 1:
            raise CertificateError(f"{name} is {value:g}; expected a share between 0 and 1, such as 0.01 or 0.9.")


def _pilot_size(units: int, share: int) -> int:
    return max(1, units // share) if share else 0


def _check_size(count: int, risk: float, confidence: float, noun: str, pilot: int) -> None:
    needed = least_units(risk, confidence, pilot=pilot)
    if count < needed:
        tested = count - _pilot_size(count, pilot)
        best = f"; {count} can show a risk of {1 - (1 - confidence) ** (1 / tested):.3g} at best" if tested else ""
        raise TooFewError(
            f"calibration has {count} {_ONE.get(noun, noun) if count == 1 else noun}; a risk of {risk:g} at confidence "
            f"{confidence:g} needs at least {needed}, even if every answer is right{best}. Label "
            f"{f'queries of more {noun}' if noun in _ONE else 'more queries'}, or ask for a higher risk or a lower "
            "confidence."
        )
