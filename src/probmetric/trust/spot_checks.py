"""Spot checks: is more wrong than was promised? A running test on answers whose truth somebody looked up.

Notation: w_i in {0, 1} whether checked answer i is wrong, alpha the risk promised, q > alpha a share of errors to be
noticed. The likelihood ratio

    L_n(q) = prod_i (q / alpha)^w_i ((1 - q) / (1 - alpha))^(1 - w_i) = prod_i (1 + lambda (w_i - alpha)),  lambda > 0

has mean at most 1 as long as the true share is at most alpha: a wager on more errors. So has the mean of L_n over
several q, and the chance that it ever reaches 1 / delta is at most delta, however long one looks (Ville 1939;
Waudby-Smith and Ramdas 2023). To notice q takes about log(1 / delta) / KL(q, alpha) checks, whatever the method. With
1 % false alarms the median of 300 runs is

    risk promised      1.5 times as many errors      twice      three times
         .05                    939                   237            67
         .10                    395                   119            34
         .20                    174                    47            14
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.trust.certificates import check_shares

FACTORS = (1.25, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True)
class SpotChecks:
    """What checked answers say about a promise.

    Attributes:
        checks: answers checked.
        errors: those that were wrong.
        evidence: 1 is an alarm; the largest so far.
        alarm: the check at which it was reached, from 1; None as long as the promise may hold.
    """

    checks: int
    errors: int
    evidence: float
    alarm: int | None

    @property
    def text(self) -> str:
        """A line for people."""
        counted = f"{self.errors} of {self.checks} checked answers are wrong"
        if self.alarm is None:
            return f"{counted}; the promise may hold; evidence {self.evidence:.2g} of the 1 that is an alarm"
        return f"{counted}: more than was promised, alarm at check {self.alarm}"


def spot_checks(wrong: Any, *, risk: float, false_alarms: float = 0.01) -> SpotChecks:
    """Tell whether checked answers are wrong more often than promised.

    Args:
        wrong: (N,) whether checked answers are wrong, drawn at random from those given, in the order of checking.
        risk: share of wrong answers that was promised.
        false_alarms: chance of ever an alarm although the promise holds.

    Examples:
        >>> print(spot_checks([0, 1, 0, 1, 1, 1, 1], risk=0.05).text)
        5 of 7 checked answers are wrong: more than was promised, alarm at check 7
    """
    check_shares(risk=risk, false_alarms=false_alarms)
    values = arrays.booleans(wrong, "wrong")
    shares = _shares(risk)[:, None]
    gains = np.where(values == 1, np.log(shares / risk), np.log((1 - shares) / (1 - risk)))
    logs = np.cumsum(gains, axis=1)
    highest = logs.max(axis=0)
    evidence = false_alarms * np.exp(np.minimum(highest, 700)) * np.exp(logs - highest).mean(axis=0)
    reached = np.flatnonzero(evidence >= 1)
    alarm = int(reached[0]) + 1 if len(reached) else None
    return SpotChecks(len(values), int(values.sum()), float(evidence.max()), alarm)


def checks_needed(share: float, *, risk: float, false_alarms: float = 0.01) -> float:
    """Return about how many checks it takes to notice that a `share` of the answers is wrong, not `risk`.

    Examples:
        >>> [round(checks_needed(1.5 * risk, risk=risk), -1) for risk in (0.05, 0.2)]
        [800.0, 160.0]
    """
    check_shares(share=share, risk=risk, false_alarms=false_alarms)
    if share <= risk:
        return math.inf
    nats = share * math.log(share / risk) + (1 - share) * math.log((1 - share) / (1 - risk))
    return math.log(1 / false_alarms) / nats


def _shares(risk: float) -> Any:
    """Return the shares of errors (K,) that are wagered on: multiples of the risk, as far as they are shares."""
    multiples = np.array(FACTORS) * risk
    return np.where(multiples < 0.99, multiples, risk + (1 - risk) * 0.5)
