"""Evaluate sampled embeddings (N,S,M), S draws per image.

Retrieval calibration (paper 003): for each s, the nearest neighbour of every image is found among the s-th samples of
all images. The prediction is the most frequent label of the S neighbours (ties: the lowest label), and its share is the
confidence. Queries without positives are left out. One (N,M) set is searched at a time and only labels are kept, so
memory is that of one search.

Sampled retrieval (paper 002): the retrieval metrics of each sample set, averaged over the S sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Bools, Doubles, Ints
from probmetric.metrics.calibration import Reliability, calibration_error, reliability
from probmetric.retrieval.measures import retrieval_metrics
from probmetric.retrieval.neighbours import search

BINS = 10


def neighbour_votes(samples: Any, labels: Any) -> tuple[Ints, Doubles]:
    """Return the label (N,) with most votes of nearest neighbours in `samples` (N,S,M), and its share (N,) of votes.

    Examples:
        >>> samples = [[[1.0, 0.0], [1.0, 0.1]], [[1.0, 0.1], [1.0, 0.0]], [[0.0, 1.0], [0.9, 0.1]]]
        >>> predicted, confidence = neighbour_votes(samples, [0, 0, 1])
        >>> predicted.tolist(), confidence.tolist()
        ([0, 0, 0], [0.5, 1.0, 1.0])
    """
    from scipy.stats import mode

    sets = _sample_sets(samples)
    classes = arrays.labels_of(labels, sets.shape[0], "labels", "samples")
    names, codes = np.unique(classes, return_inverse=True)
    nearest = (search(sets[:, s], k=1, normalize=True).rows[:, 0] for s in range(sets.shape[1]))
    winner = mode([codes[rows] for rows in nearest], axis=0)
    return names[winner.mode], winner.count / sets.shape[1]


def retrieval_votes(samples: Any, labels: Any) -> tuple[Doubles, Bools]:
    """Return confidence and correctness (A,) of the votes of the A queries whose class has another image.

    Raises:
        ValueError: there is no such query.
    """
    predicted, confidence = neighbour_votes(samples, labels)
    kept = with_partner(labels)
    if not kept.any():
        raise ValueError("no class has two images, so that no query has a right answer; nothing can be calibrated.")
    return confidence[kept], (predicted == arrays.to_numpy(labels))[kept]


def with_partner(labels: Any) -> Bools:
    """Return which images (N,) with these `labels` have another image of their class."""
    _, numbers, counts = np.unique(arrays.to_numpy(labels), return_inverse=True, return_counts=True)
    return np.asarray(counts[numbers] > 1)


def vote_reliability(confidence: Doubles, correct: Bools) -> tuple[dict[str, float], Reliability]:
    """Return `retrieval_ece` and `retrieval_ece_as_published` of votes (A,), and their reliability diagram.

    There are ten bins of equal width, L1; lower is better. `retrieval_ece_as_published` leaves the last bin open, as
    paper 003's code does, and so drops every unanimous vote (NaN if all are unanimous).
    """
    diagram = reliability(confidence, correct, bins=BINS, scheme="equal_width")
    published = float("nan")
    if not np.all(confidence == 1.0):
        published = calibration_error(confidence, correct, bins=BINS, scheme="equal_width", last_bin="open")
    return {"retrieval_ece": diagram.error("l1"), "retrieval_ece_as_published": published}, diagram


def sampled_retrieval_metrics(samples: Any, labels: Any, *, ks: Sequence[int] = (1, 2, 4, 8)) -> dict[str, float]:
    """Return the mean over s of the retrieval metrics of the s-th samples of all images; `samples` (N,S,M), cosine."""
    sets = _sample_sets(samples)
    each = [retrieval_metrics(sets[:, s], labels, ks=ks, normalize=True) for s in range(sets.shape[1])]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def _sample_sets(samples: Any) -> Array:
    sets = arrays.to_numpy(samples)
    if sets.ndim != 3 or 0 in sets.shape or sets.shape[0] < 2:
        raise ValueError(f"samples have shape {sets.shape}; expected (N, S, M) with N at least 2.")
    return sets
