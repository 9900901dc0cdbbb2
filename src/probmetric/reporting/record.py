"""What a report was made from: `reports/<experiment>/made.json`, written by `aggregate`, and the page's signature.

    made.json   {"runs": {run: {"made": mark, "why": text}}, "left_out": {run: why}, "files": {name: SHA-256}}
    page.json   {"state": digest}: what tables, figures and page were made from (`report_state`), written last

`made` is empty for runs as planned; of runs that earlier code made and that are kept it names the release.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probmetric.io import FileError, read_json, remembered_json, sha256_file, write_json

REPORTS = Path("reports")
AGGREGATE = "run the aggregate step again"


def record_file(experiment: str) -> Path:
    """The record of an experiment's report."""
    return REPORTS / experiment / "made.json"


def read_report_record(experiment: str) -> dict[str, Any]:
    """The record of a report.

    Raises:
        FileError: it is missing or damaged, or a file it names is not as `aggregate` wrote it.
    """
    path = record_file(experiment)
    found: dict[str, Any] = read_json(path, AGGREGATE, dict[str, dict[str, dict[str, str] | str]])
    for name, written in found.get("files", {}).items():
        if sha256_file(path.with_name(name)) != written:
            raise FileError(f"{path.with_name(name)} is not as aggregate wrote it: damaged or edited; {AGGREGATE}.")
    return found


def write_report_record(experiment: str, runs: Mapping[str, Mapping[str, str]], left_out: Mapping[str, str]) -> None:
    """Write the record of a report, after its runs.csv and metrics.json: the runs it shows, those it does not, why."""
    path = record_file(experiment)
    files = {name: sha256_file(path.with_name(name)) for name in ("runs.csv", "metrics.json")}
    write_json(path, {"runs": dict(runs), "left_out": dict(left_out), "files": files})


def sign(experiment: str, state: str) -> None:
    """Say that tables, figures and page are those of `state` (`report_state`); the last thing that is written."""
    write_json(REPORTS / experiment / "page.json", {"state": state})


def signature(experiment: str) -> str:
    """The state of the report as it was signed; empty where it was not finished."""
    found = remembered_json(REPORTS / experiment / "page.json")
    return str(found.get("state", "")) if isinstance(found, dict) else ""
