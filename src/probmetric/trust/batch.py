"""Matches of a batch, chosen so that few of those accepted are wrong on average (false discovery rate).

Notation: d_j doubt of the answer to query j of the batch; (d_i, w_i) doubt and error of calibration query i of n.
Conformal selection (Jin and Candes 2023) gives every answer the p-value of "it is wrong",

    p_j = (1 + #{i: w_i = 1, d_i <= d_j}) / (n + 1),

and accepts by Benjamini and Hochberg's rule: E[wrong accepted / accepted] <= fdr, in finite samples, whatever the
distribution. The mean is over calibration sets and batches together; one batch may have more.

Where the level is chosen after a look at the answers, e-values take the place of p-values (Bashari et al. 2023):

    e_j = mean over t of (n + 1) 1{d_j <= t} / (1 + #{i: w_i = 1, d_i <= t}),

t over the doubts of calibration and batch together. Accepting the largest K answers with K e_(K) >= B / fdr keeps
E[max over levels of (FDR at the level / level)] <= 1, so that any level may be picked afterwards; fewer are accepted.

Where calibration answers come in groups (people, sessions) of n_g answers, each counts 1 / n_g and n is the number of
groups. Where answers of the batch do, their p-values depend on each other: B becomes B (1 + 1/2 + ... + 1/B) (Benjamini
and Yekutieli 2001), which accepts fewer. E-values take one calibration answer of each group, and no batch of groups:
its doubts are among the t.

What is drawn: calibration and batch, exchangeably, or groups of them. What breaks it: a batch from elsewhere,
bursts of one source that are not named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles, Ints
from probmetric.trust.certificates import check_shares
from probmetric.trust.tolerance import one_of_each

LEVELS = 200


@dataclass(frozen=True)
class Selection:
    """Answers of a batch that are accepted.

    Attributes:
        accepted: (B,) which answers.
        fdr: mean share of wrong ones among them that is allowed.
        p_values: (B,) of "the answer is wrong".
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
        groups: (Q,) what calibration answers come from together; None where they are independent.
        batch_groups: (B,) the same of the batch.

    Examples:
        >>> doubts = np.linspace(0, 1, 100)
        >>> chosen = select_matches([0.05, 0.1, 0.9], (doubts, doubts < 0.5), fdr=0.1)
        >>> chosen.accepted.tolist()
        [True, True, False]
    """
    check_shares(fdr=fdr)
    values, calibrated, right = _arguments(doubt, calibration)
    wrong, count, size = np.sort(calibrated[~right]), len(right), len(values)
    below = np.arange(len(wrong) + 1.0)
    if groups is not None:
        wrong, below, count = _by_groups(calibrated, right, arrays.names_of(groups, "groups", count=count)[1])
    p_values = (1 + below[np.searchsorted(wrong, values, side="right")]) / (count + 1)
    bursts = batch_groups is not None and len(arrays.names_of(batch_groups, "batch_groups", count=size)[0]) < size
    tests = size * (1 / np.arange(1, size + 1)).sum() if bursts else size
    ordered = np.sort(p_values)
    passed = np.flatnonzero(ordered <= fdr * np.arange(1, size + 1) / tests)
    limit = ordered[passed[-1]] if len(passed) else -np.inf
    return Selection(p_values <= limit, fdr, p_values)


def match_e_values(
    doubt: Any, calibration: tuple[Any, Any], *, groups: Any = None, batch_groups: Any = None
) -> Doubles:
    """Return the e-value (B,) of "the answer is wrong" of every answer; arguments as of `select_matches`.

    Raises:
        ValueError: answers of the batch come together, which e-values do not allow for.

    Examples:
        >>> doubts = np.linspace(0, 1, 100)
        >>> match_e_values([0.05, 0.9], (doubts, doubts < 0.5)).round(1).tolist()
        [49.1, 0.2]
    """
    values, calibrated, right = _arguments(doubt, calibration)
    size = len(values)
    if batch_groups is not None and len(arrays.names_of(batch_groups, "batch_groups", count=size)[0]) < size:
        raise ValueError("answers of the batch share a group; keep one of each group, or take `select_matches`.")
    if groups is not None:
        once = one_of_each(arrays.names_of(groups, "groups", count=len(right))[1])
        calibrated, right = calibrated[once], right[once]
    together = np.sort(np.concatenate([values, calibrated]))
    places = np.unique(np.linspace(0, len(together) - 1, LEVELS).astype(np.int64))
    levels = together[places]
    gains = (len(right) + 1) / (1 + np.searchsorted(np.sort(calibrated[~right]), levels, side="right"))
    later = np.concatenate([np.cumsum(gains[::-1])[::-1], [0.0]])
    return later[np.searchsorted(levels, values, side="left")] / len(levels)


def select_by_e_values(e_values: Any, *, fdr: float) -> Bools:
    """Return which answers (B,) are accepted at the level `fdr`, which may be chosen after a look at them (e-BH).

    Examples:
        >>> select_by_e_values([40.0, 25.0, 0.1], fdr=0.1).tolist()
        [True, True, False]
    """
    check_shares(fdr=fdr)
    values = arrays.vector(e_values, "e_values")
    ordered = np.sort(values)[::-1]
    passed = np.flatnonzero(np.arange(1, len(values) + 1) * ordered >= len(values) / fdr)
    return values >= (ordered[passed[-1]] if len(passed) else np.inf)


def _by_groups(doubts: Doubles, right: Bools, units: Ints) -> tuple[Doubles, Doubles, int]:
    """Return the ascending doubts of wrong answers (W,), how many groups lie below each (W + 1,), and all groups."""
    sizes = np.bincount(units)
    order = np.argsort(doubts[~right], kind="stable")
    below = np.append(0.0, np.cumsum(1 / sizes[units[~right][order]]))
    return doubts[~right][order], below, len(sizes)


def _arguments(doubt: Any, calibration: tuple[Any, Any]) -> tuple[Doubles, Doubles, Bools]:
    """Return the doubts of the batch (B,), those of calibration answers (Q,), and whether these are right (Q,)."""
    values = arrays.vector(doubt, "doubt")
    if not isinstance(calibration, tuple | list) or len(calibration) != 2:
        raise ValueError("calibration is no pair; expected (doubts (Q,), whether right (Q,)) of calibration answers.")
    calibrated = arrays.vector(calibration[0], "calibration doubt")
    right = arrays.booleans(calibration[1], "calibration right", count=len(calibrated))
    return values, calibrated, right.astype(bool)
