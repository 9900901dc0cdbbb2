"""Score an answer by the search alone, at no further cost."""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(free=True)
def cosine(match: Any) -> Any:
    """Return 1 - cosine to the nearest image (Zaffar et al. 2024: for places it beats every learnt uncertainty)."""
    return 1.0 - match.similarity[:, 0]


@score(free=True)
def knn(match: Any) -> Any:
    """Return 1 - cosine to the 10th nearest gallery image (Sun et al. 2022, deep nearest neighbours)."""
    return 1.0 - match.similarity[:, -1]


@score(free=True)
def gap(match: Any) -> Any:
    """Return cosine to the nearest image of another class - cosine to the nearest; needs two classes in the gallery.

    Lowe's ratio test compares the same two images.
    """
    return None if match.gap is None else -match.gap


@score(free=True)
def disagreement(match: Any) -> Any:
    """Return the share of the 10 nearest whose class differs from that of the nearest; needs a second neighbour."""
    return (match.classes != match.classes[:, :1]).mean(axis=1) if match.classes.shape[1] > 1 else None


@score(free=True)
def entropy(match: Any) -> Any:
    """Return the entropy of the classes of the 10 nearest; needs a second neighbour."""
    return match.record["entropy"] if match.classes.shape[1] > 1 else None
