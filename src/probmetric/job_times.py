"""How long the workflow's jobs took: Snakemake's benchmark files, `benchmarks/jobs/<rule>/.../<job>.tsv`."""

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
    rows = read_csv(path, _FIX, delimiter="\t")[1]
    try:
        text = rows[-1][column]
        return 0.0 if text == "NA" else float(text)
    except (IndexError, KeyError, ValueError) as error:
        raise FileError(f"{path} is not a benchmark file of Snakemake; {_FIX}.") from error
