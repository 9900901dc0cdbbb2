"""What a report was made from: `reports/<experiment>/made.json`, written by `aggregate`, and the page's signature.

    made.json   {"runs": {run: {"made": mark, "why": text}}, "left_out": {run: why}, "files": {name: SHA-256}}
    page.json   {"state": digest, "files": {name: SHA-256}}: what tables, figures and page were made from
                (`report_state`) and what they are; written last

`made` is empty for runs as planned; of runs that earlier code made and that are kept it names the release.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probmetric.io import FileError, present, read_json, remembered_json, sha256_file, write_json

REPORTS = Path("reports")
PAGE = "page.json"
AGGREGATE, REPORT = "run the aggregate step again", "make the experiment's report again"


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
    _check(path.parent, found.get("files", {}), AGGREGATE)
    return found


def write_report_record(experiment: str, runs: Mapping[str, Mapping[str, str]], left_out: Mapping[str, str]) -> None:
    """Write the record of a report, after its runs.csv and metrics.json: the runs it shows, those it does not, why."""
    path = record_file(experiment)
    files = {name: sha256_file(path.with_name(name)) for name in ("runs.csv", "metrics.json")}
    write_json(path, {"runs": dict(runs), "left_out": dict(left_out), "files": files})


def sign(folder: Path, state: str = "") -> None:
    """Say that what lies in the report `folder` is that of `state` (`report_state`); the last thing that is written."""
    found = [path for path in sorted([*folder.glob("[!.]*"), *folder.glob("figures/[!.]*")]) if path.is_file()]
    files = {str(path.relative_to(folder)): sha256_file(path) for path in found if path.name != PAGE}
    write_json(folder / PAGE, {"state": state, "files": files})


def check_signed(folder: Path, fix: str = REPORT) -> None:
    """Check the files of the report in `folder`, if it was signed.

    Raises:
        FileError: one is missing, or not as it was when the report was signed; says to `fix` it.
    """
    kind = dict[str, dict[str, str] | str]
    found = read_json(folder / PAGE, fix, kind) if present(folder / PAGE) else {}
    _check(folder, found.get("files", {}), fix)


def _check(folder: Path, files: Mapping[str, str], fix: str) -> None:
    """Compare files with their digests."""
    for name, written in files.items():
        if sha256_file(folder / name) != written:
            raise FileError(f"{folder / name} was damaged or edited since it was written; {fix}.")


def signature(experiment: str) -> str:
    """The state of the report as it was signed; empty where it was not finished."""
    found = remembered_json(REPORTS / experiment / PAGE)
    return str(found.get("state", "")) if isinstance(found, dict) else ""
