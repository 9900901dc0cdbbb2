"""What a metric is, and the tables that stand beside the functions that compute them."""

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


def table(groups: str, computed: str, text: str) -> tuple[Metric, ...]:
    """Return the metrics of a table, one a row: `names | heading | definition | source`.

    Args:
        groups: where they are measured, separated by spaces.
        computed: module whose functions compute them.
        text: the rows; indented lines continue one. Metrics that share a row are separated by commas, and {} in it is
            the number in a metric's name. A heading is `label (variant) [unit] arrow`, of which all may be missing.

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
