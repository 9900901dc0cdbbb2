"""The tables of metrics in docs/reference/evaluation.md, written from the records.

A table stands between `<!-- metrics: <group> <group> ... -->` and `<!-- end of metrics -->`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from probmetric.io import write_text
from probmetric.metrics.catalogue import METRICS
from probmetric.metrics.record import NOT_BETWEEN

_TABLE = re.compile(r"(<!-- metrics: (.*?) -->\n)(.*?)(<!-- end of metrics -->)", re.DOTALL)
_HEAD = "| name | definition | better | source |\n|---|---|---|---|\n"


def with_tables(text: str) -> str:
    """Return `text` with every marked table as the records have it."""
    return _TABLE.sub(lambda marked: f"{marked[1]}{table(marked[2].split())}{marked[4]}", text)


def write_tables(path: Path) -> Path:
    """Renew the tables of the document at `path`; returns the path."""
    write_text(path, with_tables(path.read_text(encoding="utf-8")))
    return path


def table(groups: Iterable[str]) -> str:
    """Return a Markdown table of the metrics of `groups`, each with its group if there are several."""
    groups = tuple(groups)
    rows = [(group, metric) for group in groups for metric in METRICS if group in metric.groups]
    lines = []
    for _, alike in itertools.groupby(rows, key=lambda row: (row[0], row[1].definition, row[1].source)):
        members = list(alike)
        names = (f"`{group}/{metric.name}`" if len(groups) > 1 else f"`{metric.name}`" for group, metric in members)
        metric = members[0][1]
        better = metric.direction.replace("none", "") + ("" if metric.comparable else f", {NOT_BETWEEN}")
        lines.append(f"| {', '.join(names)} | {metric.definition} | {better} | {metric.source} |\n")
    return _HEAD + re.sub(r"\|  (?=\|)", "| ", "".join(lines).replace("{k}", "k").replace("{score}", "<score>"))
