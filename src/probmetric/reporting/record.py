"""What a report was made from and what it is: `reports/<experiment>/page.json`, the last file that is written.

{"stale": {run: why it is left out}, "files": {name: SHA-256}}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from probmetric.io import FileError, present, read_json, sha256_file, write_json

REPORTS = Path("reports")
PAGE = "page.json"
REPORT = "make the experiment's report again"


def read_record(experiment: str) -> dict[str, Any]:
    """Return the record of an experiment's report; of one that was never finished, an empty one.

    Raises:
        FileError: it is damaged, or the long table is not as the report was signed.
    """
    return _checked(REPORTS / experiment, REPORT, ["runs.parquet"])


def sign(folder: Path, stale: Mapping[str, str] | None = None) -> None:
    """Say what lies in the report `folder`, which is made without the `stale` runs (run -> why)."""
    paths = sorted([*folder.glob("[!.]*"), *folder.glob("figures/[!.]*"), *folder.glob("metrics/[!.]*")])
    files = {str(path.relative_to(folder)): sha256_file(path) for path in paths if path.is_file() and path.name != PAGE}
    write_json(folder / PAGE, {"stale": dict(stale or {}), "files": files})


def check_signed(folder: Path, fix: str = REPORT) -> None:
    """Check the files of the report in `folder`, if it was signed.

    Raises:
        FileError: one is missing, or not as it was when the report was signed; says to `fix` it.
    """
    _checked(folder, fix)


def _checked(folder: Path, fix: str, only: Collection[str] = ()) -> dict[str, Any]:
    """Return the record in `folder`, after comparing files with their digests: all it names, or some `only`."""
    record: dict[str, Any] = {"stale": {}, "files": {}}
    if present(folder / PAGE):
        record |= read_json(folder / PAGE, fix, dict[str, dict[str, str]])
    for name, digest in record["files"].items():
        if (not only or name in only) and sha256_file(folder / name) != digest:
            raise FileError(f"{folder / name} was damaged or edited since it was written; {fix}.")
    return record
