"""What a workflow says when it ends: where to look, what failed, and the reports of what is finished."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from probmetric.planning.workflow import WorkflowPlan
from probmetric.runs.folder import RunFolder

_PLACES = {"report": "index.html", "table": "table.md"}


def closing_summary(plan: WorkflowPlan) -> str:
    """Return where to look after a finished workflow."""
    places = [f"  {kind:<8} reports/{name}/{file}" for name in plan.experiments for kind, file in _PLACES.items()]
    shown = "make ui" if Path("Makefile").exists() else "probmetric ui"  # a project of the wheel has no Makefile
    return "\n".join(["", "Done. Where to look:", *places, f"  runs     {shown}  (MLflow)"])


def partial_reports(plan: WorkflowPlan) -> str:
    """Make, after a failure, the report of every experiment that has finished runs; returns where they are."""
    made = []
    for name in plan.experiments:
        if not any(RunFolder.named(run).finished for run in plan.run_names(name)):
            continue
        command = [sys.executable, "-m", "probmetric.cli", "report", name]
        command += ["--plan", str(plan.report_plan(name).path)]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            made.append(f"  reports/{name}/index.html")
    return "\n".join(["What is finished is reported, the rest marked as not run:", *made]) if made else ""


def failure_summary(plan: WorkflowPlan, since: float, logs: Path = Path("logs")) -> str:
    """Return which jobs failed, their logs and what these end with, and how to go on.

    A job failed if its log was written since the workflow began, and what it makes is not there.

    Args:
        plan: what was to be built.
        since: when the workflow began, in seconds since 1970.
        logs: the jobs' logs, `<rule>/<what it is about>.log`.
    """
    prepared = Path(plan.params.data.prepared)
    data = dict.fromkeys(name for run in plan.runs.values() for name in run.data)
    missing = [("prepare", name) for name in data if not (prepared / name / "digest").exists()]
    missing += [("run", run) for run in plan.runs if not RunFolder.named(run).finished]
    missing += [("report", name) for name in plan.experiments if not Path(f"reports/{name}/index.html").exists()]
    missing += [("track", name) for name in plan.experiments if not Path(f"state/tracked/{name}.json").exists()]
    began = {(rule, about): logs / rule / f"{about}.log" for rule, about in missing}
    failed = {job: log for job, log in began.items() if log.is_file() and log.stat().st_mtime >= since}
    if not failed:
        return ""
    lines = ["", f"{len(failed)} job(s) failed; everything that does not need them was done."]
    for (rule, about), log in failed.items():
        lines += [f"  {rule} {about}", f"    log: {log}", *(f"    {line}" for line in _last_line(log))]
    if left := len(missing) - len(failed):
        lines.append(f"{left} job(s) that need their results were not run.")
    lines.append("The same command goes on from here; what is finished is not repeated.")
    return "\n".join(lines)


def _last_line(log: Path, width: int = 300) -> Iterable[str]:
    """Return the last line of the log, if it has one, cut to `width`."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return [said[-1][:width]] if said else []
