"""What `snakemake -n` costs for an experiment of many unfinished runs.

    python benchmarks/planning.py                     10,000 runs
    python benchmarks/planning.py --runs 1000

A copy of the repository, without data or results, gets one experiment: the methods of the demo on glyphs and digits
with as many seeds as are needed. Reported: wall and processor seconds and the largest resident memory of any process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
COPIED = ("Snakefile", "params.yaml", "dvc.yaml", "pyproject.toml", "workflow", "profiles", "data/dvc.yaml")


def main() -> None:
    """Measure, print and perhaps keep the report."""
    options = parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = prepare(Path(folder), options.runs)
        report = {"runs": runs, **hardware(), "first": plan(folder), "again": plan(folder)}
    print(json.dumps(report, indent=1))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    """Command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--runs", type=int, default=10_000)
    found.add_argument("--output", type=Path, help="write the report there as JSON")
    return found


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


def hardware() -> dict[str, Any]:
    """The machine, and how busy it is."""
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(value, 1) for value in os.getloadavg()],
    }


if __name__ == "__main__":
    main()
