"""Describe metrics: the record of one metric, and tables of records beside the functions that compute them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Direction = Literal["higher", "lower", "none"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
NOT_BETWEEN = "not between methods"
_HEADING = re.compile(rf"(.*?)(?: ?\((.+)\))?(?: ?\[(.+)\])?(?: ?([↑↓])( {NOT_BETWEEN})?)?")
_ARROWS: dict[str | None, Direction] = {"↑": "higher", "↓": "lower", None: "none"}


@dataclass(frozen=True)
class Metric:
    """Record what one metric is.

    Attributes:
        name: last part of the full name; `{k}` stands for a number, `{score}` for a score of the answer.
        label: name in tables and figures; made from `name` where it is empty.
        direction: whether a higher or a lower value is better; "none" for a descriptive quantity.
        definition: how it is computed, in one line.
        source: papers that use it.
        variant: variant of the quantity that `label` names.
        unit: unit of the value; "" for a share or a pure number.
        groups: first parts of its full names: where it is measured.
        computed: module whose functions compute it.
        comparable: whether it may rank methods; False if it judges each method on that method's own answers.
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


def table(groups: str, computed: str, text: str) -> tuple[Metric, ...]:
    """Return the metrics of a table with rows `names | heading | definition | source`.

    Args:
        groups: groups of the metrics, separated by spaces.
        computed: module whose functions compute the metrics.
        text: the rows; an indented line continues the row above. Commas separate metrics that share a row, and {} in
            their heading is the number in a name. A heading is `label (variant) [unit] arrow`; any part may be missing.

    Examples:
        >>> loss, = table("classification", "here", "nll | NLL (of labels) ↓ | mean −log p(label)")
        >>> loss.label, loss.variant, loss.direction, loss.groups
        ('NLL', 'of labels', 'lower', ('classification',))
    """
    rows = re.split(r"\n(?! )", textwrap.dedent(text).strip())
    return tuple(metric for row in rows for metric in _of_row(row, tuple(groups.split()), computed))


def _of_row(row: str, groups: tuple[str, ...], computed: str) -> Iterator[Metric]:
    names, heading, definition, source = (*(cell.strip() for cell in " ".join(row.split()).split("|")), "")[:4]
    parts = _HEADING.fullmatch(heading)
    assert parts is not None, heading
    for name in names.split(", "):
        number = "".join(re.findall(r"\d+", name)[:1])
        label, variant = ((parts[place] or "").replace("{}", number) for place in (1, 2))
        yield Metric(
            name, label, _ARROWS[parts[4]], definition, source, variant, parts[3] or "", groups, computed, not parts[5]
        )
