"""The tables of claims in docs/claims.md, written from the claims.

A table stands between `<!-- claims: <paper> -->` and `<!-- end of claims -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

from probmetric.io import write_text
from probmetric.reporting.claims import Claim, load_claims

_TABLE = re.compile(r"(<!-- claims: (\w+) -->\n)(.*?)(<!-- end of claims -->)", re.DOTALL)
_HEAD = "| claim | source and what it rests on | needs | where our test differs |\n|---|---|---|---|\n"


def with_tables(text: str) -> str:
    """`text` with every marked table as the claims have it."""
    claims = load_claims()
    return _TABLE.sub(lambda found: f"{found[1]}{_table(found[2], claims)}{found[4]}", text)


def write_tables(path: Path) -> Path:
    """Renew the tables of the document at `path`; returns the path."""
    write_text(path, with_tables(path.read_text(encoding="utf-8")))
    return path


def _table(paper: str, claims: list[Claim]) -> str:
    rows = [claim for claim in claims if claim.paper == paper]
    return _HEAD + "".join(f"| {' | '.join(_cells(claim))} |\n" for claim in rows)


def _cells(claim: Claim) -> list[str]:
    lines = [claim.source, *(f"`{line}`" for line in claim.printed), *([f"“{claim.quoted}”"] if claim.quoted else [])]
    return [claim.statement, "<br>".join(lines), ", ".join(claim.needs).replace("_", " "), claim.differs]
