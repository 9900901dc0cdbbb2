"""Test continuously whether more answers are wrong than was promised, on answers whose truth somebody looked up.

Notation: w_i in {0, 1} says whether checked answer i is wrong, S_n is their sum, alpha the risk promised, q > alpha a
share of errors to notice, delta the chance of ever a false alarm. As long as the true share is at most alpha, each of

    L_n(q) = prod_i (q / alpha)^w_i ((1 - q) / (1 - alpha))^(1 - w_i)                      a likelihood ratio
    T_n(m, c) = P(S_m >= c | S_n) / P(S_m >= c),  P at alpha, the same from check m on      "c errors in m checks"

has mean at most 1, and so has their weighted mean. So the chance that this mean ever reaches 1 / delta is at most
delta, however many answers you check (Ville 1939). T finds a share of `HORIZONS` times alpha as early as possible: m is
the number of checks in which the best test, at the weight's share of delta, finds it more often than not. L never ends.

No test notices q with chance one half in fewer checks than the best test of fixed size (`checks_needed`; Neyman and
Pearson). For example, no test can notice 1.5 times as many errors in 100 checks unless .2 or more was promised. Medians
of 300 runs with 1 % false alarms, and in brackets that bound (`benchmarks/spot_checks.py`):

    risk promised      1.5 times as many errors      twice         three times
         .05             573 (476)               247 (137)     82 (45)
         .10             273 (231)               111 (64)      37 (19)
         .20             116 (99)                47 (29)       16 (10)
         .30             67 (57)                 26 (16)       9 (4)
"""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles
from probmetric.trust.certificates import CertificateError, check_shares, first_of_each

FACTORS = (1.25, 1.5, 2.0, 3.0, 5.0)
HORIZONS = ((1.5, 0.7), (2.0, 0.1), (3.0, 0.05))  # times the risk, weight; the rest is the likelihood ratios'
COUNTED = 100  # errors up to which the fewest are searched one by one
LEAST_RISK = 1e-12  # smaller risks need more checks than can be counted
OFTEN = 0.55  # chance with which a horizon notices


@dataclass(frozen=True)
class SpotChecks:
    """Hold what checked answers say about a promise.

    Attributes:
        checks: number of answers checked.
        errors: number of them that were wrong.
        evidence: largest evidence so far; 1 is an alarm.
        alarm: the check, from 1, at which the evidence reached 1; None as long as the promise may hold.
    """

    checks: int
    errors: int
    evidence: float
    alarm: int | None

    @property
    def text(self) -> str:
        """The result in one line."""
        counted = f"{self.errors} of {self.checks} checked answers are wrong"
        if self.alarm is None:
            return f"{counted}; the promise may hold; evidence {self.evidence:.2g} (1 is an alarm)"
        return f"{counted}: more than was promised, alarm at check {self.alarm}"


def spot_checks(wrong: Any, *, risk: float, false_alarms: float = 0.01, groups: Any = None) -> SpotChecks:
    """Tell whether checked answers are wrong more often than promised.

    Args:
        wrong: (N,) whether checked answers are wrong, drawn at random from those given, in the order of checking: in
            another order every look has a new chance of a false alarm.
        risk: share of wrong answers that was promised.
        false_alarms: chance of ever an alarm although the promise holds.
        groups: (N,) source of each answer (session, person), if all answers of a source were checked. The first
            counts, so all sources count alike: if sources with many answers err less, this share of errors is higher
            than among all answers.

    Raises:
        CertificateError: the risk or the chance of a false alarm is not between 0 and 1, or the risk is below 1e-12.

    Examples:
        >>> print(spot_checks([0, 1, 0, 1, 1, 1, 1, 1], risk=0.05).text)
        6 of 8 checked answers are wrong: more than was promised, alarm at check 8
    """
    check_shares(risk=risk, false_alarms=false_alarms)
    values = arrays.booleans(wrong, "wrong")
    first = first_of_each(groups, len(values))
    values = values[first]
    evidence = running_evidence(values, risk, false_alarms)
    alarms = np.flatnonzero(evidence >= 1)
    alarm = int(first[alarms[0]]) + 1 if len(alarms) else None
    return SpotChecks(len(values), int(values.sum()), float(evidence.max()), alarm)


def running_evidence(wrong: Doubles, risk: float, false_alarms: float) -> Doubles:
    """Return the evidence (N,) after each check `wrong` (N,): `false_alarms` times the mean of the martingales."""
    sums, checks = np.cumsum(wrong), np.arange(1, len(wrong) + 1)
    evidence = false_alarms * (1 - sum(weight for _, weight in HORIZONS)) * _likelihood_ratios(wrong, risk)
    for factor, weight in HORIZONS:
        most, errors = _horizon(_share(factor, risk), risk, weight * false_alarms)
        place = np.minimum(checks, most)
        reached = _tail(errors - sums[place - 1], most - place, risk)
        evidence += weight * false_alarms / float(_tail(errors, most, risk)) * reached
    return evidence


def checks_needed(share: float, *, risk: float, false_alarms: float = 0.01) -> float:
    """Return in how many checks the best test notices, half of the time, that a `share` above `risk` is wrong.

    It is exact to about 1 % where the test needs more than 100 errors, that is, where `share` is near `risk`. It is
    infinite where they are less than a ten-thousandth of `risk` apart.

    Examples:
        >>> [checks_needed(1.5 * risk, risk=risk) for risk in (0.05, 0.1, 0.2)]
        [476, 231, 99]
    """
    check_shares(share=share, risk=risk, false_alarms=false_alarms)
    return math.inf if share <= risk * (1 + 1e-4) else _horizon(share, risk, false_alarms, 0.5)[0]


def _likelihood_ratios(wrong: Doubles, risk: float) -> Doubles:
    """Return the mean over q of L_n(q) (N,)."""
    shares = np.array([_share(factor, risk) for factor in FACTORS])[:, None]
    gains = np.where(wrong == 1, np.log(shares / risk), np.log((1 - shares) / (1 - risk)))
    return np.asarray(np.exp(np.minimum(np.cumsum(gains, axis=1), 700)).mean(axis=0))


@functools.lru_cache
def _horizon(share: float, risk: float, level: float, often: float = OFTEN) -> tuple[int, int]:
    """Return the fewest checks m, and the errors c, at which a test of this level finds `share` with chance `often`."""
    if risk < LEAST_RISK:
        raise CertificateError(f"risk is {risk:g}; spot checks can tell of risks of {LEAST_RISK:g} or more.")

    def finds(errors: int) -> bool:
        return float(_tail(errors, _most_checks(errors, risk, level), share)) >= often

    errors = next((count for count in range(1, COUNTED + 1) if finds(count)), 0)
    if not errors:
        low, errors = COUNTED, 2 * COUNTED
        while not finds(errors):
            low, errors = errors, 2 * errors
        while errors - low > max(low // 1000, 1):
            middle = (low + errors) // 2
            low, errors = (low, middle) if finds(middle) else (middle, errors)
    most = _most_checks(errors, risk, level)
    counts = range(errors, most + 1)  # the tail grows with the checks
    return counts[bisect.bisect_left(counts, often, key=lambda count: float(_tail(errors, count, share)))], errors


def _most_checks(errors: int, risk: float, level: float) -> int:
    """Return the most checks for which the chance of this many `errors` is at most `level`."""
    high = 2 * errors
    while _tail(errors, high, risk) <= level:
        high *= 2
    counts = range(errors, high)
    return errors - 1 + bisect.bisect_right(counts, level, key=lambda count: float(_tail(errors, count, risk)))


def _tail(errors: Any, checks: Any, share: float) -> Doubles:
    """Return P(Binomial(checks, share) >= errors); 1 where errors <= 0, 0 where they are more than the checks."""
    least = np.maximum(errors, 1)
    tail = scipy.special.betainc(least, np.maximum(checks - least, 0) + 1, share)
    return np.asarray(np.where(np.asarray(errors) <= 0, 1.0, np.where(np.asarray(errors) > checks, 0.0, tail)))


def _share(factor: float, risk: float) -> float:
    """Return `factor` times the risk, or half way from the risk to 1 where that is .99 or more."""
    return factor * risk if factor * risk < 0.99 else risk + (1 - risk) * 0.5
