"""From a file of vectors to its certificate and page: seconds and peak memory of the commands, each in a process.

    python benchmarks/vectors.py                 100,000 x 768, ten rows to a class; 300 MB below --folder
    python benchmarks/vectors.py --rows 10000

Peak is that of the whole process: interpreter, file and vectors (293 MiB at 100,000 x 768) among it.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _machine import hardware, keep, parser

PER_CLASS, SPREAD = 10, 2.7


def main() -> None:
    """Write a file, run the commands, print and perhaps keep the report."""
    found = parser(__doc__)
    found.add_argument("--rows", type=int, default=100_000)
    found.add_argument("--dim", type=int, default=768)
    found.add_argument("--folder", help="where the file goes (default: the system's temporary folder)")
    options = found.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        # in a process of its own: what starts the commands lends them its peak
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(write_vectors, Path(folder) / "vectors.parquet", options.rows, options.dim).result()
        results = [measured(Path(folder), command) for command in COMMANDS]
    keep({"shape": [options.rows, options.dim], **hardware(), "results": results}, options.output)


def write_vectors(file: Path, rows: int, dim: int) -> None:
    """Write vectors around the centres of classes of ten."""
    generator, labels = np.random.default_rng(0), np.arange(rows) // PER_CLASS
    vectors = generator.standard_normal((rows, dim), dtype=np.float32) * np.float32(SPREAD)
    vectors += generator.standard_normal((labels[-1] + 1, dim), dtype=np.float32)[labels]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim)
    pq.write_table(pa.table({"vector": column, "label": labels.astype(str)}), file)


COMMANDS = (["certify", "vectors.parquet", "--risk", "0.2"], ["report", "vectors.parquet"])


def measured(folder: Path, command: list[str]) -> dict[str, Any]:
    """Run one command; seconds, and the largest resident memory of its process."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "probmetric.cli", *command], cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    return {
        "command": command[0],
        "exit": os.waitstatus_to_exitcode(status),
        "seconds": round(seconds, 1),
        "peak_mb": round(usage.ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
