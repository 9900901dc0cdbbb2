"""Retrieval metrics from one pass over all pairs.

Notation: a query has n positives (right answers in the gallery, itself left out by index); r_1 < ... < r_n are
their ranks; h(k) = #{j : r_j <= k}; AP(k) = sum over r_j <= k of j / r_j. All metrics lie in [0, 1], higher is
better, and are means over queries.

    recall_at_k        1[r_1 <= k], the "recall@k" of metric learning (Jegou et al. 2011)
    precision_at_k     h(k) / k
    r_precision        h(n) / n                                       Musgrave et al. 2020 (MLRC); paper 004
    map_at_r           AP(n) / n                                      Musgrave et al. 2020 (MLRC); papers 002, 004
    map_at_k           AP(k) / min(n, k) for k = 5, 10, 20, 1000      paper 003 (5, 10, 20); 1000 with an attainable 1
    map_at_k_empty_as_one   the same for 5, 10, 20 with AP := 1 for a query without positives: paper 003 as released
    map_at_1000_over_class_size   AP(1000) / (n + 1)                  papers 000, 001 as released; maximum n / (n + 1)
    map_at_class_size  AP(n + 1) / (n + 1)                            papers 000, 001 as released ("mAP@C")
    recall_at_1_empty_as_zero       queries without a positive are misses: the "mAP@1" of paper 003 as released
    mrr                1 / r_1
    queries_without_positives     number of queries with n = 0 (a count, not a mean)

Papers 000 and 001 divide by the class size *with* the query, hence n + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from probmetric.retrieval.keys import Distance
from probmetric.retrieval.problem import build_problem
from probmetric.retrieval.rank_counts import ranks
from probmetric.retrieval.rank_metrics import Ties, collect

Doubles = NDArray[np.float64]
EMPTY_AS_ONE = (5, 10, 20)
KS = (1, 2, 4, 8)


def retrieval_metrics(
    embeddings: Any,
    labels: Any = None,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    positives: Any = None,
    self_index: Any = None,
    distance: Distance = "cosine",
    ks: Sequence[int] = KS,
    ties: Ties = "pessimistic",
    normalize: bool = False,
) -> dict[str, float]:
    """Return the retrieval metrics of `embeddings` (N,M), each the query once, against the others or a `gallery`.

    Args:
        embeddings: (N,M) queries, and the gallery too when `gallery` is None (self-retrieval: a row never finds
            itself, decided by index, so that exact duplicates stay in play). CUDA tensors are searched where they are.
        labels: (N,) integers from 0; rows with equal labels are each other's positives.
        gallery: (G,M) what is searched, if not the queries themselves.
        gallery_labels: (G,) labels of the gallery.
        positives: instead of labels: SciPy sparse matrix (N,G), integer pairs (P,2) of query and gallery row, or a
            list of gallery rows for each query.
        self_index: (N,) gallery row that *is* the query and is left out, -1 for none; for a gallery that contains the
            queries.
        distance: "cosine" (rows must be unit vectors), "euclidean", "poincare" (rows inside the unit ball), or a
            function (queries (B,M), gallery (G,M)) -> distances (B,G).
        ks: cutoffs of recall and precision.
        ties: a negative exactly as near as a positive ranks before it ("pessimistic"), after it
            ("optimistic"), or the metric is averaged over all orders of the tied ("expected").
        normalize: divide rows by their norms first.

    Returns:
        Flat dict of the metrics in the module docstring, means over the queries that have a positive (`summarize` has
        the other convention); NaN where there is none.

    Examples:
        >>> import numpy as np
        >>> points = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
        >>> metrics = retrieval_metrics(points, [0, 0, 1, 2], ks=(1, 2))
        >>> metrics["recall_at_1"], metrics["queries_without_positives"]
        (0.5, 2.0)
    """
    options = {"gallery": gallery, "gallery_labels": gallery_labels, "positives": positives, "self_index": self_index}
    values = retrieval_per_query(
        embeddings, labels, distance=distance, ks=ks, ties=ties, normalize=normalize, **options
    )
    return summarize(values)


class RetrievalOptions(TypedDict, total=False):
    """Arguments of `retrieval_metrics` after the labels."""

    gallery: Any
    gallery_labels: Any
    positives: Any
    self_index: Any
    distance: Distance
    ks: Sequence[int]
    ties: Ties
    normalize: bool


def retrieval_per_query(embeddings: Any, labels: Any = None, **options: Unpack[RetrievalOptions]) -> dict[str, Doubles]:
    """Return the metrics of `retrieval_metrics` for each query, (N,) arrays, with `positives` (N,), their number.

    Arguments are those of `retrieval_metrics`. A query without positives has 0 everywhere. Use it for paired tests
    and bootstrap intervals over queries, and as correctness in `sparsification`.

    Examples:
        >>> points = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]]
        >>> retrieval_per_query(points, [0, 0, 1, 2])["recall_at_1"].tolist()
        [1.0, 0.0, 0.0, 0.0]
    """
    cutoffs, ties = _cutoffs(options.pop("ks", KS)), options.pop("ties", "pessimistic")
    if ties not in get_args(Ties):
        raise ValueError(f"ties is {ties!r}; allowed: 'pessimistic', 'expected', 'optimistic'.")
    problem = build_problem(embeddings, labels, **options)
    return collect(ranks(problem), problem.relation, cutoffs, ties)


def summarize(values: dict[str, Doubles], *, empty: Literal["skip", "zero"] = "skip") -> dict[str, float]:
    """Return the means of per-query `values` from `retrieval_per_query`, and `queries_without_positives`.

    Queries without positives are left out of the means (`empty` "skip") or count as 0 ("zero").

    Examples:
        >>> points = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]]
        >>> values = retrieval_per_query(points, [0, 0, 1, 2])
        >>> summarize(values)["mrr"], summarize(values, empty="zero")["mrr"]
        (0.75, 0.375)
    """
    if empty not in ("skip", "zero"):
        raise ValueError(f"empty is {empty!r}; allowed: 'skip', 'zero'.")
    asked = values["positives"] > 0
    kept = asked if empty == "skip" else np.ones_like(asked)
    result = {
        name: float(column[kept].mean()) if kept.any() else float("nan")
        for name, column in values.items()
        if name != "positives"
    }
    for k in EMPTY_AS_ONE:
        result[f"map_at_{k}_empty_as_one"] = float(np.where(asked, values[f"map_at_{k}"], 1.0).mean())
    if "recall_at_1" in values:
        result["recall_at_1_empty_as_zero"] = float(values["recall_at_1"].mean())
    result["queries_without_positives"] = float(np.count_nonzero(~asked))
    return result


def _cutoffs(ks: Sequence[int]) -> tuple[int, ...]:
    cutoffs = tuple(dict.fromkeys(int(k) for k in ks))
    if any(k < 1 for k in cutoffs):
        raise ValueError(f"ks is {tuple(ks)}; expected cutoffs of at least 1.")
    return cutoffs
