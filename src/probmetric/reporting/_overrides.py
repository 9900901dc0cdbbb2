"""Overrides of runs (`training.epochs=90`), and which of a method's versions is compared with other methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from probmetric.runs.names import EPOCHS, RunKey, override_items

Overrides = frozenset[str]


def overrides_of(key: RunKey) -> Overrides:
    """`{"training.epochs=90", "loss.scale=64"}` for the name of a run."""
    return frozenset(override_items(key.overrides))


def but_for_length(overrides: Overrides) -> Overrides:
    """All but the number of epochs."""
    return frozenset(item for item in overrides if not item.startswith(EPOCHS))


def usual(keys: Iterable[RunKey]) -> Overrides:
    """The overrides that more than half of the methods have; where they have several lengths of training, the longest.

    Empty where no overrides are that common, or several that differ in more than length.
    """
    common = _common(keys)
    if len(common) < 2:
        return common[0] if common else frozenset()
    alike = len({but_for_length(overrides) for overrides in common}) == 1
    return max(common, key=_epochs) if alike and all(map(_epochs, common)) else frozenset()


def other_lengths(keys: Iterable[RunKey]) -> set[str]:
    """Variants of another length of training than most methods, which have theirs as well: shown, but not ranked."""
    keys = list(keys)
    common = _common(keys)
    versions = {(key.method, but_for_length(overrides_of(key))) for key in keys if overrides_of(key) in common}
    others = (key for key in keys if overrides_of(key) not in common)
    return {key.variant for key in others if (key.method, but_for_length(overrides_of(key))) in versions}


def _common(keys: Iterable[RunKey]) -> list[Overrides]:
    methods: dict[Overrides, set[str]] = defaultdict(set)
    for key in keys:
        methods[overrides_of(key)].add(key.method)
    number = len(set().union(*methods.values()))
    return [overrides for overrides, having in methods.items() if 2 * len(having) > number]


def _epochs(overrides: Overrides) -> int:
    """Number of epochs among the overrides; 0 where they do not name it."""
    return max((int(item.removeprefix(EPOCHS)) for item in overrides if item.startswith(EPOCHS)), default=0)
