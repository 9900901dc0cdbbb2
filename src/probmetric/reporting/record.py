"""What a report was made from: `reports/<experiment>/made.json`, written by `aggregate`, and the page's signature.

    made.json   {"runs": {run: {"made": mark, "why": text}}, "left_out": {run: why}}
    page.json   {"state": digest}: what tables, figures and page were made from (`report_state`), written last

`made` is empty for runs as planned; of runs that earlier code made and that are kept it names the release.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probmetric.io import remembered_json, write_json

REPORTS = Path("reports")


def record_file(experiment: str) -> Path:
    """The record of an experiment's report."""
    return REPORTS / experiment / "made.json"


def read_report_record(experiment: str) -> dict[str, Any]:
    """The record; empty where there is no report, or its record is damaged."""
    return _read(record_file(experiment))


def write_report_record(experiment: str, runs: Mapping[str, Mapping[str, str]], left_out: Mapping[str, str]) -> None:
    """Write the record of a report: the runs it shows, and those it does not, with the reason."""
    write_json(record_file(experiment), {"runs": dict(runs), "left_out": dict(left_out)})


def sign(experiment: str, state: str) -> None:
    """Say that tables, figures and page are those of `state` (`report_state`); the last thing that is written."""
    write_json(REPORTS / experiment / "page.json", {"state": state})


def signature(experiment: str) -> str:
    """The state of the report as it was signed; empty where it was not finished."""
    return str(_read(REPORTS / experiment / "page.json").get("state", ""))


def _read(path: Path) -> dict[str, Any]:
    found = remembered_json(path)
    return found if isinstance(found, dict) else {}
