"""Write the tables of metrics and of claims in docs/reference/ from their records: `make schemas`.

A table stands between `<!-- metrics: <group> <group> ... -->` and `<!-- end of metrics -->`, or between
`<!-- claims: <paper> -->` and `<!-- end of claims -->`. With `--check` nothing is written; the exit status is 1 where a
page would change.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from probmetric.metrics.catalogue import METRICS
from probmetric.metrics.record import NOT_BETWEEN
from probmetric.reporting.claims import Claim, load_claims

PAGES = Path(__file__).parents[1] / "docs/reference"
TABLE = re.compile(r"(<!-- (metrics|claims): (.*?) -->\n)(.*?)(<!-- end of (?:metrics|claims) -->)", re.DOTALL)


def main() -> int:
    """Renew the pages, or check them; returns the exit status."""
    changed = False
    for name in ("evaluation.md", "claims.md"):
        text = (PAGES / name).read_text(encoding="utf-8")
        renewed = TABLE.sub(lambda marked: f"{marked[1]}{TABLES[marked[2]](marked[3].split())}{marked[5]}", text)
        changed |= renewed != text
        if "--check" not in sys.argv:
            (PAGES / name).write_text(renewed, encoding="utf-8")
    return int(changed and "--check" in sys.argv)


def metrics_table(groups: Sequence[str]) -> str:
    """Return a Markdown table of the metrics of `groups`, each with its group if there are several."""
    rows = [(group, metric) for group in groups for metric in METRICS if group in metric.groups]
    lines = ["| name | definition | better | source |\n|---|---|---|---|\n"]
    for _, alike in itertools.groupby(rows, key=lambda row: (row[0], row[1].definition, row[1].source)):
        members = list(alike)
        names = (f"`{group}/{metric.name}`" if len(groups) > 1 else f"`{metric.name}`" for group, metric in members)
        metric = members[0][1]
        better = metric.direction.replace("none", "") + ("" if metric.comparable else f", {NOT_BETWEEN}")
        lines.append(f"| {', '.join(names)} | {metric.definition} | {better} | {metric.source} |\n")
    return re.sub(r"\|  (?=\|)", "| ", "".join(lines).replace("{k}", "k").replace("{score}", "<score>"))


def claims_table(papers: Sequence[str]) -> str:
    """Return a Markdown table of the claims of one paper."""
    rows = [cells(claim) for claim in load_claims() if claim.paper in papers]
    head = "| claim | source and what it rests on | needs | where our test differs |\n|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def cells(claim: Claim) -> list[str]:
    """Return what the table says of a claim."""
    lines = [claim.source, *(f"`{line}`" for line in claim.printed), *([f"“{claim.quoted}”"] if claim.quoted else [])]
    return [claim.statement, "<br>".join(lines), ", ".join(claim.needs).replace("_", " "), claim.differs]


TABLES = {"metrics": metrics_table, "claims": claims_table}

if __name__ == "__main__":
    sys.exit(main())
