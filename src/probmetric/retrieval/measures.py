"""Compute the retrieval metrics of `probmetric.metrics.ranked` from one pass over all pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_args

import numpy as np

from probmetric.metrics.arrays import Doubles, check_choice, check_count
from probmetric.metrics.ranked import Ties, collect, summarize
from probmetric.retrieval.keys import Distance
from probmetric.retrieval.problem import SearchOptions, build_problem
from probmetric.retrieval.rank_counts import ranks

KS = (1, 2, 4, 8)


def retrieval_metrics(
    embeddings: Any,
    labels: Any = None,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    positives: Any = None,
    self_index: Any = None,
    ignore: Any = None,
    distance: Distance = "cosine",
    ks: Sequence[int] = KS,
    ties: Ties = "pessimistic",
    normalize: bool = False,
) -> dict[str, float]:
    """Return the retrieval metrics of `embeddings` (N,M), each row asked once among the others or in a `gallery`.

    Args:
        embeddings: (N,M) queries; also the gallery when `gallery` is None. Then a row never finds itself; this goes by
            row number, so exact duplicates are still found. CUDA tensors are searched on their device.
        labels: (N,) integers from 0; rows with equal labels are each other's positives.
        gallery: (G,M) rows to search, if they are not the queries themselves.
        gallery_labels: (G,) labels of the gallery; -1 for junk, which is neither right nor wrong.
        positives: instead of labels: a bool array or SciPy sparse matrix (N,G), an integer array (P,2) of pairs of
            query and gallery row, or a list of gallery rows for each query.
        self_index: (N,) gallery row that *is* the query and is left out, -1 for none; for a gallery that contains the
            queries.
        ignore: gallery rows that are neither right nor wrong for a query, such as images of the same person by the
            same camera: (N,G) bool, or a form of `positives`.
        distance: "cosine" (rows must be unit vectors), "euclidean", "poincare" (rows inside the unit ball), or a
            function (queries (B,M), gallery (G,M)) -> distances (B,G).
        ks: cutoffs of recall and precision.
        ties: a negative exactly as near as a positive ranks before it ("pessimistic"), after it
            ("optimistic"), or the metric is averaged over all orders of tied answers ("expected").
        normalize: divide rows by their norms first.

    Returns:
        Flat dict of the metrics of `probmetric.metrics.ranked`: means over queries that have a positive (`summarize`
        can also count the others as 0), NaN where no query has one.

    Examples:
        >>> import numpy as np
        >>> points = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
        >>> metrics = retrieval_metrics(points, [0, 0, 1, 2], ks=(1, 2))
        >>> metrics["recall_at_1"], metrics["queries_without_positives"]
        (0.5, 2.0)
    """
    options = SearchOptions(
        gallery=gallery,
        gallery_labels=gallery_labels,
        positives=positives,
        self_index=self_index,
        ignore=ignore,
        distance=distance,
        normalize=normalize,
    )
    return summarize(retrieval_per_query(embeddings, labels, ks=ks, ties=ties, **options))


def retrieval_per_query(
    embeddings: Any,
    labels: Any = None,
    *,
    ks: Sequence[int] = KS,
    ties: Ties = "pessimistic",
    **options: Unpack[SearchOptions],
) -> dict[str, Doubles]:
    """Return the metrics of `retrieval_metrics` for each query (N,), with the number of its `positives` (N,).

    Arguments are those of `retrieval_metrics`. A query without positives has 0 everywhere. Use the arrays for paired
    tests and bootstrap intervals over queries, and `recall_at_1` as correctness in `sparsification`.

    Examples:
        >>> points = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]]
        >>> retrieval_per_query(points, [0, 0, 1, 2])["recall_at_1"].tolist()
        [1.0, 0.0, 0.0, 0.0]
    """
    cutoffs = checked_cutoffs(ks)
    check_choice(ties, "ties", get_args(Ties))
    problem = build_problem(embeddings, labels, **options)
    return collect(ranks(problem), problem.relation.counts, cutoffs, ties)


def checked_cutoffs(ks: Any) -> tuple[int, ...]:
    """Return the cutoffs, each once.

    Raises:
        ValueError: `ks` is not a sequence of integers from 1 up.
    """
    if not np.iterable(ks) or isinstance(ks, str | bytes | Mapping):
        raise ValueError(f"ks is {ks!r}; expected a sequence of integers, such as {KS}.")
    for k in (values := tuple(ks)):
        check_count(k, "a cutoff in ks")
    return tuple(dict.fromkeys(map(int, values)))
