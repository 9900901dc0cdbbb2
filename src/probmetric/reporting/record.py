"""What a report was made from: `reports/<experiment>/made.json`, begun by `aggregate` and signed by the page.

    {"runs": {run: {"made": mark, "why": text}}, "left_out": {run: why}, "page": state}

`made` is empty for runs as planned; of runs that earlier code made and that are kept it names the release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probmetric.io import write_json

REPORTS = Path("reports")


def record_file(experiment: str) -> Path:
    """The record of an experiment's report."""
    return REPORTS / experiment / "made.json"


def read_report_record(experiment: str) -> dict[str, Any]:
    """The record; empty where there is no report, or its record is damaged."""
    try:
        found = json.loads(record_file(experiment).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_report_record(experiment: str, runs: Mapping[str, Mapping[str, str]], left_out: Mapping[str, str]) -> None:
    """Begin the record of a report: the runs it shows, and those it does not, with the reason."""
    write_json(record_file(experiment), {"runs": dict(runs), "left_out": dict(left_out)})


def sign(experiment: str, state: str) -> None:
    """Say that tables, figures and page are those of `state` (`report_state`); the last thing that is written."""
    write_json(record_file(experiment), read_report_record(experiment) | {"page": state})
