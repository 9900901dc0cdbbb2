"""What a certificate is worth on a test set: each half is answered with the certificate of the other half.

A test set has no calibration queries of its own. Queries are split at random; a certificate made from one half decides
which queries of the other half are answered. So every query is judged by a certificate that has not seen it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.trust.certificates import CertificateError, certify

LEAST = 2  # queries, one for each half


@dataclass(frozen=True)
class Halves:
    """Shares of all queries.

    Attributes:
        answered: share of the queries that are answered.
        wrong: share of the queries that are answered wrongly; `wrong / answered` is the risk.
        certified: halves, of two, from which a threshold could be certified.
    """

    answered: float
    wrong: float
    certified: int


def certify_halves(doubt: Any, right: Any, *, risk: float, confidence: float = 0.9, seed: int = 0) -> Halves:
    """Answer each half of the queries with the certificate of the other half.

    Args:
        doubt: (Q,) doubt of the answers, higher = less sure.
        right: (Q,) whether they are right.
        risk: share of wrong answers allowed among those given.
        confidence: chance that the promise of one certificate holds.
        seed: of the split and of the pilots.

    Returns:
        Shares of the queries that are answered, and answered wrongly. Nothing is answered with a half that is too small
        or too often wrong to certify anything.

    Raises:
        ValueError: lengths that differ, numbers that are not finite, fewer than two queries.
    """
    doubts = arrays.vector(doubt, "doubt")
    wrong = arrays.booleans(right, "right", count=len(doubts)) < 0.5
    if len(doubts) < LEAST:
        raise ValueError(f"doubt has {len(doubts)} entries; two halves need at least {LEAST}.")
    first = np.zeros(len(doubts), dtype=bool)
    first[np.random.default_rng(seed).permutation(len(doubts))[: len(doubts) // 2]] = True
    answered = np.zeros(len(doubts), dtype=bool)
    certified = 0
    for half in (first, ~first):
        try:
            made = certify(doubts[half], ~wrong[half], risk=risk, confidence=confidence, seed=seed)
        except CertificateError:
            continue
        if made.threshold is not None:
            certified += 1
            answered |= ~half & (doubts <= made.threshold)
    return Halves(float(answered.mean()), float((answered & wrong).mean()), certified)
