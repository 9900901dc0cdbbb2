"""What `snakemake -n` costs for an experiment of many unfinished runs.

    python benchmarks/planning.py                     10,000 runs
    python benchmarks/planning.py --runs 1000

A copy of the repository, without data or results, gets one experiment: the methods of the demo on glyphs and digits
with as many seeds as are needed. Reported: wall and processor seconds and the largest resident memory of any process.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from _machine import hardware, keep, parser

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
COPIED = ("Snakefile", "params.yaml", "dvc.yaml", "pyproject.toml", "workflow", "profiles", "data/dvc.yaml")


def main() -> None:
    """Measure, print and perhaps keep the report."""
    command = parser(__doc__)
    command.add_argument("--runs", type=int, default=10_000)
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = prepare(Path(folder), options.runs)
        report = {"runs": runs, **hardware(), "first": plan(folder), "again": plan(folder)}
    keep(report, options.output)


def prepare(folder: Path, runs: int) -> int:
    """Write the copy and its experiment; how many runs that has."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() or source.is_file():
            shutil.copy2(source, target, follow_symlinks=False)
        elif source.is_dir():
            shutil.copytree(source, target, symlinks=True)
    demo = yaml.safe_load((ROOT / "workflow/experiments/demo.yaml").read_text())
    methods = demo["runs"][0]["methods"]
    datasets = ["glyphs", "digits"]
    seeds = -(-runs // (len(methods) * len(datasets)))
    entry = {"datasets": datasets, "methods": methods, "seeds": list(range(seeds))}
    (folder / "workflow/experiments/planning.yaml").write_text(yaml.safe_dump({"title": "Planning", "runs": [entry]}))
    return seeds * len(methods) * len(datasets)


def plan(folder: str) -> dict[str, float]:
    """Seconds and megabytes of one `snakemake -n`."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [BIN / "snakemake", "-n", "--quiet", "all", "--config", "experiments=planning"],
        cwd=folder,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "peak_mb": round(after.ru_maxrss / 1024)}


if __name__ == "__main__":
    main()
