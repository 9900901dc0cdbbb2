"""The one exact search: ranks, neighbours, match record. Importing this package loads NumPy only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.retrieval.gallery import Gallery, GalleryIndex
    from probmetric.retrieval.match import match_scores
    from probmetric.retrieval.measures import retrieval_metrics, retrieval_per_query, summarize
    from probmetric.retrieval.neighbours import Neighbours, nearest_neighbours
    from probmetric.retrieval.sampled import neighbour_votes, retrieval_calibration, sampled_retrieval_metrics

__all__ = [
    "Gallery",
    "GalleryIndex",
    "Neighbours",
    "match_scores",
    "nearest_neighbours",
    "neighbour_votes",
    "retrieval_calibration",
    "retrieval_metrics",
    "retrieval_per_query",
    "sampled_retrieval_metrics",
    "summarize",
]

__getattr__ = exported(
    __name__,
    {
        "Gallery": "gallery",
        "GalleryIndex": "gallery",
        "match_scores": "match",
        "Neighbours": "neighbours",
        "nearest_neighbours": "neighbours",
        "retrieval_metrics": "measures",
        "retrieval_per_query": "measures",
        "summarize": "measures",
        "neighbour_votes": "sampled",
        "retrieval_calibration": "sampled",
        "sampled_retrieval_metrics": "sampled",
    },
)
