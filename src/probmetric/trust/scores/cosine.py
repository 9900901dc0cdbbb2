"""1 - cosine to the answer (Zaffar et al. 2024: in place recognition it beats every learnt uncertainty)."""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(free=True)
def cosine(match: Any) -> Any:
    """1 - cosine to the nearest."""
    return 1.0 - match.similarity[:, 0]
