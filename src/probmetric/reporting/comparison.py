"""Seeds -> mean, interval, best method, which others are worse, which cannot be told apart from it, which are untested.

Within one dataset and noise rate methods are compared on the seeds they share (paired test), every pair of them, with
Holm's correction over all pairs: the best is chosen by looking at all methods, so being compared with it is being
compared with all. Intervals and tests take the test images for a sample too, where the runs say what single images
contribute or what the standard error over them is. A method's versions of another length of training are not compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from probmetric.metrics import better, find
from probmetric.runs.names import EPOCHS, RunKey, override_items

if TYPE_CHECKING:
    from probmetric.metrics.statistics import Doubles

LEVEL = 0.05
Overrides = frozenset[str]

State = Literal["best", "not worse", "worse", "untested", "other length", ""]
Images = Mapping[str, Mapping[int, "Doubles"]]


@dataclass(frozen=True)
class Cell:
    """One metric of one method over seeds.

    Attributes:
        mean: mean over seeds.
        half_width: half of the 95 % interval; None with a single seed.
        n: seeds with a value.
        state: `best` mean of its dataset, noise rate and metric, `not worse` than it as far as can be told,
            significantly `worse`, `untested` (fewer than three shared seeds, or nothing varies with the seed), of an
            `other length` of training, so not compared; empty where no methods are.
        p_value: p-value against the best, corrected over all pairs; None for the best itself or where untested.
        difference: mean paired difference to the best, None likewise.
    """

    mean: float
    half_width: float | None
    n: int
    state: State = ""
    p_value: float | None = None
    difference: float | None = None

    @property
    def ranked(self) -> bool:
        """Whether it may be called the best."""
        return self.state != "other length"


def summarise(values: Sequence[float], image_errors: Sequence[float] = ()) -> Cell:
    """Mean and 95 % interval of the values of one method over seeds and, where known, test images.

    Args:
        values: one per seed.
        image_errors: standard error of each value over the test images; empty where unknown. The images are the same
            for every seed, so their error does not shrink with more seeds.
    """
    from scipy.special import stdtrit

    from probmetric.metrics.statistics import mean_interval

    mean, half_width = mean_interval(values)
    if math.isnan(half_width):
        return Cell(mean, None, len(values))
    images = math.sqrt(sum(error**2 for error in image_errors) / len(image_errors)) if len(image_errors) else 0.0
    of_images = float(stdtrit(math.inf, 0.975)) * images if images else 0.0
    return Cell(mean, math.hypot(half_width, of_images), len(values))


def compare(
    metric: str,
    by_method: Mapping[str, Mapping[int, float]],
    *,
    images: Images | None = None,
    image_errors: Mapping[str, Mapping[int, float]] | None = None,
    unranked: Collection[str] = (),
) -> dict[str, Cell]:
    """Cells of one metric for the methods of one dataset and noise rate.

    Args:
        metric: name of the metric; decides which direction is better, and whether methods are compared at all.
        by_method: method -> seed -> value; methods without values are left out of the answer.
        images: method -> seed -> what single test images contribute (N,), where known.
        image_errors: method -> seed -> standard error of the value over test images, where known.
        unranked: methods that are measured, but not compared (`other_lengths`).
    """
    from probmetric.metrics.statistics import pairwise_tests

    errors = image_errors or {}
    by_method = {method: seeds for method, seeds in by_method.items() if seeds}
    cells = {method: _cell(seeds, errors.get(method, {})) for method, seeds in by_method.items()}
    cells |= {method: replace(cells[method], state="other length") for method in cells.keys() & set(unranked)}
    compared = {method: seeds for method, seeds in by_method.items() if cells[method].ranked}
    record = find(metric)
    if record.direction == "none" or not record.comparable or len(compared) < 2:
        return cells
    best = _best(metric, {method: cells[method] for method in compared})
    tests = pairwise_tests(compared, images=images, image_errors=errors)
    cells[best] = replace(cells[best], state="best")
    for method in compared.keys() - {best}:
        p_value, difference = tests[method, best]
        state: State = "untested" if math.isnan(p_value) else "worse" if p_value < LEVEL else "not worse"
        cells[method] = replace(cells[method], state=state, p_value=_known(p_value), difference=_known(difference))
    return cells


def _cell(values: Mapping[int, float], errors: Mapping[int, float]) -> Cell:
    known = [errors[seed] for seed in values if seed in errors]
    return summarise(list(values.values()), known if len(known) == len(values) else ())


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _best(metric: str, cells: Mapping[str, Cell]) -> str:
    best = next(iter(cells))
    for method, cell in cells.items():
        if better(metric, cell.mean, cells[best].mean):
            best = method
    return best


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
