"""Do the nearest images agree on the class?"""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(free=True)
def disagreement(match: Any) -> Any:
    """Share of the 10 nearest of another class than the nearest; not without a second neighbour."""
    return (match.classes != match.classes[:, :1]).mean(axis=1) if match.classes.shape[1] > 1 else None
