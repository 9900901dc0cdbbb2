"""Expected value of the retrieval metrics over all orders of tied answers.

McSherry and Najork (2008), "Computing information retrieval performance measures efficiently in the presence of tied
scores". Answers are cut into groups of equal key; a group starts after `before` answers, of which `hits` are right,
and holds p right and n wrong ones. The place of each right answer inside its group is uniform:
    E h(k)            += p * q / (p + n),  q = answers of the group among the first k
    E AP(k)           += sum over places t <= q of  p/(p+n) * (hits + 1 + (p-1)(t-1)/(p+n-1)) / (before + t)
    P(no hit by k)     = C(n, q) / C(p + n, q), in the first group that holds a right answer
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.retrieval.ranks import Counts

Doubles = NDArray[np.float64]


def replace_tied(
    result: dict[str, Doubles],
    counts: Counts,
    ks: Iterable[int],
    metrics: Callable[[Any, Iterable[int]], dict[str, Doubles]],
) -> None:
    """Overwrite the entries of `result` (B,) of those queries that have a tie between right and wrong answers."""
    owner = np.repeat(np.arange(counts.stop - counts.start), np.diff(counts.offsets))
    for query in np.unique(owner[counts.tied > 0]):
        mine = slice(counts.offsets[query], counts.offsets[query + 1])
        found = metrics(ExpectedSums(counts.above[mine], counts.tied[mine]), ks)
        for name, value in found.items():
            result[name][query] = value[0]


class ExpectedSums:
    """Expected `RankSums` of one query from the counts (n,) of its positives, nearest first."""

    def __init__(self, above: NDArray[np.int64], tied: NDArray[np.int64]) -> None:
        self.number = np.array([len(above)])
        fresh = (np.diff(above) > 0) | (np.diff(tied) != 0) | (tied[1:] == 0)
        starts = np.flatnonzero(np.r_[True, fresh])
        sizes = np.diff(np.r_[starts, len(above)])
        groups = [
            _Group(int(above[s] + s), int(s), int(size), int(tied[s])) for s, size in zip(starts, sizes, strict=True)
        ]
        self._groups = groups

    def hits(self, k: Any) -> Doubles:
        """E h(k), shape (1,)."""
        cutoff = int(np.max(k))
        return np.array([sum(g.right * g.within(cutoff) / g.size for g in self._groups)])

    def average_precision(self, k: Any) -> Doubles:
        """E AP(k), shape (1,)."""
        cutoff = int(np.max(k))
        return np.array([sum(g.average_precision(cutoff) for g in self._groups)])

    def any_hit(self, k: int) -> Doubles:
        """P(at least one hit among the first k), shape (1,)."""
        return np.array([1.0 - self._groups[0].no_hit(self._groups[0].within(k))])

    def reciprocal_rank(self) -> Doubles:
        """E 1/r_1, shape (1,)."""
        group = self._groups[0]
        survival = np.cumprod(np.r_[1.0, group.miss_ratios()])
        places = group.before + np.arange(1, group.wrong + 2)
        return np.array([np.sum((survival - np.r_[survival[1:], 0.0]) / places)])


class _Group:
    """Answers of equal key: `right` and `wrong` ones after `before` others, `hits` of those right."""

    def __init__(self, before: int, hits: int, right: int, wrong: int) -> None:
        self.before, self.hits, self.right, self.wrong = before, hits, right, wrong
        self.size = right + wrong

    def within(self, cutoff: int) -> int:
        return min(max(cutoff - self.before, 0), self.size)

    def miss_ratios(self) -> Doubles:
        """Chance that place t is wrong given that all earlier places are, t = 1..wrong."""
        place = np.arange(self.wrong)
        return (self.wrong - place) / (self.size - place)

    def no_hit(self, places: int) -> float:
        return 0.0 if places > self.wrong else float(np.prod(self.miss_ratios()[:places]))

    def average_precision(self, cutoff: int) -> float:
        place = np.arange(1, self.within(cutoff) + 1)
        later = (self.right - 1) * (place - 1) / max(self.size - 1, 1)
        return float(np.sum(self.right / self.size * (self.hits + 1 + later) / (self.before + place)))
