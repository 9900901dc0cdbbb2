"""Compute scores of an answer: doubts (Q,) from the match record and from what the method says of both images.

A score is a function with the score's name; higher = less sure. A free score needs only the search. Other scores name
the tensors of the run's record that they need, and exist only where a method has them.

    from probmetric.trust.scores import score

    @score(free=True)
    def distance_to_second(match):
        '''Cosine distance to the second nearest.'''
        return 1.0 - match.similarity[:, 1]

in a plugin registers your own. `doubts` computes every score whose tensors a match has, in blocks of queries, so a
score must look at each answer alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.metrics.arrays import Doubles
    from probmetric.retrieval.match import Match


F = TypeVar("F", bound=Callable[..., Any])

ROWS = 2048

REGISTRY = Registry("score", "probmetric.trust.scores", context=("match",), constants=("free", "needs"))
list_scores = REGISTRY.names


def score(function: Any = None, /, *, free: bool = False, needs: tuple[str, ...] = ()) -> Any:
    """Register a function of a `Match` as the score named after it.

    Args:
        function: the function, for `@score` without parentheses.
        free: whether the search alone gives the score, so that every method must beat it.
        needs: tensors of the record that the score needs, such as ("concentration",).
    """

    def register(function: F) -> F:
        function.free, function.needs = free, tuple(needs)  # type: ignore[attr-defined]
        return REGISTRY.register(function.__name__)(function)

    return register(function) if function else register


def doubts(match: Match, names: list[str] | None = None) -> dict[str, Doubles]:
    """Return score -> doubt (Q,) for all registered scores (or `names`) whose tensors the match has.

    Raises:
        ValueError: a score returned a wrong shape, or numbers that are not finite; the message names the score.
    """
    by_score = {}
    for name in names or list_scores():
        function: Any = REGISTRY.get(name)
        if all(tensor in match.query and tensor in match.answer for tensor in function.needs):
            values = [function(part) for part in _blocks(match)]
            if all(value is not None for value in values):
                by_score[name] = _joined(name, values, len(match))
    return by_score


def free_scores() -> list[str]:
    """Return the names of the free scores, sorted."""
    return [name for name in list_scores() if REGISTRY.constant(name, "free", False)]


def _blocks(match: Match) -> list[Match]:
    """Return the match in parts of at most `ROWS` queries."""
    return [match.rows(slice(start, start + ROWS)) for start in range(0, max(len(match), 1), ROWS)]


def _joined(name: str, values: Sequence[Any], count: int) -> Doubles:
    import numpy as np

    parts = [np.asarray(value, dtype=np.float64) for value in values]
    array = np.concatenate(parts) if all(part.ndim == 1 for part in parts) else parts[0]
    if array.shape != (count,) or not np.isfinite(array).all():
        raise ValueError(
            f"score {name!r} gave shape {array.shape} or a number that is none; expected ({count},) numbers."
        )
    return array
