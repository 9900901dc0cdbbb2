"""Scores that cost nothing: what the search says of an answer."""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(free=True)
def cosine(match: Any) -> Any:
    """1 - cosine to the nearest (Zaffar et al. 2024: for places it beats every learnt uncertainty)."""
    return 1.0 - match.similarity[:, 0]


@score(free=True)
def knn(match: Any) -> Any:
    """1 - cosine to the 10th nearest (Sun et al. 2022, deep nearest neighbours; here of the gallery)."""
    return 1.0 - match.similarity[:, -1]


@score(free=True)
def gap(match: Any) -> Any:
    """Cosine to the nearest of another class - cosine to the nearest; not in a gallery of one class.

    Lowe's ratio test asks the same.
    """
    return None if match.gap is None else -match.gap


@score(free=True)
def disagreement(match: Any) -> Any:
    """Share of the 10 nearest of another class than the nearest; not without a second neighbour."""
    return (match.classes != match.classes[:, :1]).mean(axis=1) if match.classes.shape[1] > 1 else None


@score(free=True)
def entropy(match: Any) -> Any:
    """Entropy of the classes of the 10 nearest; not without a second neighbour."""
    return match.record["entropy"] if match.classes.shape[1] > 1 else None
