"""Find thresholds that at most a stated share of new values exceeds: tolerance limits of any distribution (Wilks 1941).

Notation: v_1, ..., v_n are independent values, F is their unknown distribution, x the share allowed, 1 - delta the
confidence. With T the (k + 1)-th largest value, the share of new values above T is larger than x with probability at
most P(Binomial(n, x) <= k), for every F; ties make it smaller. The largest k with P(Binomial(n, x) <= k) <= delta is
taken.

Values of one person (or pairs that share a person) are not independent. `one_of_each` and `disjoint_pairs` choose
independent ones without reading the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Ints
from probmetric.trust.certificates import CertificateError, check_shares, errors_allowed, least_tested, upper_bound


@dataclass(frozen=True)
class Limit:
    """Hold a threshold that at most a stated share of new values exceeds.

    Attributes:
        threshold: the limit; only values strictly above it exceed it.
        bound: upper bound of the share of new values above it, at the confidence asked for.
        values: number n of values it rests on.
        allowed: number k of them that may lie above it.
    """

    threshold: float
    bound: float
    values: int
    allowed: int


def tolerance_limit(values: Any, *, share: float, confidence: float, noun: str = "values") -> Limit:
    """Return the lowest order statistic of `values` (n,) that at most `share` of new values exceeds.

    Args:
        values: independent values (n,).
        share: share of new values allowed above the threshold.
        confidence: chance, over samples of n values, that the promise holds.
        noun: name of the values in messages.

    Raises:
        CertificateError: too few values for this share and confidence; the message says how many are needed.

    Examples:
        >>> limit = tolerance_limit(np.arange(1000.0), share=0.01, confidence=0.9)
        >>> limit.allowed, limit.threshold, round(limit.bound, 4)
        (5, 994.0, 0.0093)
    """
    check_shares(share=share, confidence=confidence)
    ordered = np.sort(arrays.vector(values, noun))[::-1]
    count, needed = len(ordered), least_tested(share, confidence)
    if count < needed:
        raise CertificateError(
            f"{count} {noun}; a share of {share:g} at confidence {confidence:g} needs at least {needed}. Collect more, "
            "or ask for a larger share or a lower confidence."
        )
    allowed = int(errors_allowed(np.array([count]), share, 1 - confidence)[0])
    return Limit(float(ordered[allowed]), upper_bound(allowed, count, confidence), count, allowed)


def one_of_each(groups: Any, *, seed: int = 0) -> Ints:
    """Return one random row of every group in `groups` (N,), as row numbers (G,)."""
    values = arrays.to_numpy(groups)
    order = arrays.generator(seed).permutation(len(values))
    return np.sort(order[np.unique(values[order], return_index=True)[1]])


def disjoint_pairs(identities: Any, *, seed: int = 0) -> Ints:
    """Return rows (K,) of pairs that share no identity, of `identities` (P, 2).

    Identities in random order each take the first free identity they are paired with. So identities with many rows, or
    in many pairs, are not paired with each other more often than by chance.

    Examples:
        >>> disjoint_pairs([["a", "b"], ["c", "d"], ["a", "c"]]).tolist()
        [0, 1]
    """
    values = arrays.to_numpy(identities)
    names, numbers = np.unique(values, return_inverse=True)
    generator = arrays.generator(seed)
    ranks = np.sort(generator.permutation(len(names))[numbers.reshape(values.shape)], axis=1)
    taken = np.zeros(len(names), dtype=bool)
    rows: list[int] = []
    order = np.lexsort((generator.random(len(values)), ranks[:, 1], ranks[:, 0]))
    for row, (first, second) in zip(order.tolist(), ranks[order].tolist(), strict=True):
        if not taken[first] and not taken[second]:
            taken[first] = taken[second] = True
            rows.append(row)
    return np.sort(np.array(rows, dtype=np.int64))
