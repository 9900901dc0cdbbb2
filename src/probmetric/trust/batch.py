"""Accept matches of a batch so that on average few accepted matches are wrong (false discovery rate).

Notation: d_j is the doubt of the answer to query j of the batch; (d_i, w_i) are doubt and error of calibration query i
of n.
Conformal selection (Jin and Candes 2023) gives every answer the p-value of "it is wrong",

    p_j = (1 + #{i: w_i = 1, d_i <= d_j}) / (n + 1),

and accepts by Benjamini and Hochberg's rule: E[wrong accepted / accepted] <= fdr, in finite samples, for every
distribution. The mean is over calibration sets and batches together; a single batch may have more wrong matches.

If you choose the level after a look at the answers, use e-values in place of p-values (Bashari et al. 2023):

    e_j = mean over t of (n + 1) 1{d_j <= t} / (1 + #{i: w_i = 1, d_i <= t}),

with t over the doubts of calibration and batch together. Accepting the largest K answers with K e_(K) >= B / fdr keeps
E[max over levels of (FDR at the level / level)] <= 1. So any level may be chosen afterwards, but fewer answers are
accepted.

Groups (people, sessions): in a calibration group of n_g answers each counts 1 / n_g, and n is the number of groups. If
batch answers come in groups, their p-values depend on each other, so B becomes B (1 + 1/2 + ... + 1/B) (Benjamini and
Yekutieli 2001), which accepts fewer. E-values take one calibration answer of each group. They refuse a batch of groups,
because its doubts are among the t.

The promise needs calibration and batch (or groups of them) to be drawn exchangeably. A batch from elsewhere breaks it,
and so do bursts of one source that are not named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles, Ints
from probmetric.trust.certificates import check_shares, units_of
from probmetric.trust.tolerance import one_of_each

LEVELS = 200


@dataclass(frozen=True)
class Selection:
    """Hold which answers of a batch are accepted.

    Attributes:
        accepted: (B,) whether each answer is accepted.
        fdr: allowed mean share of wrong answers among the accepted ones.
        p_values: (B,) p-value of "the answer is wrong".
    """

    accepted: Bools
    fdr: float
    p_values: Doubles


def select_matches(
    doubt: Any, calibration: tuple[Any, Any], *, fdr: float, groups: Any = None, batch_groups: Any = None
) -> Selection:
    """Accept answers of a batch so that on average at most a share `fdr` of the accepted ones is wrong.

    Args:
        doubt: (B,) doubt of the answers, higher = less sure.
        calibration: doubts (Q,) of calibration answers, and whether they are right (Q,).
        fdr: share of wrong answers allowed among the accepted ones, on average over batches.
        groups: (Q,) group (person, session) of each calibration answer; None where answers are independent.
        batch_groups: (B,) group of each answer of the batch, or None.

    Examples:
        >>> doubts = np.linspace(0, 1, 100)
        >>> chosen = select_matches([0.05, 0.1, 0.9], (doubts, doubts < 0.5), fdr=0.1)
        >>> chosen.accepted.tolist()
        [True, True, False]
    """
    check_shares(fdr=fdr)
    values, calibrated, right = _arguments(doubt, calibration)
    wrong, below, count = _by_groups(calibrated, right, units_of(groups, len(right)))
    p_values = (1 + below[np.searchsorted(wrong, values, side="right")]) / (count + 1)
    size = len(values)
    tests = size * (1 / np.arange(1, size + 1)).sum() if _in_bursts(batch_groups, size) else size
    ordered = np.sort(p_values)
    passed = np.flatnonzero(ordered <= fdr * np.arange(1, size + 1) / tests)
    limit = ordered[passed[-1]] if len(passed) else -np.inf
    return Selection(p_values <= limit, fdr, p_values)


def match_e_values(
    doubt: Any, calibration: tuple[Any, Any], *, groups: Any = None, batch_groups: Any = None
) -> Doubles:
    """Return the e-value (B,) of "the answer is wrong" of every answer; arguments as of `select_matches`.

    Raises:
        ValueError: answers of the batch share a group, which e-values do not allow.

    Examples:
        >>> doubts = np.linspace(0, 1, 100)
        >>> match_e_values([0.05, 0.9], (doubts, doubts < 0.5)).round(1).tolist()
        [49.1, 0.2]
    """
    values, calibrated, right = _arguments(doubt, calibration)
    if _in_bursts(batch_groups, len(values)):
        raise ValueError("answers of the batch share a group; keep one of each group, or take `select_matches`.")
    once = one_of_each(units_of(groups, len(right)))
    calibrated, right = calibrated[once], right[once]
    together = np.sort(np.concatenate([values, calibrated]))
    places = np.unique(np.linspace(0, len(together) - 1, LEVELS).astype(np.int64))
    levels = together[places]
    gains = (len(right) + 1) / (1 + np.searchsorted(np.sort(calibrated[~right]), levels, side="right"))
    later = np.concatenate([np.cumsum(gains[::-1])[::-1], [0.0]])
    return later[np.searchsorted(levels, values, side="left")] / len(levels)


def select_by_e_values(e_values: Any, *, fdr: float) -> Bools:
    """Return which answers (B,) are accepted at level `fdr`, which you may choose after seeing them (e-BH).

    Examples:
        >>> select_by_e_values([40.0, 25.0, 0.1], fdr=0.1).tolist()
        [True, True, False]
    """
    check_shares(fdr=fdr)
    values = arrays.vector(e_values, "e_values")
    ordered = np.sort(values)[::-1]
    passed = np.flatnonzero(np.arange(1, len(values) + 1) * ordered >= len(values) / fdr)
    return values >= (ordered[passed[-1]] if len(passed) else np.inf)


def _in_bursts(groups: Any, size: int) -> bool:
    """Say whether answers of a batch of this `size` share one of their `groups` (B,), or None."""
    return bool(units_of(groups, size, "batch_groups").max() + 1 < size)


def _by_groups(doubts: Doubles, right: Bools, units: Ints) -> tuple[Doubles, Doubles, int]:
    """Return ascending doubts of wrong answers (W,), number of groups below each (W + 1,), and number of all groups."""
    sizes = np.bincount(units)
    order = np.argsort(doubts[~right], kind="stable")
    below = np.append(0.0, np.cumsum(1 / sizes[units[~right][order]]))
    return doubts[~right][order], below, len(sizes)


def _arguments(doubt: Any, calibration: tuple[Any, Any]) -> tuple[Doubles, Doubles, Bools]:
    """Return the doubts of the batch (B,) and of calibration answers (Q,), and whether the latter are right (Q,)."""
    values = arrays.vector(doubt, "doubt")
    if not isinstance(calibration, tuple | list) or len(calibration) != 2:
        raise ValueError("calibration is no pair; expected (doubts (Q,), whether right (Q,)) of calibration answers.")
    calibrated = arrays.vector(calibration[0], "calibration doubt")
    right = arrays.booleans(calibration[1], "calibration right", count=len(calibrated))
    return values, calibrated, right.astype(bool)
