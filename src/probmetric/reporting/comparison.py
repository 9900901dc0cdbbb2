"""Compare methods over seeds: mean, interval, the best method, and which others are worse, not worse or untested.

Within one dataset and noise rate every pair of methods is compared on the seeds they share, with Holm's correction over
all pairs. A method that is significantly worse than any other is not the best. Intervals and tests take the test
classes (images, if their classes are training classes) for a sample too, if runs hold their contributions or the
standard error over them. Versions of a method with another length of training are not compared.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from probmetric.metrics import best, better, find
from probmetric.metrics.pairwise import Pairwise, pairwise_tests
from probmetric.metrics.statistics import LEVEL, NO_UNITS, Sample, half_width, mean_interval
from probmetric.runs.names import EPOCHS, RunKey, override_items

Overrides = frozenset[str]

State = Literal["best", "not worse", "worse", "no power", "untested", "other length", ""]


@dataclass(frozen=True)
class Cell:
    """One metric of one method over seeds.

    Attributes:
        mean: mean over seeds.
        half_width: half of the 95 % interval; None with a single seed, or if no variation is known.
        n: seeds with a value.
        state: `best`: best mean of its dataset, noise rate and metric among methods that are not worse; `not worse`:
            no test finds it worse; `worse`: significantly worse than another, so not the best; `no power`: not
            significant, but the test could have missed a difference as large as that between the best and the last
            method; `untested`: fewer than three shared seeds, or equal values for all seeds; `other length` of
            training: not compared; empty if no methods are compared.
        p_value: smallest p-value against better methods, corrected over all pairs; None for the best or if untested.
        detectable: difference to the best that the test finds with a power of 80 %; None for the best or if untested.
    """

    mean: float
    half_width: float | None
    n: int
    state: State = ""
    p_value: float | None = None
    detectable: float | None = None


def summarise(sample: Sample) -> Cell:
    """Return mean and 95 % interval of one method over seeds and, where they are known, units.

    The units are the same for every seed, so their part of the interval does not shrink with more seeds. If several
    seeds have equal values, the interval is that of the units alone.
    """
    seeds = list(sample.values)
    mean, of_seeds = mean_interval(list(sample.values.values()))
    if math.isnan(of_seeds):
        return Cell(mean, None, len(seeds))
    units = half_width(NO_UNITS, sample.unit_variance(seeds) or NO_UNITS)
    return Cell(mean, math.hypot(of_seeds, units) or None, len(seeds))


def compare(metric: str, samples: Mapping[str, Sample], *, unranked: Collection[str] = ()) -> dict[str, Cell]:
    """Return cells of one metric for the methods of one dataset and noise rate.

    Args:
        metric: name of the metric; decides which direction is better, and whether methods are compared at all.
        samples: method -> its values; methods without values are left out of the result.
        unranked: methods that are measured, but not compared (`other_lengths`).
    """
    samples = {method: sample for method, sample in samples.items() if sample.values}
    cells = {method: summarise(sample) for method, sample in samples.items()}
    cells |= {method: replace(cells[method], state="other length") for method in cells.keys() & set(unranked)}
    compared = {method: sample for method, sample in samples.items() if method not in unranked}
    record = find(metric)
    if record.direction == "none" or not record.comparable or len(compared) < 2:
        return cells
    means = [cells[method].mean for method in compared]
    tests = pairwise_tests(compared)
    p_values = {method: _p_value(metric, method, tests) for method in compared}
    unbeaten = [method for method, p_value in p_values.items() if not p_value < LEVEL] or list(compared)
    leader = best(metric, {method: cells[method].mean for method in unbeaten})
    cells[leader] = replace(cells[leader], state="best")
    for method in compared.keys() - {leader}:
        detectable = tests[method, leader].detectable
        cells[method] = replace(
            cells[method],
            state=_state(p_values[method], detectable, max(means) - min(means)),
            p_value=_known(p_values[method]),
            detectable=_known(detectable),
        )
    return cells


def _p_value(metric: str, method: str, tests: Pairwise) -> float:
    """Return the smallest p-value of the tests in which a method is behind or equal; NaN if it was not tested."""
    behind = [
        test.p_value
        for (first, _), test in tests.items()
        if first == method and not math.isnan(test.p_value) and not better(metric, test.difference, 0.0)
    ]
    return min(behind, default=math.nan)


def _state(p_value: float, detectable: float, span: float) -> State:
    """Return the state of a method that is not the best; `span` is the difference from best to last mean."""
    if p_value < LEVEL:
        return "worse"
    if math.isnan(detectable):
        return "untested"
    return "no power" if span > 0 and detectable > span else "not worse"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def overrides_of(key: RunKey) -> Overrides:
    """Return `{"training.epochs=90", "loss.scale=64"}` for the name of a run."""
    return frozenset(override_items(key.overrides))


def but_for_length(overrides: Overrides) -> Overrides:
    """Return the overrides without the number of epochs."""
    return frozenset(item for item in overrides if not item.startswith(EPOCHS))


def version(key: RunKey) -> tuple[str, Overrides]:
    """Return method and overrides of a run without the number of epochs, which runs of several lengths share."""
    return key.method, but_for_length(overrides_of(key))


def usual(keys: Iterable[RunKey]) -> Overrides:
    """Return the overrides that more than half of the methods have; of several lengths of training, the longest.

    It is empty if no overrides are so common, or if several are that differ in more than length.
    """
    keys = list(keys)
    rarer = rarer_lengths(keys)
    common = _common(key for key in keys if key.variant not in rarer)
    if len(common) < 2:
        return common[0] if common else frozenset()
    alike = len({but_for_length(overrides) for overrides in common}) == 1
    return max(common, key=_epochs) if alike and all(map(_epochs, common)) else frozenset()


def longest(keys: Iterable[RunKey]) -> list[RunKey]:
    """Return the runs that were trained longest, if all differ only in length; else return all."""
    keys = list(keys)
    if len({but_for_length(overrides_of(key)) for key in keys}) > 1:
        return keys
    most = max((_epochs(overrides_of(key)) for key in keys), default=0)
    return [key for key in keys if _epochs(overrides_of(key)) == most]


def other_lengths(keys: Iterable[RunKey]) -> set[str]:
    """Return variants with another length of training than most methods, if the method also has the usual length.

    Such variants are shown, but not ranked. A length with fewer seeds, or splits of the classes, than another counts as
    another length too: a run of half the length only shows what had converged.
    """
    keys = list(keys)
    rarer = rarer_lengths(keys)
    keys = [key for key in keys if key.variant not in rarer]
    common = _common(keys)
    compared = {version(key) for key in keys if overrides_of(key) in common}
    uncommon = (key for key in keys if overrides_of(key) not in common)
    return rarer | {key.variant for key in uncommon if version(key) in compared}


def rarer_lengths(keys: Iterable[RunKey]) -> set[str]:
    """Return variants with fewer seeds, or splits of the classes, than another length of the same method."""
    runs: dict[tuple[str, Overrides], Counter[str]] = defaultdict(Counter)
    for key in set(keys):
        runs[version(key)][key.variant] += 1
    return {
        variant for of_method in runs.values() for variant in of_method if of_method[variant] < max(of_method.values())
    }


def _common(keys: Iterable[RunKey]) -> list[Overrides]:
    """Return the overrides that more than half of the methods have."""
    methods: dict[Overrides, set[str]] = defaultdict(set)
    for key in keys:
        methods[overrides_of(key)].add(key.method)
    number = len(set().union(*methods.values()))
    return [overrides for overrides, having in methods.items() if 2 * len(having) > number]


def _epochs(overrides: Overrides) -> int:
    """Return the number of epochs among the overrides; 0 if they do not name it."""
    return max((int(item.removeprefix(EPOCHS)) for item in overrides if item.startswith(EPOCHS)), default=0)
