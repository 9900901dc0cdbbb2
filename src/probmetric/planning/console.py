"""Print a workflow's messages in the terminal: a line per finished run; at the end where to look, and what failed.

Snakemake sends messages to a logger plugin (`snakemake_logger_plugin_probmetric`; the profiles name it). It replaces
those about single jobs, and leaves others (errors, warnings, dry runs, `--verbose`, `--printshellcmds`) to Snakemake's
own handler. In a terminal, paths of logs, runs and reports are links.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.io import FileError
from probmetric.metrics import label
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import log_file

if TYPE_CHECKING:
    from probmetric.planning.workflow import WorkflowPlan

QUIET_SECONDS = 60.0  # of silence, after which a line tells what is running
MOST_RUNNING = 3  # runs that this line names
SHOWN = 300  # characters of a log's last line
HEADLINES = ("retrieval/recall_at_1", "classification/accuracy", "verification/accuracy")
_PATH = re.compile(r"(?<![\w/.-])(?:logs|results|reports|state)/[\w@+=./-]*[\w/]")


@dataclass
class Progress:
    """Progress of the workflow.

    Attributes:
        clock: seconds, for tests.
        done: rule -> jobs that ended.
        about: job -> (rule, wildcards).
        running: jobs that are making runs now.
    """

    clock: Any = time.monotonic
    done: Counter[str] = field(default_factory=Counter)
    about: dict[int, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.since = self.told = self.clock()
        self.total: Counter[str] = Counter()

    def plan(self, jobs: Mapping[str, int]) -> str:
        """Record how many jobs of each rule there are; return them in a line."""
        self.total = Counter({rule: number for rule, number in jobs.items() if rule not in ("all", "total")})
        counted = ", ".join(f"{number} {rule}" for rule, number in self.total.items())
        return f"{sum(self.total.values())} jobs: {counted}. Results come in as runs finish."

    def begin(self, job: int, rule: str, wildcards: Mapping[str, str]) -> None:
        """Record that a job begins."""
        self.about[job] = rule, wildcards
        if rule == "run":
            self.running.append(job)

    def wait(self) -> Iterator[str]:
        """Yield a line about the runs being made, with the ends of their logs, after a minute without a line."""
        runs = [self.about[job][1]["run"] for job in self.running]
        if not runs or self.clock() - self.told < QUIET_SECONDS:
            return
        said = [" ".join([run, *_last_line(log_file(run))]) for run in runs[:MOST_RUNNING]]
        more = f", and {len(runs) - MOST_RUNNING} more" if len(runs) > MOST_RUNNING else ""
        yield self._line(f"running: {'; '.join(said)}{more}")

    def end(self, job: int) -> Iterator[str]:
        """Record that a job succeeded; yield the lines about it."""
        rule, wildcards = self.about.get(job, ("", {}))
        self.stop(job)
        self.done[rule] += 1
        if rule == "prepare":
            yield self._line(f"prepared {wildcards.get('data', '')}")
        elif rule == "run":
            yield self._line(f"{finding(wildcards['run'])}   {self.done[rule]} of {self.total[rule]} runs")
        elif rule == "report":
            yield self._line(f"page: reports/{wildcards['experiment']}/index.html")

    def stop(self, job: int) -> None:
        """Record that a job no longer runs."""
        if job in self.running:
            self.running.remove(job)

    def _line(self, text: str) -> str:
        self.told = self.clock()
        seconds = int(self.told - self.since)
        return f"[{seconds // 60:3d}:{seconds % 60:02d}] {text}"


def finding(run: str) -> str:
    """Return a finished run and the first headline it has: `results/digits/contrastive/seed0   Recall@1 0.981`."""
    folder = RunFolder.named(run)
    try:
        metrics = folder.metrics
    except FileError:
        return str(folder.path)
    name = next((name for name in HEADLINES if isinstance(metrics.get(name), int | float)), "")
    return f"{folder.path}   {label(name)} {metrics[name]:.3f}" if name else str(folder.path)


def linked(text: str, *, terminal: bool) -> str:
    """Make paths of logs, runs and reports in `text` links (OSC 8), if the output is a terminal that supports them."""
    if not terminal or os.environ.get("TERM") in (None, "dumb", "linux"):
        return text
    return _PATH.sub(lambda path: f"\033]8;;{Path(path[0]).absolute().as_uri()}\033\\{path[0]}\033]8;;\033\\", text)


_PLACES = {"report": "index.html", "table": "table.md"}


def closing_summary(plan: WorkflowPlan) -> str:
    """Return where to look after a finished workflow."""
    places = [f"  {kind:<8} reports/{name}/{file}" for name in plan.experiments for kind, file in _PLACES.items()]
    shown = "make ui" if Path("Makefile").exists() else "probmetric ui"  # a project made from the wheel has no Makefile
    return "\n".join(["", "Done. Where to look:", *places, f"  runs     {shown}  (MLflow)"])


def partial_reports(plan: WorkflowPlan) -> str:
    """Make, after a failure, the report of every experiment that has finished runs; return their paths."""
    made = []
    for name in plan.reported:
        if not any(RunFolder.named(run).finished for run in plan.run_names(name)):
            continue
        command = [sys.executable, "-m", "probmetric.cli", "report", name]
        command += ["--plan", str(plan.report_plan(name).path)]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            made.append(f"  reports/{name}/index.html")
    return "\n".join(["These reports show the finished runs and mark the others as not run:", *made]) if made else ""


def failure_summary(plan: WorkflowPlan, since: float) -> str:
    """Return which jobs failed, their logs with the last lines, and how to continue.

    A job failed if its log was written since the workflow began, and its output is missing.

    Args:
        plan: the plan of the workflow.
        since: start of the workflow, in seconds since 1970.
    """
    prepared = Path(plan.params.data.prepared)
    missing = [("prepare", name) for name in plan.data if not (prepared / name / "digest").exists()]
    missing += [("run", run) for run in plan.runs if not plan.is_made(run)]
    missing += [("report", name) for name in plan.reported if not Path(f"reports/{name}/index.html").exists()]
    missing += [("track", name) for name in plan.reported if not Path(f"state/tracked/{name}.json").exists()]
    began = {(rule, about): Path(f"logs/{rule}/{about}.log") for rule, about in missing}
    failed = {job: log for job, log in began.items() if log.is_file() and log.stat().st_mtime >= since}
    if not failed:
        return ""
    lines = ["", f"{len(failed)} job(s) failed; all jobs that do not need them were done."]
    for (rule, about), log in failed.items():
        lines += [f"  {rule} {about}", f"    log: {log}", *(f"    {line}" for line in _last_line(log))]
    if left := len(missing) - len(failed):
        lines.append(f"{left} job(s) that need their results were not run.")
    lines.append("Run the same command again to go on from here; finished jobs are not repeated.")
    return "\n".join(lines)


def _last_line(log: Path) -> Iterable[str]:
    """Return the last line of the log, if it has one, cut to `SHOWN` characters."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    said = [line.strip() for line in lines if line.strip()]
    return [said[-1][:SHOWN]] if said else []
