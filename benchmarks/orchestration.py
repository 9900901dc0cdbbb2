"""What a workflow costs besides its computation, with steps as children of a server and as processes of their own.

    python benchmarks/orchestration.py                        experiment `smoke`
    python benchmarks/orchestration.py --experiment demo --output benchmarks/results/orchestration.json

A clone of the repository runs the experiment from nothing, once per way. Reported: processor seconds of everything,
of each rule's jobs and of what is left (Snakemake, clients, the server's imports); wall seconds; the share of
orchestration that the workflow's closing summary prints, which depends on how busy the machine is.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from _machine import hardware, keep, parser

from probmetric.job_times import job_seconds

ROOT = Path(__file__).resolve().parents[1]
WAYS = {"server": "true", "processes": "false"}


def main() -> None:
    """Measure, print and perhaps keep the report."""
    command = parser(__doc__)
    command.add_argument("--experiment", default="smoke")
    options = command.parse_args()
    report: dict[str, Any] = {"experiment": options.experiment, "commit": commit(), **hardware()}
    for way, resident in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
            report[way] = measured(Path(folder), options.experiment, resident)
    keep(report, options.output)


def commit() -> str:
    """What was measured."""
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip()


def measured(folder: Path, experiment: str, resident: str) -> dict[str, Any]:
    """Run the experiment in `folder`; seconds by kind."""
    command = ["snakemake", "--quiet", "all", "--config", f"experiments={experiment}", f"resident={resident}"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    before, started = of_children(), time.perf_counter()
    subprocess.run(command, cwd=folder, env=os.environ | {"PATH": path}, check=True)
    wall, waited_for = time.perf_counter() - started, of_children() - before
    jobs = by_rule(folder / "benchmarks/jobs")
    apart = of_servers(folder)
    total = waited_for + sum(apart)
    work = sum(job["cpu"] for job in jobs.values())
    share = json.loads((folder / "state/orchestration.json").read_text())["share"]
    runs = jobs["evaluate"]["jobs"]
    return {
        "wall": round(wall, 1),
        "cpu": round(total, 1),
        "cpu_of_jobs": round(work, 1),
        "cpu_besides": round(total - work, 1),
        "cpu_of_jobs_per_run": round(work / runs, 2),
        "share": round(share, 3),
        "rules": {
            name: {"jobs": job["jobs"], "cpu_each": round(job["cpu"] / job["jobs"], 2)} for name, job in jobs.items()
        },
    }


def of_children() -> float:
    """Processor seconds of the processes this one has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def of_servers(folder: Path) -> tuple[float, float]:
    """Processor seconds of commands run by servers, and of the servers."""
    notes = list(folder.glob("state/resident/*/usage.jsonl"))
    deadline = time.monotonic() + 60
    while notes and not list(folder.glob("state/resident/*/servers.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)  # the server notes its own when it ends, after Snakemake
    return cpu_noted(notes), cpu_noted(folder.glob("state/resident/*/servers.jsonl"))


def cpu_noted(files: Any) -> float:
    """Sum of the noted processor seconds."""
    return sum(json.loads(line)["cpu_time"] for file in files for line in file.read_text().splitlines())


def by_rule(folder: Path) -> dict[str, dict[str, float]]:
    """Rule -> number and processor seconds of its jobs, from Snakemake's benchmark files."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: {"jobs": 0, "cpu": 0.0})
    for file in sorted(folder.rglob("*.tsv")):
        rule = found[file.relative_to(folder).parts[0]]
        rule["jobs"] += 1
        rule["cpu"] += job_seconds(file, "cpu_time")
    return dict(found)


if __name__ == "__main__":
    main()
