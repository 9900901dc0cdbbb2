"""The one exact search: nearest rows, ranks of right answers, match record, retrieval metrics.

A module of this package is imported when one of its names is used, and imports NumPy only. Large problems are searched
by compiled code (numba), CUDA tensors on their device; all engines give the same order, equal keys by row number.
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
