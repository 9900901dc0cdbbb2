"""Certificates: a threshold on the doubt of an answer below which at most a stated share of answers is wrong.

Notation: d_i doubt of the answer to calibration query i, w_i in {0, 1} whether it is wrong, alpha the risk asked for,
1 - delta the confidence; R(t) = P(w = 1 | d <= t), the risk of answering when d <= t. The certificate's t satisfies
P(R(t) > alpha) <= delta over calibration sets, for every distribution of (d, w), if deployment draws as calibration
did.

Which t is tried may not depend on what tests it. A part of the calibration set, the pilot, says where testing starts;
the rest tests that threshold and then larger ones, each at the full level delta, until one fails (fixed sequence
testing; Angelopoulos et al. 2021, "Learn then test"). The last that passed is certified.

    unit "query"   queries are drawn independently. The pilot is a tenth: a logistic curve of errors over ranks, fitted
                   to it, says from which rank on testing is expected to certify most. Thresholds are the order
                   statistics d_(k) of the rest: given d_(k+1), the k answers below it are independent with risk
                   R(d_(k+1)), and k passes when P(Binomial(k, alpha) <= errors) <= delta
    unit "group"   groups (classes) are drawn independently, queries of one as they like: a certificate for classes that
                   calibration did not show. Y_g = sum over answers of g of (alpha - w_i) / s, s the most queries of a
                   group, has mean <= 0 if R(t) >= alpha, so that the mean of prod_g (1 + lambda Y_g) is at most 1
                   (Waudby-Smith and Ramdas 2023); t passes when the product reaches 1 / delta. The pilot is a fifth and
                   names the thresholds (its own doubts), the first to test, and lambda. That no group of deployment has
                   more than s queries to its name is an assumption

Why a threshold may be one of the doubts that test it: let A_1, A_2, ... be the intervals of t where R(t) > alpha. R is
alpha at their ends, so the mean error between any two ends is alpha too. Which interval the first false threshold of
the sequence lies in is decided by how many doubts fall between the ends, and given these numbers the errors below the
interval are Binomial(n, alpha), those inside have a larger mean: it passes with probability at most delta. Ties are
broken by chance in this argument; thresholds are tried only where a tie ends.

The largest threshold of many that passes, tested on the data that named it, promises too much (Geifman and El-Yaniv
2017 pay by a union bound, which answers fewer queries): tests/trust/test_certificates.py shows it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from probmetric.errors import ProbMetricError
from probmetric.io import read_json, signed, unsigned, write_json
from probmetric.metrics import arrays

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Unit = Literal["query", "group"]

PILOT, PILOT_OF_GROUPS = 10, 5
THRESHOLDS = 100
STARTS, TRIALS = 20, 60
RANK_PRIOR = ((-3.0, 3.0), (6.0, 4.0))  # mean and standard deviation of the intercept and the slope
SLACK = 1.5
EVERYTHING = sys.float_info.max
_AGAIN = "certify again"


class CertificateError(ProbMetricError, ValueError):
    """Nothing can be certified, or a certificate does not hold here; the message says what is needed."""


@dataclass(frozen=True)
class Certificate:
    """What a calibration set vouches for; `answers` decides by it.

    Attributes:
        risk: largest share of wrong answers among those given.
        confidence: chance, over calibration sets, that the certificate is right.
        threshold: answers with a doubt up to it are given; None where nothing can be certified, `EVERYTHING` where
            every answer can be given.
        coverage: share of the calibration queries that are answered.
        risk_bound: upper bound, at this confidence, of the risk at the threshold; 1 without a threshold.
        queries: calibration queries.
        answered: those answered.
        errors: those answered wrongly.
        unit: what was taken for drawn independently, queries or groups of them (classes).
        groups: groups among the calibration queries; 0 where the unit is the query.
        score: name of the doubt.
        gallery: digest of the gallery that was searched.
        weights: digest of the weights that embedded it.
        calibration: digest of the calibration set.
        gallery_classes: classes of the gallery.
        valid_for: the deployment it holds for, in words.
        p_right: the map whose 1 - P(right) is the doubt, where that is the score (`PRight.plain`).
        reference: doubts of calibration queries, some of them where there are many: what a monitor compares with.
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
    p_right: dict[str, Any] | None = None
    reference: tuple[float, ...] = ()

    def answers(self, doubt: Any) -> NDArray[np.bool_]:
        """Which of the queries with `doubt` (Q,) are answered.

        Raises:
            ValueError: a doubt that is not finite.
        """
        asked = arrays.to_numpy(doubt)
        if asked.size == 0:
            return np.zeros(0, dtype=bool)
        values = arrays.vector(asked, "doubt")
        return np.zeros(len(values), dtype=bool) if self.threshold is None else values <= self.threshold

    def check(self, *, gallery: str, weights: str) -> None:
        """Refuse a gallery or weights that are not those certified, by their digests.

        Raises:
            CertificateError: names what differs and what to do.
        """
        for name, found in (("gallery", gallery), ("weights", weights)):
            certified = getattr(self, name)
            if certified != found:
                raise CertificateError(
                    f"the certificate is for {name} {certified[:12] or '(none named)'}, here is {found[:12]}: it says "
                    f"nothing about these answers. Use the {name} it was made for, or certify again with this one."
                )

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        write_json(path, signed(asdict(self)))

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read what `save` wrote.

        Raises:
            FileError: the file is missing or damaged.
            CertificateError: it is no certificate.
        """
        values = read_json(path, _AGAIN)
        if not isinstance(values, dict) or "digest" not in values:
            raise CertificateError(f"{path} is no certificate, or its digest was taken out. Certify again.")
        return cls.of(unsigned(values, path, _AGAIN), str(path))

    @classmethod
    def of(cls, values: Any, name: str = "the certificate") -> Certificate:
        """A certificate from a mapping of its fields; `name` is what messages call it."""
        known = {field.name for field in fields(cls)}
        needed = {field.name for field in fields(cls)[:8]}
        if not isinstance(values, Mapping) or not needed <= set(values) <= known:
            raise CertificateError(f"{name} is no certificate: it needs {', '.join(sorted(needed))}. Certify again.")
        problem = _problem(values)
        if problem:
            raise CertificateError(f"{name} is damaged: {problem}. Certify again.")
        return cls(**{**values, "reference": tuple(values.get("reference", ()))})


def _problem(values: Mapping[str, Any]) -> str:
    """What is wrong with the fields of a certificate; "" where nothing is."""
    from probmetric.trust.p_right import PRight

    def number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= EVERYTHING

    shares = {"risk": (0, 1), "confidence": (0, 1), "coverage": (-1, 2), "risk_bound": (-1, 2)}
    for key, (low, high) in shares.items():
        if not number(values[key]) or not low < values[key] < high:
            return f"{key} is {str(values[key])[:40]}, which is no share"
    for key in ("queries", "answered", "errors", "groups", "gallery_classes"):
        if not isinstance(values.get(key, 0), int) or values.get(key, 0) < 0:
            return f"{key} is {str(values[key])[:40]}, which is no count"
    if values["threshold"] is not None and not number(values["threshold"]):
        return f"threshold is {str(values['threshold'])[:40]}, which is no number"
    texts = ("unit", "score", "gallery", "weights", "calibration", "valid_for")
    reference = values.get("reference", ())
    if not isinstance(reference, list | tuple) or not all(map(number, reference)):
        return "reference is no list of numbers"
    try:
        if values.get("p_right") is not None:
            PRight.of(values["p_right"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"p_right cannot be read ({error!r})"
    return next((f"{key} is no text" for key in texts if not isinstance(values.get(key, ""), str)), "")


def certify(
    doubt: Any,
    correct: Any,
    *,
    risk: float,
    confidence: float = 0.9,
    groups: Any = None,
    seed: int = 0,
    **facts: Any,
) -> Certificate:
    """The largest threshold at which at most `risk` of the answers given is wrong, with this confidence.

    Args:
        doubt: (Q,) doubt of the answers to the calibration queries, higher = less sure.
        correct: (Q,) whether they are right.
        risk: share of wrong answers allowed among those given.
        confidence: chance that the promise holds.
        groups: (Q,) class of each query, where deployment has classes that calibration does not show; None where
            queries are drawn independently from what is deployed.
        seed: of the choice of the pilot.
        facts: fields of `Certificate` to be recorded: score, gallery, weights, calibration, valid_for, ...

    Returns:
        The certificate; its threshold is None where these answers are too often wrong at every threshold.

    Raises:
        CertificateError: too few calibration queries (or groups) for this risk and confidence, whatever they say; a
            risk or confidence that is no share.
        ValueError: lengths that differ, numbers that are not finite.

    Examples:
        >>> doubt = np.linspace(0, 1, 1000)
        >>> found = certify(doubt, doubt < 0.5, risk=0.1)
        >>> 0.4 < found.coverage < 0.6, found.errors / found.answered < 0.1
        (True, True)
    """
    if not 0 < risk < 1 or not 0 < confidence < 1:
        raise CertificateError(f"risk is {risk:g}, confidence is {confidence:g}; both are shares between 0 and 1.")
    values = arrays.vector(doubt, "doubt")
    wrong = 1.0 - arrays.booleans(correct, "correct", count=len(values))
    units = _units(groups, len(values))
    _check_size(units, risk, confidence, grouped=groups is not None)
    if groups is None:
        threshold, bound = _search_queries(values, wrong, risk, 1 - confidence, seed)
    else:
        pilot = _pilot(units, seed)
        threshold, bound = _search_groups(values, wrong, pilot, _Test.of(units, ~pilot, risk, 1 - confidence))
    answered = values <= (-np.inf if threshold is None else threshold)
    return Certificate(
        risk=risk,
        confidence=confidence,
        threshold=threshold,
        coverage=float(answered.mean()),
        risk_bound=bound,
        queries=len(values),
        answered=int(answered.sum()),
        errors=int(wrong[answered].sum()),
        unit="query" if groups is None else "group",
        groups=0 if groups is None else int(units.max()) + 1,
        **facts,
    )


def least_units(risk: float, confidence: float, *, grouped: bool = False) -> int:
    """Return the fewest calibration queries (or groups), pilot included, that can certify `risk` if no answer is wrong.

    Examples:
        >>> least_units(0.05, 0.9), least_units(0.05, 0.9, grouped=True)
        (49, 56)
    """
    tested, share = least_tested(risk, confidence), PILOT_OF_GROUPS if grouped else PILOT
    count = tested + max(1, (tested - 1) // (share - 1))
    while count > 1 and count - 1 - _pilot_size(count - 1, share) >= tested:
        count -= 1
    return count


def least_tested(risk: float, confidence: float) -> int:
    """Fewest answers without an error that put the bound at `risk`."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-risk))


def upper_bound(errors: int, answers: int, confidence: float) -> float:
    """Upper Clopper-Pearson bound of the share of wrong answers, from `errors` among `answers`; 1 without answers.

    Examples:
        >>> round(upper_bound(0, 45, 0.9), 4)
        0.0499
    """
    if errors >= answers:
        return 1.0
    return float(scipy.special.betaincinv(errors + 1, answers - errors, confidence))


def _search_queries(doubt: Doubles, wrong: Doubles, risk: float, delta: float, seed: int) -> tuple[float | None, float]:
    """Return the certified threshold and the bound of its risk, where queries are the unit."""
    generator = np.random.default_rng(seed)
    count = len(doubt)
    pilot = np.zeros(count, dtype=bool)
    pilot[generator.permutation(count)[: _pilot_size(count, PILOT)]] = True
    order = np.argsort(doubt[~pilot], kind="stable")
    tested = doubt[~pilot][order]
    errors = np.cumsum(wrong[~pilot][order])
    allowed = errors_allowed(len(tested), risk, delta)
    passed = errors <= allowed
    ranks = np.searchsorted(np.sort(doubt), doubt[pilot], side="right") / count
    start = _best_start(ranks, wrong[pilot], allowed, min(least_tested(risk, 1 - delta), len(tested)), generator)
    ends = np.flatnonzero(np.append(np.diff(tested) > 0, True))
    ends = ends[ends >= start - 1]
    failed = np.flatnonzero(~passed[ends])
    certified = ends[: failed[0] if len(failed) else len(ends)]
    if not len(certified):
        return None, 1.0
    last = int(certified[-1])
    threshold = EVERYTHING if last == len(tested) - 1 else float(np.nextafter(tested[last + 1], -np.inf))
    return threshold, min(upper_bound(int(errors[last]), last + 1, 1 - delta), risk)


def errors_allowed(count: int, risk: float, delta: float) -> Doubles:
    """Return the most errors (count,) with which 1, ..., count answers still pass; -1 where none is few enough."""
    answers = np.arange(1, count + 1)
    allowed = np.floor(np.nan_to_num(scipy.special.bdtrik(delta, answers, risk), nan=-1.0)) + 1
    for _ in range(3):  # the inverse is that of a continuous curve, and -1 has none
        allowed -= (allowed >= 0) & (scipy.special.bdtr(np.maximum(allowed, 0), answers, risk) > delta)
    return allowed


def _best_start(ranks: Doubles, wrong: Doubles, allowed: Doubles, least: int, generator: np.random.Generator) -> int:
    """Return the number of answers to test first: of `STARTS` the one that is expected to certify most.

    Args:
        ranks: ranks of the pilot's doubts among all, as shares (P,).
        wrong: their errors (P,).
        allowed: most errors with which 1, ..., N answers pass (N,).
        least: fewest answers that can pass.
        generator: of the calibration sets that are drawn from the pilot's curve.
    """
    count = len(allowed)
    starts = np.unique(np.maximum(least, np.arange(1, STARTS + 1) * count // STARTS))
    mean, root = _error_curve(ranks, wrong)
    places = (np.arange(count) + 0.5) / count
    certified = np.zeros(len(starts))
    for _ in range(TRIALS):
        intercept, slope = mean + root @ generator.standard_normal(2)
        passed = np.cumsum(generator.random(count) < scipy.special.expit(intercept + slope * places)) <= allowed
        failures = np.append(np.flatnonzero(~passed), count)
        certified += np.where(passed[starts - 1], failures[np.searchsorted(failures, starts - 1)], 0)
    return int(starts[np.argmax(certified)])


def _error_curve(ranks: Doubles, wrong: Doubles) -> tuple[Doubles, Doubles]:
    """Return mean (2,) and root of the covariance (2, 2) of intercept and slope of P(wrong | rank), logistic."""
    centre, scale = (np.array(values) for values in zip(*RANK_PRIOR, strict=True))
    design = np.column_stack([np.ones(len(ranks)), ranks])
    curve = centre.copy()
    for _ in range(25):
        rate = scipy.special.expit(design @ curve)
        gradient = design.T @ (wrong - rate) - (curve - centre) / scale**2
        precision = design.T @ (design * (rate * (1 - rate))[:, None]) + np.diag(1 / scale**2)
        step = np.linalg.solve(precision, gradient)
        curve = curve + step
        if np.abs(step).max() < 1e-8:
            break
    return curve, np.linalg.cholesky(np.linalg.inv(precision))


@dataclass(frozen=True)
class _Test:
    """Whether the risk of the answers given is below alpha, by the groups that are not of the pilot."""

    rows: NDArray[np.bool_]
    units: Ints
    count: int
    largest: int
    risk: float
    delta: float
    pilot: Ints

    @classmethod
    def of(cls, units: Ints, rows: NDArray[np.bool_], risk: float, delta: float) -> _Test:
        numbers = np.unique(units[rows])
        largest = int(np.bincount(units).max())
        return cls(rows, units, len(numbers), largest, risk, delta, np.unique(units[~rows]))

    def passes(self, answered: NDArray[np.bool_], wrong: Doubles, spread: float) -> bool:
        """Tell whether the risk of the answers given is at most alpha; `spread` is the pilot's variance of Y."""
        return self._rejects(self.risk, *self._sums(answered, wrong), spread)

    def bound(self, answered: NDArray[np.bool_], wrong: Doubles, spread: float) -> float:
        """Return an upper bound of the risk of the answers given: the least alpha that would pass."""
        low, high = 0.0, 1.0
        for _ in range(30):
            middle = (low + high) / 2
            passed = self._rejects(middle, *self._sums(answered, wrong), spread)
            low, high = (low, middle) if passed else (middle, high)
        return high

    def _sums(self, answered: NDArray[np.bool_], wrong: Doubles) -> tuple[Doubles, Doubles]:
        """Return errors and answers (G,) of every group, in units of the largest group."""
        given = answered & self.rows
        count = int(self.units.max()) + 1
        errors = np.bincount(self.units[given], wrong[given], minlength=count)
        return errors / self.largest, np.bincount(self.units[given], minlength=count) / self.largest

    def _rejects(self, risk: float, errors: Doubles, answers: Doubles, spread: float) -> bool:
        stake = min(math.sqrt(2 * math.log(1 / self.delta) / (self.count * spread)), 1 / (1 - risk))
        gains = np.maximum(stake * (risk * answers - errors), -1 + 1e-12)
        return bool(np.log1p(gains).sum() >= math.log(1 / self.delta))

    def spread(self, answered: NDArray[np.bool_], wrong: Doubles) -> float:
        """Return the variance over the pilot's groups of Y at this threshold, with one more group at the edge."""
        given = answered & ~self.rows
        gain = np.bincount(self.units[given], self.risk - wrong[given], minlength=int(self.units.max()) + 1)
        values = np.append(gain[self.pilot] / self.largest, 0.5 * self.risk)
        return float(values.var())


def _search_groups(doubt: Doubles, wrong: Doubles, pilot: NDArray[np.bool_], test: _Test) -> tuple[float | None, float]:
    """Return the certified threshold and the bound of its risk, where groups are the unit."""
    certified: float | None = None
    for threshold in _sequence(doubt, wrong, pilot, test):
        answered = doubt <= threshold
        if not test.passes(answered, wrong, test.spread(answered, wrong)):
            break
        certified = float(threshold)
    if certified is None:
        return None, 1.0
    answered = doubt <= certified
    return certified, min(test.bound(answered, wrong, test.spread(answered, wrong)), test.risk)


def _sequence(doubt: Doubles, wrong: Doubles, pilot: NDArray[np.bool_], test: _Test) -> Doubles:
    """Return thresholds in the order of testing, from the pilot alone: upwards from where its groups gain most.

    The first test needs enough answers to pass with an error or two.
    """
    piloted, failed = doubt[pilot], wrong[pilot]
    order = np.argsort(piloted, kind="stable")
    last = np.flatnonzero(np.append(np.diff(piloted[order]) > 0, True))
    answers, errors = last + 1.0, np.cumsum(failed[order])[last]
    start = int(np.argmax(test.risk * answers - errors))
    enough = SLACK * least_tested(test.risk, 1 - test.delta) / test.count * len(piloted)
    start = max(start, int(np.searchsorted(answers, enough)))
    tried = piloted[order][last][start:]
    kept = np.linspace(0, max(len(tried) - 1, 0), min(len(tried), THRESHOLDS)).astype(np.int64)
    return np.append(tried[kept], EVERYTHING)


def _units(groups: Any, count: int) -> Ints:
    if groups is None:
        return np.arange(count)
    values = arrays.to_numpy(groups)
    if values.shape != (count,):
        raise ValueError(f"groups has shape {values.shape}; expected ({count},), one for each query.")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _pilot_size(units: int, share: int) -> int:
    return max(1, units // share)


def _pilot(units: Ints, seed: int) -> NDArray[np.bool_]:
    """Return the rows (Q,) of the pilot of groups: every query of a fifth of them, drawn."""
    count = int(units.max()) + 1
    chosen = np.random.default_rng(seed).permutation(count)[: _pilot_size(count, PILOT_OF_GROUPS)]
    return np.isin(units, chosen)


def _check_size(units: Ints, risk: float, confidence: float, *, grouped: bool) -> None:
    needed, count = least_units(risk, confidence, grouped=grouped), int(units.max()) + 1
    if count < needed:
        noun = ("classes" if count > 1 else "class") if grouped else "labelled queries"
        raise CertificateError(
            f"calibration has {count} {noun}; a risk of {risk:g} at confidence {confidence:g} needs at least {needed}, "
            "even if every answer is right. Label more queries, or ask for a higher risk or a lower confidence."
        )
