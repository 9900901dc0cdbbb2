"""How much of a workflow's wall time is orchestration: everything that is not the work of a step.

Every rule's `benchmark:` file gives a job's wall time from the outside (process start, imports, files); `history.csv`
gives the seconds a training run spent on its epochs from the inside. With `cores` jobs at once, `total_seconds` of
wall time offer cores x total_seconds of job time:

    training       sum of the epochs' seconds (history.csv)
    computation    training, plus the jobs of the rules that compute (fit, embed, evaluate, prepare) less their start
    step overhead  process start and imports of those jobs, and what training jobs spend beyond their epochs: start,
                   imports, reading data, writing weights
    reporting      jobs of the rules that only arrange results (aggregate, tables, figures, report, track)
    idle           job time in which nothing ran: Snakemake itself, DVC, waiting for the last job

The job of a bundle is not counted itself: its steps leave rows of their own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from probmetric.io import present, write_json
from probmetric.job_times import job_seconds
from probmetric.runs.folder import RunFolder

TRAINING = ("train",)
REPORTING = ("aggregate", "tables", "table", "figures", "figure", "report", "html", "track")


@dataclass(frozen=True)
class Orchestration:
    """Seconds of job time by kind, and orchestration's share of all the job time the machine offered."""

    total_seconds: float
    cores: int
    jobs: int
    training: float
    computation: float
    step_overhead: float
    reporting: float
    idle: float
    share: float
    by_rule: dict[str, dict[str, float]]

    def text(self) -> str:
        """A summary to print at the end of a workflow."""
        offered = self.total_seconds * self.cores
        lines = [
            f"Orchestration: {100 * self.share:.0f} % of {self.total_seconds:.0f} s on {self.cores} core(s), "
            f"{self.jobs} jobs (goal: at most 15 %)."
        ]
        for name in ("computation", "step_overhead", "reporting", "idle"):
            seconds = getattr(self, name)
            lines.append(f"  {name.replace('_', ' '):<14}{seconds:8.1f} s  {100 * seconds / offered:5.1f} %")
        for rule, found in sorted(self.by_rule.items(), key=lambda item: -item[1]["seconds"]):
            each = found["seconds"] / found["jobs"]
            lines.append(f"    {rule:<16}{found['jobs']:4.0f} jobs {found['seconds']:8.1f} s  ({each:.2f} s each)")
        return "\n".join(lines)


def measure(
    benchmarks: str | Path,
    run_folders: Iterable[str | Path],
    total_seconds: float,
    *,
    cores: int = 1,
    since: float = 0.0,
    starts: Mapping[str, float] | None = None,
    output: str | Path | None = None,
) -> Orchestration:
    """Account for the wall time of a finished workflow.

    Args:
        benchmarks: folder of the benchmark files, `<rule>/.../<job>.tsv`.
        run_folders: run folders whose history.csv belongs to the workflow.
        total_seconds: wall time of the whole workflow.
        cores: jobs that could run at once.
        since: leave out files older than this time (seconds since the epoch): jobs of earlier invocations.
        starts: rule -> seconds one of its processes takes to start and import (`start_seconds`); not counted where
            it is already: of training, whose epochs are timed from the inside, and of reporting.
        output: JSON file to write, if any.

    Raises:
        ValueError: `total_seconds` or `cores` is not positive.
        FileError: a benchmark file is damaged.
    """
    if total_seconds <= 0 or cores < 1:
        raise ValueError(f"total_seconds is {total_seconds}, cores {cores}; both must be positive.")
    by_rule = _by_rule(Path(benchmarks), since)
    training = sum(_epoch_seconds(RunFolder(folder), since) for folder in run_folders)
    job_seconds = sum(found["seconds"] for found in by_rule.values())
    train_jobs = sum(found["seconds"] for rule, found in by_rule.items() if rule in TRAINING)
    reporting = sum(found["seconds"] for rule, found in by_rule.items() if rule in REPORTING)
    overhead = max(0.0, train_jobs - training)
    for rule, seconds in (starts or {}).items():
        if rule in by_rule and rule not in (*TRAINING, *REPORTING):
            overhead += min(by_rule[rule]["jobs"] * seconds, by_rule[rule]["seconds"])
    idle = max(0.0, total_seconds * cores - job_seconds)
    result = Orchestration(
        total_seconds=total_seconds,
        cores=cores,
        jobs=sum(int(found["jobs"]) for found in by_rule.values()),
        training=training,
        computation=job_seconds - overhead - reporting,
        step_overhead=overhead,
        reporting=reporting,
        idle=idle,
        share=(overhead + reporting + idle) / (job_seconds + idle),
        by_rule=by_rule,
    )
    if output is not None:
        write_json(output, asdict(result))
    return result


_IMPORTS = {
    "fit_posterior": "probmetric.training.assemble, probmetric.uncertainty._base",
    "embed": "probmetric.training.assemble, probmetric.uncertainty._base, probmetric.data.images",
    "evaluate": "probmetric.runs.steps, probmetric.runs.evaluate",
    "prepare": "dvc.cli",
}


def rules_run(benchmarks: str | Path, since: float) -> set[str]:
    """Rules with a benchmark file that is not older than `since`."""
    return set(_by_rule(Path(benchmarks), since))


def start_seconds(rules: Iterable[str]) -> dict[str, float]:
    """Rule -> seconds a process of that rule needs before it works, measured now by starting one each."""
    wanted = {rule: _IMPORTS[rule] for rule in rules if rule in _IMPORTS}
    found = {}
    for modules in set(wanted.values()):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
        found[modules] = time.perf_counter() - started
    return {rule: found[modules] for rule, modules in wanted.items()}


def _by_rule(folder: Path, since: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(lambda: {"jobs": 0.0, "seconds": 0.0})
    for path in sorted(folder.rglob("*.tsv")):
        rule = path.relative_to(folder).parts[0].removesuffix(".tsv")
        if rule != "bundle" and path.stat().st_mtime >= since:
            found[rule]["jobs"] += 1
            found[rule]["seconds"] += job_seconds(path, "s")
    return dict(found)


def _epoch_seconds(run: RunFolder, since: float) -> float:
    if not present(run.history_file) or run.history_file.stat().st_mtime < since:
        return 0.0
    return sum(row.get("seconds") or 0.0 for row in run.history)
