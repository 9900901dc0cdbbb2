"""The gap between the answer and the nearest image of another class (Lowe's ratio test asks the same)."""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(free=True)
def gap(match: Any) -> Any:
    """Cosine to the nearest of another class - cosine to the nearest; not in a gallery of one class."""
    return None if match.gap is None else -match.gap
