"""What a metric is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

Direction = Literal["higher", "lower", "none"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: last part of its full name; `{k}` stands for a number, `{score}` for a score of the answer.
        label: what tables and figures call it; made from the name where it is empty.
        direction: whether a higher or a lower value is better; "none" for a descriptive quantity.
        definition: how it is computed, in a line.
        source: papers that use it.
        variant: which variant of the thing `label` names.
        unit: of the value; none for a share or a pure number.
        groups: first parts of its full names: where it is measured.
        computed: module whose functions compute it.
        comparable: whether methods may be ranked by it; not by what judges each method's own answers alone.
    """

    name: str
    label: str
    direction: Direction
    definition: str
    source: str = ""
    variant: str = ""
    unit: str = ""
    groups: tuple[str, ...] = ()
    computed: str = ""
    comparable: bool = True


def measured(groups: Iterable[str], computed: str, *metrics: Metric) -> tuple[Metric, ...]:
    """Return `metrics` with the groups they are measured in and the module that computes them."""
    return tuple(replace(metric, groups=tuple(groups), computed=computed) for metric in metrics)
