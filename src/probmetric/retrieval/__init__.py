"""Search exactly: nearest rows, ranks of right answers, match record, retrieval metrics.

A module of this package is imported when one of its names is used, and imports NumPy only. Compiled code (numba)
searches large problems; CUDA tensors are searched on their device. All engines give the same order, and rows of equal
key come in the order of their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.retrieval.match import Match, find_match, match_among, match_record
    from probmetric.retrieval.measures import retrieval_metrics, retrieval_per_query, summarize
    from probmetric.retrieval.neighbours import Nearest, search
    from probmetric.retrieval.votes import neighbour_votes, sampled_retrieval_metrics

__all__ = [
    "Match",
    "Nearest",
    "find_match",
    "match_among",
    "match_record",
    "neighbour_votes",
    "retrieval_metrics",
    "retrieval_per_query",
    "sampled_retrieval_metrics",
    "search",
    "summarize",
]

__getattr__ = exported(__name__)
