"""Every image of a set asked among the others: retrieval metrics and match record from one pass over all pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probmetric.retrieval._problem import build_problem, numpy_rows
from probmetric.retrieval._rank_metrics import collect
from probmetric.retrieval.match import LONGEST_LIST, NEAREST, Match, find_match
from probmetric.retrieval.measures import retrieval_per_query
from probmetric.retrieval.ranks import FILTERED_DISTANCES, Problem, choose_engine

if TYPE_CHECKING:
    from probmetric.retrieval._nearest_compiled import Lists

PerQuery = dict[str, NDArray[np.float64]]


def asked_among(
    record: Mapping[str, Any], labels: Any, *, ks: Sequence[int] = (1, 2, 4, 8), k: int = NEAREST
) -> tuple[Match, PerQuery]:
    """The match of `find_match` and the metrics of `retrieval_per_query`, each image asked among the others.

    Args:
        record: tensor name -> (N, ...) of the images, with `mean` (N,M), unit rows.
        labels: (N,) classes.
        ks: cutoffs of recall and precision.
        k: neighbours that vote in the match record.
    """
    rows = record["mean"]
    found = _in_one_pass(rows, labels, tuple(dict.fromkeys(ks)), k) if len(rows) > 1 and k <= LONGEST_LIST else None
    lists, per_query = found or (None, retrieval_per_query(rows, labels, ks=ks))
    own = np.arange(len(rows))
    match = find_match(rows, rows, labels, k=k, self_index=own, query=record, gallery_record=record, lists=lists)
    return match, per_query


def _in_one_pass(rows: Any, labels: Any, ks: tuple[int, ...], k: int) -> tuple[Lists, PerQuery] | None:
    """Lists and metrics; None where the compiled path does not pay."""
    problem = build_problem(rows, labels, None, None, None, None, "cosine", False, numpy_rows)
    return _compiled(problem, np.asarray(labels), ks, k) if choose_engine(problem) == "compiled" else None


def _compiled(problem: Problem, labels: NDArray[Any], ks: tuple[int, ...], k: int) -> tuple[Lists, PerQuery] | None:
    try:
        from probmetric.retrieval._nearest_compiled import Lists
        from probmetric.retrieval._ranks_compiled import compiled_counts
    except (ImportError, RuntimeError):  # not installed, or no folder where numba may keep what it compiles
        return None
    lists = Lists(problem.queries, labels.astype(np.int64), k)
    return lists, collect(compiled_counts(problem, lists=lists), problem.relation, ks, "pessimistic")


def load_kernels() -> None:
    """Load the machine code of the compiled path, and compile it where that was never done (some seconds).

    Small problems are worth it from then on, in this process and in those it forks. Where there is no numba, or no
    folder for what it compiles, nothing happens.
    """
    rows = np.eye(4, dtype=np.float32)
    labels = np.arange(len(rows)) % 2
    for distance in FILTERED_DISTANCES:
        problem = build_problem(rows, labels, None, None, None, None, distance, False, numpy_rows)
        if _compiled(problem, labels, ks=(1,), k=1) is None:
            return
