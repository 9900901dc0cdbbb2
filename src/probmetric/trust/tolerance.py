"""Thresholds that new values exceed at most so often: distribution-free tolerance limits (Wilks 1941).

Notation: v_1, ..., v_n independent values, F their unknown distribution, x the share allowed, 1 - delta the confidence.
With T the (k + 1)-th largest value, the share of new values above T is larger than x with probability at most
P(Binomial(n, x) <= k), for every F; ties make it smaller. The largest k with P(Binomial(n, x) <= k) <= delta is taken.

Values of one person (or pairs that share a person) are not independent. `one_of_each` and `disjoint_pairs` choose
values that are, whatever the values themselves say.
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
    """A threshold that at most a share of new values exceeds.

    Attributes:
        threshold: values strictly above it exceed it.
        bound: upper bound of the share of new values above it, at the confidence asked for.
        values: how many values it rests on, n.
        allowed: how many of them may lie above it, k.
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
        noun: what the values are called in messages.

    Raises:
        CertificateError: too few values for this share and confidence; says how many are needed.

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
    """Return rows (G,) that show every group of `groups` (N,) once, drawn at random."""
    values = arrays.to_numpy(groups)
    order = arrays.generator(seed).permutation(len(values))
    return np.sort(order[np.unique(values[order], return_index=True)[1]])


def disjoint_pairs(identities: Any, *, seed: int = 0) -> Ints:
    """Return rows (K,) of pairs that share no identity, of `identities` (P, 2); rare identities first.

    Examples:
        >>> disjoint_pairs([["a", "b"], ["b", "c"], ["c", "d"]]).tolist()
        [0, 2]
    """
    values = arrays.to_numpy(identities)
    if values.ndim != 2 or values.shape[1] != 2:
        raise ValueError(f"identities has shape {values.shape}; expected (P, 2), the two identities of every pair.")
    numbers = np.unique(values, return_inverse=True)[1].reshape(values.shape)
    degree = np.bincount(numbers.ravel())
    chance = arrays.generator(seed).random(len(values))
    taken = np.zeros(len(degree), dtype=bool)
    rows: list[int] = []
    order = np.lexsort((chance, degree[numbers].sum(axis=1)))
    for row, (first, second) in zip(order.tolist(), numbers[order].tolist(), strict=True):
        if not taken[first] and not taken[second]:
            taken[first] = taken[second] = True
            rows.append(row)
    return np.sort(np.array(rows, dtype=np.int64))
