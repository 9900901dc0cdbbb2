"""How many classes are nearby?"""

from __future__ import annotations

from typing import Any

from probmetric.trust.scores import score


@score(free=True)
def entropy(match: Any) -> Any:
    """Entropy of the classes of the 10 nearest; not without a second neighbour."""
    return match.record["entropy"] if match.classes.shape[1] > 1 else None
