"""Make sets of classes that hold the right one: split conformal prediction (Vovk et al. 2005, Sadinle 2019).

Notation: s(x, c) is the doubt that query x is of class c, higher = less likely. For example, it is the cosine of the
nearest image of all minus that of the nearest image of c, or 1 - P(c | x). s_(k) is the k-th smallest doubt of the
right class among n calibration queries, k = ceil((n + 1)(1 - miss)). The set {c: s(x, c) <= s_(k)} holds the right
class of a new query with probability at least 1 - miss, over calibration sets and queries, for every distribution. Sets
are small where the answer is sure.

    marginal    the promise is for all queries together; some classes may be missed more often, others less
    per class   the promise is for the queries of every class by itself; a class with fewer than 1 / miss - 1
                calibration queries is put into every set
    groups      queries come together (people, sessions) in groups of n_g: each query counts 1 / n_g, and the threshold
                is the smallest doubt below which (G + 1)(1 - miss) groups lie (Lee, Barber and Willett 2023,
                hierarchical conformal prediction); the promise is for a query of a new group

Queries, or groups of them, must be drawn exchangeably. Queries of classes outside the gallery break the promise, and so
do bursts that are not named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles, Ints
from probmetric.trust.certificates import check_shares, units_of


@dataclass(frozen=True)
class CoverageSets:
    """Hold a threshold for each class; `members` makes the sets.

    Attributes:
        thresholds: (C,) a class is in the set if its doubt is at most its threshold; with infinity, always.
        miss: share of queries whose set may lack the right class.
        per_class: whether the promise holds for every class by itself.
        queries: number of calibration queries.
    """

    thresholds: Doubles
    miss: float
    per_class: bool
    queries: int

    def members(self, class_doubt: Any) -> Bools:
        """Return which classes are in the set of each query (Q, C), of `class_doubt` (Q, C)."""
        doubts = arrays.numbers(class_doubt, "class_doubt", "(N, C)")
        if doubts.shape[1] != len(self.thresholds):
            raise ValueError(f"class_doubt has {doubts.shape[1]} classes; calibration had {len(self.thresholds)}.")
        return doubts <= self.thresholds


def coverage_sets(
    class_doubt: Any, labels: Any, *, miss: float = 0.1, per_class: bool = False, groups: Any = None
) -> CoverageSets:
    """Fit thresholds so that sets hold the right class with probability at least 1 - `miss`.

    Args:
        class_doubt: (N, C) doubt that each calibration query is of each class.
        labels: (N,) classes of the queries, as columns of `class_doubt`.
        miss: share of queries whose set may lack the right class.
        per_class: make the promise for every class by itself.
        groups: (N,) group of each query, if queries are not independent draws.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> labels = generator.integers(0, 3, size=300)
        >>> doubts = generator.random((300, 3)) + (np.arange(3) != labels[:, None])
        >>> sets = coverage_sets(doubts, labels, miss=0.1)
        >>> sets.members([[0.1, 1.2, 1.5]]).tolist()
        [[True, False, False]]
    """
    check_shares(miss=miss)
    doubts = arrays.numbers(class_doubt, "class_doubt", "(N, C)")
    classes = arrays.labels_of(labels, len(doubts), "labels", "class_doubt")
    if classes.max() >= doubts.shape[1]:
        raise ValueError(f"labels go up to {classes.max()}; class_doubt has {doubts.shape[1]} columns, from 0 up.")
    true = doubts[np.arange(len(doubts)), classes]
    units = units_of(groups, len(true))
    if per_class:
        parts = [classes == number for number in range(doubts.shape[1])]
        thresholds = np.array([_quantile(true[part], units[part], miss) for part in parts])
    else:
        thresholds = np.full(doubts.shape[1], _quantile(true, units, miss))
    return CoverageSets(thresholds, miss, per_class, len(doubts))


def _quantile(doubts: Doubles, units: Ints, miss: float) -> float:
    """Return the smallest doubt below which (G + 1)(1 - miss) of the G groups `units` (N,) lie; infinite if none is."""
    if not len(doubts):
        return math.inf
    numbers, sizes = np.unique(units, return_inverse=True, return_counts=True)[1:]
    order = np.argsort(doubts, kind="stable")
    below = np.cumsum(1 / sizes[numbers][order])
    enough = np.flatnonzero(below >= (len(sizes) + 1) * (1 - miss) - 1e-9)
    return float(doubts[order[enough[0]]]) if len(enough) else math.inf
