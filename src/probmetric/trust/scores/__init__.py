"""Scores of an answer: from the match record, and what the method says of both images, to a doubt (Q,).

A score is a function, named as it is; higher = less sure. Free ones need nothing but the search; the others name the
tensors of the run's record that they need and exist only where a method has them.

    from probmetric.trust.scores import score

    @score(free=True)
    def distance_to_second(match):
        '''Cosine distance to the second nearest.'''
        return 1.0 - match.similarity[:, 1]

in a plugin registers one of your own. `doubts` computes every score whose tensors a match has, in blocks of queries: a
score looks at each answer alone, as a search for a single image does.
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
        function: of `@score` without parentheses.
        free: whether the search alone gives it, so that every method must beat it.
        needs: tensors of the record without which it does not exist, such as ("concentration",).
    """

    def register(function: F) -> F:
        function.free, function.needs = free, tuple(needs)  # type: ignore[attr-defined]
        return REGISTRY.register(function.__name__)(function)

    return register(function) if function else register


def doubts(match: Match, names: list[str] | None = None) -> dict[str, Doubles]:
    """Score -> doubt (Q,) of each answer, of all registered scores (or of `names`) that the match has the tensors for.

    Raises:
        ValueError: a score returned another shape, or numbers that are not finite; names it.
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
    """Names of the scores that cost nothing, sorted."""
    return [name for name in list_scores() if REGISTRY.constant(name, "free", False)]


def _blocks(match: Match) -> list[Match]:
    """The match in parts of at most `ROWS` queries."""
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
