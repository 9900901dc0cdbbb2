"""The retrieval metrics as sums over the ranks of each query's positives; defined in `retrieval`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probmetric.retrieval import _expected
from probmetric.retrieval._relation import Relation
from probmetric.retrieval.ranks import Counts, query_spans

Doubles = NDArray[np.float64]
Ties = Literal["pessimistic", "expected", "optimistic"]
MAP_CUTOFFS = (5, 10, 20, 1000)
PAIRS = 1 << 15


def collect(blocks: Iterable[Counts], relation: Relation, ks: tuple[int, ...], ties: Ties) -> dict[str, Doubles]:
    """Every metric for every query (Q,) from the `blocks` of counts, and `positives` (Q,)."""
    names = metric_names(ks)
    result = {name: np.zeros(len(relation.counts)) for name in names}
    for counts in (part for block in blocks for part in _in_parts(block)):
        found = _metrics_of_block(counts, ks, ties)
        for name in names:
            result[name][counts.start : counts.stop] = found[name]
    result["positives"] = relation.counts.astype(np.float64)
    return result


def _in_parts(counts: Counts) -> Iterator[Counts]:
    """`counts` some queries at a time, whose arrays stay in a cache: new memory costs more than the sums."""
    offsets = counts.offsets
    for first, last in query_spans(np.diff(offsets), PAIRS):
        pairs = slice(offsets[first], offsets[last])
        own = offsets[first : last + 1] - offsets[first]
        yield Counts(counts.start + first, counts.start + last, own, counts.above[pairs], counts.tied[pairs])


def metric_names(ks: tuple[int, ...]) -> list[str]:
    """Names of the metrics, with recall and precision at the cutoffs `ks`."""
    names = [f"{kind}_at_{k}" for kind in ("recall", "precision") for k in ks]
    names += ["r_precision", "map_at_r", *(f"map_at_{k}" for k in MAP_CUTOFFS)]
    return [*names, "map_at_1000_over_class_size", "map_at_class_size", "mrr"]


def _metrics_of_block(counts: Counts, ks: tuple[int, ...], ties: Ties) -> dict[str, Doubles]:
    """Per-query metrics (stop-start,) of one block."""
    within = np.arange(1, len(counts.above) + 1)
    within -= np.repeat(counts.offsets[:-1], np.diff(counts.offsets))
    ranks = counts.above + within
    if ties == "pessimistic":
        ranks += counts.tied
    sums = RankSums(counts.offsets, within, ranks)
    result = metrics_from_sums(sums, ks)
    if ties == "expected":
        _expected.replace_tied(result, counts, ks, metrics_from_sums)
    return result


class RankSums:
    """Sums over the ranks of each query's positives, nearest first; `number` (B,) is how many positives a query has."""

    def __init__(self, offsets: NDArray[np.int64], within: NDArray[np.int64], ranks: NDArray[np.int64]) -> None:
        self.number = np.diff(offsets)
        self._some = self.number > 0
        self._starts = offsets[:-1][self._some]
        self._ranks = ranks
        self._precision = within / ranks
        self._kept = np.empty_like(self._precision)
        self._first = np.full(len(self.number), np.inf)
        self._first[self._some] = ranks[self._starts]

    def hits(self, k: Any) -> Doubles:
        """h(k) for a cutoff or one cutoff per query (B,)."""
        return self._sum(self._among(k))

    def average_precision(self, k: Any) -> Doubles:
        """AP(k), not divided, for a cutoff or one cutoff per query (B,)."""
        return self._sum(np.multiply(self._among(k), self._precision, out=self._kept))

    def any_hit(self, k: int) -> Doubles:
        """1 where the nearest positive is among the first k."""
        return (self._first <= k).astype(np.float64)

    def reciprocal_rank(self) -> Doubles:
        """1 / r_1, 0 without positives."""
        return 1.0 / self._first

    def _among(self, k: Any) -> NDArray[np.bool_]:
        return self._ranks <= (k if np.ndim(k) == 0 else np.repeat(k, self.number))

    def _sum(self, values: NDArray[Any]) -> Doubles:
        sums = np.zeros(len(self.number))
        if len(self._starts):
            sums[self._some] = np.add.reduceat(values, self._starts, dtype=np.float64)
        return sums


def metrics_from_sums(sums: Any, ks: Iterable[int]) -> dict[str, Doubles]:
    """The metrics of the module docstring from `RankSums` or its expectation over ties."""
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
