"""Compute retrieval metrics from the ranks of each query's positives.

Notation: a query has n positives (right answers in the gallery; the query itself is left out by index). r_1 < ... < r_n
are their ranks; h(k) = #{j : r_j <= k}; AP(k) = sum over r_j <= k of j / r_j. All metrics are means over queries and
lie in [0, 1]; higher is better.

    recall_at_k        1[r_1 <= k], the "recall@k" of metric learning (Jegou et al. 2011)
    precision_at_k     h(k) / k
    r_precision        h(n) / n                                       Musgrave et al. 2020 (MLRC); paper 004
    map_at_r           AP(n) / n                                      Musgrave et al. 2020 (MLRC); papers 002, 004
    map_at_k           AP(k) / min(n, k) for k = 5, 10, 20, 1000      paper 003 (5, 10, 20); a perfect ranking has 1
    map_at_k_empty_as_one   map_at_k for 5, 10, 20 with 1 for a query without positives: paper 003 as released
    map_at_1000_over_class_size   AP(1000) / (n + 1)                  papers 000, 001 as released; maximum n / (n + 1)
    map_at_class_size  AP(n + 1) / (n + 1)                            papers 000, 001 as released ("mAP@C")
    recall_at_1_empty_as_zero       recall@1 with 0 for a query without positives: "mAP@1" of paper 003 as released
    mrr                1 / r_1
    queries_without_positives     number of queries with n = 0 (a count, not a mean)

Papers 000 and 001 divide by the class size *with* the query, hence n + 1.

The expected value over all orders of tied answers follows McSherry and Najork (2008, "Computing information retrieval
performance measures efficiently in the presence of tied scores"). Answers of equal key form a group. A group comes
after `before` answers, of which `hits` are right, and holds p right and n wrong answers. The place of each right answer
inside its group is uniform:
    E h(k)            += p * q / (p + n),  q = answers of the group among the first k
    E AP(k)           += sum over places t <= q of  p/(p+n) * (hits + 1 + (p-1)(t-1)/(p+n-1)) / (before + t)
    P(no hit by k)     = C(n, q) / C(p + n, q), in the first group that holds a right answer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from probmetric.metrics.arrays import Array, Bools, Doubles, Ints, check_choice, check_mapping, vector
from probmetric.metrics.record import table

Ties = Literal["pessimistic", "expected", "optimistic"]
MAP_CUTOFFS = (5, 10, 20, 1000)
PAIRS = 1 << 15
EMPTY_AS_ONE = (5, 10, 20)

METRICS = table(
    "retrieval val/retrieval last/retrieval retrieval_euclidean retrieval_poincare "
    "retrieval_day_to_night retrieval_night_to_day retrieval_sampled",
    __name__,
    """
    recall_at_{k} | Recall@{k} ↑ | 1 if r₁ ≤ k, else 0: share of queries with a positive among the k nearest images |
        all papers; paper 003 prints recall@1 as "mAP@1", with `empty="zero"`. It is not the recall of information
        retrieval
    recall_at_1_empty_as_zero | Recall@1 (empty as zero) ↑ | recall@1, where a query without positives counts as 0 |
        paper 003 as released
    precision_at_{k} | Precision@{k} ↑ | h(k) / k: share of the k nearest images that are positives | MLRC (k = 1)
    r_precision | R-precision ↑ | h(n) / n: share of the n nearest images that are positives | MLRC, paper 004
    map_at_r | MAP@R ↑ | AP(n) / n: average precision over the n nearest images | papers 002, 004, MLRC
    map_at_5, map_at_10, map_at_20 | MAP@{} ↑ | AP(k) / min(n, k): average precision over the k nearest images; a
        perfect ranking has 1 | paper 003
    map_at_5_empty_as_one, map_at_10_empty_as_one, map_at_20_empty_as_one | MAP@{} (empty as one) ↑ | AP(k) / min(n, k),
        where a query without positives counts as 1 | paper 003 as released; too high on LFW, where most people have one
        image
    map_at_1000 | MAP@1000 ↑ | AP(1000) / min(n, 1000): average precision over the 1,000 nearest images; a perfect
        ranking has 1 | papers 000, 001, with a divisor that a perfect ranking reaches
    map_at_1000_over_class_size | MAP@1000 (over class size) ↑ | AP(1000) / (n + 1): divided by the class size, which
        includes the query | papers 000, 001 as released; at most n / (n + 1)
    map_at_class_size | MAP@class size ↑ | AP(n + 1) / (n + 1): class size, which includes the query, as cutoff and as
        divisor | papers 000, 001 as released ("mAP@C")
    mrr | MRR ↑ | 1 / r₁: inverse rank of the nearest positive
    queries_without_positives | | number of queries that have no positive in the gallery; the means leave them out
    """,
)


@dataclass(frozen=True)
class Counts:
    """Hold counts of queries start..stop-1: `offsets` (stop-start+1,) into flat `above` and `tied`, nearest first."""

    start: int
    stop: int
    offsets: Ints
    above: Ints
    tied: Ints


def query_spans(positives: Ints, pairs: int) -> Iterator[tuple[int, int]]:
    """Yield runs (start, stop) of queries whose `positives` (Q,) sum to at most `pairs` (at least one query)."""
    total, start = np.cumsum(positives), 0
    while start < len(positives):
        before = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, before + pairs, side="right")))
        yield start, stop
        start = stop


def collect(
    blocks: Iterable[Counts], positives: Ints, ks: tuple[int, ...], ties: Ties = "pessimistic"
) -> dict[str, Doubles]:
    """Return every metric for every query (Q,) from the `blocks` of counts, and the number of `positives` (Q,)."""
    result = {name: np.zeros(len(positives)) for name in metric_names(ks)}
    for counts in (part for block in blocks for part in _in_parts(block)):
        for name, values in _metrics_of_block(counts, ks, ties).items():
            result[name][counts.start : counts.stop] = values
    return result | {"positives": positives.astype(np.float64)}


def summarize(values: dict[str, Doubles], *, empty: Literal["skip", "zero"] = "skip") -> dict[str, float]:
    """Return the means of per-query `values` from `retrieval_per_query`, and `queries_without_positives`.

    Queries without positives are left out of the means (`empty` "skip") or count as 0 ("zero").

    Examples:
        >>> counts = Counts(0, 2, np.array([0, 1, 1]), np.array([1]), np.array([0]))  # one positive at rank 2; none
        >>> values = collect([counts], np.array([1, 0]), ks=(1,))
        >>> summarize(values)["mrr"], summarize(values, empty="zero")["mrr"]
        (0.5, 0.25)
    """
    check_choice(empty, "empty", ("skip", "zero"))
    check_mapping(values, "values", "positives", *(f"map_at_{k}" for k in EMPTY_AS_ONE))
    count = len(vector(values["positives"], "positives"))
    values = {name: vector(column, name, count=count) for name, column in values.items()}
    answerable = values["positives"] > 0
    kept = answerable if empty == "skip" else np.ones_like(answerable)
    result = {
        name: float(column[kept].mean()) if kept.any() else float("nan")
        for name, column in values.items()
        if name != "positives"
    }
    for k in EMPTY_AS_ONE:
        result[f"map_at_{k}_empty_as_one"] = float(np.where(answerable, values[f"map_at_{k}"], 1.0).mean())
    if "recall_at_1" in values:
        result["recall_at_1_empty_as_zero"] = float(values["recall_at_1"].mean())
    result["queries_without_positives"] = float(np.count_nonzero(~answerable))
    return result


def _in_parts(counts: Counts) -> Iterator[Counts]:
    """Yield the counts of a few queries at a time: their arrays fit a cache, and new memory costs more than sums."""
    offsets = counts.offsets
    for first, last in query_spans(np.diff(offsets), PAIRS):
        pairs = slice(offsets[first], offsets[last])
        local = offsets[first : last + 1] - offsets[first]
        yield Counts(counts.start + first, counts.start + last, local, counts.above[pairs], counts.tied[pairs])


def metric_names(ks: tuple[int, ...]) -> list[str]:
    """Return the names of the metrics, with recall and precision at the cutoffs `ks`."""
    nothing = np.zeros(0, dtype=np.int64)
    return list(_metrics_of_block(Counts(0, 0, np.zeros(1, dtype=np.int64), nothing, nothing), ks, "pessimistic"))


def _metrics_of_block(counts: Counts, ks: tuple[int, ...], ties: Ties) -> dict[str, Doubles]:
    """Return the metrics of each query of a block, (stop-start,)."""
    within = np.arange(1, len(counts.above) + 1)
    within -= np.repeat(counts.offsets[:-1], np.diff(counts.offsets))
    ranks = counts.above + within
    if ties == "pessimistic":
        ranks += counts.tied
    sums = RankSums(counts.offsets, within, ranks)
    result = metrics_from_sums(sums, ks)
    if ties == "expected":
        _replace_tied(result, counts, ks)
    return result


class RankSums:
    """Sum over the ranks of each query's positives, nearest first; `number` (B,) counts the positives of a query."""

    def __init__(self, offsets: Ints, within: Ints, ranks: Ints) -> None:
        self.number = np.diff(offsets)
        self._some = self.number > 0
        self._starts = offsets[:-1][self._some]
        self._ranks = ranks
        self._precision = within / ranks
        self._kept = np.empty_like(self._precision)
        self._first = np.full(len(self.number), np.inf)
        self._first[self._some] = ranks[self._starts]

    def hits(self, k: Any) -> Doubles:
        """Return h(k) (B,) for one cutoff, or for a cutoff per query (B,)."""
        return self._sum(self._among(k))

    def average_precision(self, k: Any) -> Doubles:
        """Return AP(k) (B,) for one cutoff, or for a cutoff per query (B,)."""
        return self._sum(np.multiply(self._among(k), self._precision, out=self._kept))

    def any_hit(self, k: int) -> Doubles:
        """Return 1 where the nearest positive is among the first k."""
        return (self._first <= k).astype(np.float64)

    def reciprocal_rank(self) -> Doubles:
        """Return 1 / r_1, or 0 without positives."""
        return 1.0 / self._first

    def _among(self, k: Any) -> Bools:
        return self._ranks <= (k if np.ndim(k) == 0 else np.repeat(k, self.number))

    def _sum(self, values: Array) -> Doubles:
        sums = np.zeros(len(self.number))
        if len(self._starts):
            sums[self._some] = np.add.reduceat(values, self._starts, dtype=np.float64)
        return sums


def metrics_from_sums(sums: Any, ks: Iterable[int]) -> dict[str, Doubles]:
    """Return the metrics of the module docstring from `RankSums` or `ExpectedSums`."""
    number = sums.number
    divisor = np.maximum(number, 1)
    result = {f"recall_at_{k}": sums.any_hit(k) for k in ks}
    result |= {f"precision_at_{k}": sums.hits(k) / k for k in ks}
    result["r_precision"] = sums.hits(number) / divisor
    result["map_at_r"] = sums.average_precision(number) / divisor
    for k in MAP_CUTOFFS:
        result[f"map_at_{k}"] = sums.average_precision(k) / np.minimum(divisor, k)
    result["map_at_1000_over_class_size"] = sums.average_precision(1000) / (number + 1)
    result["map_at_class_size"] = sums.average_precision(number + 1) / (number + 1)
    result["mrr"] = sums.reciprocal_rank()
    return result


def _replace_tied(result: dict[str, Doubles], counts: Counts, ks: Iterable[int]) -> None:
    """Overwrite the entries of `result` (B,) for queries with a tie between right and wrong answers."""
    owner = np.repeat(np.arange(counts.stop - counts.start), np.diff(counts.offsets))
    for query in np.unique(owner[counts.tied > 0]):
        part = slice(counts.offsets[query], counts.offsets[query + 1])
        expected = metrics_from_sums(ExpectedSums(counts.above[part], counts.tied[part]), ks)
        for name, value in expected.items():
            result[name][query] = value[0]


class ExpectedSums:
    """Compute the expected `RankSums` of one query from the counts (n,) of its positives, nearest first."""

    def __init__(self, above: Ints, tied: Ints) -> None:
        self.number = np.array([len(above)])
        fresh = (np.diff(above) > 0) | (np.diff(tied) != 0) | (tied[1:] == 0)
        starts = np.flatnonzero(np.r_[True, fresh])
        sizes = np.diff(np.r_[starts, len(above)])
        self._groups = [
            _Group(int(above[s] + s), int(s), int(size), int(tied[s])) for s, size in zip(starts, sizes, strict=True)
        ]

    def hits(self, k: Any) -> Doubles:
        """Return E h(k), shape (1,)."""
        cutoff = int(np.max(k))
        return np.array([sum(g.right * g.within(cutoff) / g.size for g in self._groups)])

    def average_precision(self, k: Any) -> Doubles:
        """Return E AP(k), shape (1,)."""
        cutoff = int(np.max(k))
        return np.array([sum(g.average_precision(cutoff) for g in self._groups)])

    def any_hit(self, k: int) -> Doubles:
        """Return P(at least one hit among the first k), shape (1,)."""
        return np.array([1.0 - self._groups[0].no_hit(self._groups[0].within(k))])

    def reciprocal_rank(self) -> Doubles:
        """Return E 1/r_1, shape (1,)."""
        group = self._groups[0]
        survival = np.cumprod(np.r_[1.0, group.miss_ratios()])
        places = group.before + np.arange(1, group.wrong + 2)
        return np.array([np.sum((survival - np.r_[survival[1:], 0.0]) / places)])


class _Group:
    """Hold the numbers of `right` and `wrong` answers of equal key, after `before` answers with `hits` right ones."""

    def __init__(self, before: int, hits: int, right: int, wrong: int) -> None:
        self.before, self.hits, self.right, self.wrong = before, hits, right, wrong
        self.size = right + wrong

    def within(self, cutoff: int) -> int:
        return min(max(cutoff - self.before, 0), self.size)

    def miss_ratios(self) -> Doubles:
        """Return, for t = 1..wrong, the chance that place t is wrong if all earlier places are wrong."""
        place = np.arange(self.wrong)
        return (self.wrong - place) / (self.size - place)

    def no_hit(self, places: int) -> float:
        return 0.0 if places > self.wrong else float(np.prod(self.miss_ratios()[:places]))

    def average_precision(self, cutoff: int) -> float:
        place = np.arange(1, self.within(cutoff) + 1)
        later = (self.right - 1) * (place - 1) / max(self.size - 1, 1)
        return float(np.sum(self.right / self.size * (self.hits + 1 + later) / (self.before + place)))
