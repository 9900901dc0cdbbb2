"""What the workflow's jobs took: Snakemake's benchmark files, `benchmarks/jobs/<rule>/.../<job>.tsv`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from probmetric.io import FileError, read_csv

JOBS = Path("benchmarks/jobs")
_FIX = "delete it: the next run of its rule writes it again"


def job_seconds(path: Path, column: Literal["s", "cpu_time"]) -> float:
    """Wall time `s` or processor time `cpu_time` of a job; 0 where it ended before Snakemake looked at it.

    Raises:
        FileError: the file is damaged.
    """
    return _number(path, column)


def job_megabytes(path: Path) -> float:
    """Largest resident memory of a job in MB; 0 and errors as of `job_seconds`."""
    return _number(path, "max_rss")


def _number(path: Path, column: str) -> float:
    rows = read_csv(path, _FIX, delimiter="\t")[1]
    try:
        text = rows[-1][column]
        return 0.0 if text == "NA" else float(text)
    except (IndexError, KeyError, ValueError) as error:
        raise FileError(f"{path} is not a benchmark file of Snakemake; {_FIX}.") from error
