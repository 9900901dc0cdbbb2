"""What a workflow says when it ends: where to look, what failed, and the reports of what is finished."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from probmetric.planning.workflow import WorkflowPlan
from probmetric.runs.folder import RunFolder

_PLACES = {"report": "index.html", "table": "table.md"}


def closing_summary(plan: WorkflowPlan, seconds: float) -> str:
    """Return where to look after a finished workflow, and how long it took: `seconds` of wall time."""
    places = [f"  {kind:<8} reports/{name}/{file}" for name in plan.experiments for kind, file in _PLACES.items()]
    shown = "make ui" if Path("Makefile").exists() else "probmetric ui"  # a project of the wheel has no Makefile
    took = f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
    return "\n".join(["", f"Done in {took}. Where to look:", *places, f"  runs     {shown}  (MLflow)"])


def partial_reports(plan: WorkflowPlan) -> str:
    """After a failure: make the report of every experiment that has finished runs; returns where they are."""
    made = []
    for name in plan.experiments:
        if not any(RunFolder.named(run).finished for run in plan.run_names(name)):
            continue
        command = [
            sys.executable,
            "-m",
            "probmetric.cli",
            "report",
            name,
            "--plan",
            plan.report_file(name),
        ]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            made.append(f"  reports/{name}/index.html")
    return "\n".join(["What is finished is reported, the rest marked as not run:", *made]) if made else ""


def failure_summary(failed: Iterable[tuple[str, str, Sequence[str]]], left: int) -> str:
    """Which jobs failed, their logs and what these end with, and how to go on.

    Args:
        failed: (rule, what the job was about, its logs) of every job that failed; jobs that share a cluster job with a
            failed one are among them, and left out here if they said nothing.
        left: jobs not run because they need the results of those.
    """
    found = [(rule, about, logs, _last_line(logs)) for rule, about, logs in sorted(failed)]
    spoke = [job for job in found if job[3]] or found
    lines = ["", f"{len(spoke)} job(s) failed; everything that does not need them was done."]
    for rule, about, logs, last in spoke:
        lines += [f"  {rule} {about}", f"    log: {', '.join(logs) or 'none'}"]
        lines += [f"    {last}"] if last else []
    if left:
        lines.append(f"{left} job(s) that need their results were not run.")
    lines.append("The same command goes on from here; what is finished is not repeated.")
    return "\n".join(lines)


def _last_line(logs: Iterable[str], width: int = 300) -> str:
    """The last line of the first log that has one, cut to `width`."""
    for log in map(Path, logs):
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
        if said := [line.strip() for line in lines if line.strip()]:
            return said[-1][:width]
    return ""
