"""Distance to the k-th nearest image (Sun et al. 2022, deep nearest neighbours), here of the gallery."""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(free=True)
def knn(match: Any) -> Any:
    """1 - cosine to the 10th nearest."""
    return 1.0 - match.similarity[:, -1]
