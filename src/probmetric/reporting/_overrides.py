"""Overrides of runs (`training.epochs=90`), and which of a method's versions is compared with other methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probmetric.run_names import RunKey

Overrides = frozenset[str]
LENGTH = "training.epochs="


def overrides_of(key: RunKey) -> Overrides:
    """`{"training.epochs=90", "loss.scale=64"}` for the name of a run."""
    return frozenset(filter(None, key.overrides.split("+")))


def but_for_length(overrides: Overrides) -> Overrides:
    """All but the number of epochs."""
    return frozenset(item for item in overrides if not item.startswith(LENGTH))


def usual(keys: Iterable[RunKey]) -> Overrides:
    """The overrides that more than half of the methods have; where they have several lengths of training, the longest.

    Empty where no overrides are that common, or several that differ in more than length.
    """
    methods: dict[Overrides, set[str]] = defaultdict(set)
    for key in keys:
        methods[overrides_of(key)].add(key.method)
    number = len(set().union(*methods.values()))
    common = [overrides for overrides, having in methods.items() if 2 * len(having) > number]
    if len(common) < 2:
        return common[0] if common else frozenset()
    lengths = {overrides: epochs for overrides in common if (epochs := _epochs(overrides))}
    alike = len({but_for_length(overrides) for overrides in common}) == 1
    return max(lengths, key=lengths.__getitem__) if alike and len(lengths) == len(common) else frozenset()


def other_lengths(keys: Iterable[RunKey]) -> set[str]:
    """Variants that repeat a method with another length of training than `usual`: shown, but not ranked with others."""
    keys = list(keys)
    common = usual(keys)
    methods = {key.method for key in keys if overrides_of(key) == common}
    others = (key for key in keys if key.method in methods and overrides_of(key) != common)
    return {key.variant for key in others if but_for_length(overrides_of(key)) == but_for_length(common)}


def _epochs(overrides: Overrides) -> int:
    """Number of epochs among the overrides; 0 where they do not name it."""
    return max((int(item.removeprefix(LENGTH)) for item in overrides if item.startswith(LENGTH)), default=0)
