"""The method's own uncertainty of the image that was found."""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(needs=("uncertainty",))
def answer_uncertainty(match: Any) -> Any:
    """Own uncertainty of the nearest image."""
    return match.answer["uncertainty"].astype(float)
