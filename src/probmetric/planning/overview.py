"""List what can be run: every experiment with its runs and data; the state of an experiment's runs, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from probmetric.config import ConfigError, Params
from probmetric.planning.declared import status
from probmetric.planning.expansion import plan_experiment
from probmetric.planning.experiments import experiment_names
from probmetric.runs.folder import RunFolder
from probmetric.runs.made import Judge, State
from probmetric.runs.names import split_data_name, without_split

if TYPE_CHECKING:
    from probmetric.planning.workflow import WorkflowPlan
    from probmetric.runs.made import Verdict

NAMED = 6  # runs that are named for one reason
_LEGEND = "datasets: * not prepared yet, ! archives missing (`probmetric data status`)"


def experiment_overview(params: Params) -> str:
    """Return a line per experiment: runs, finished runs, title, the data it needs and whether they are there."""
    lacking = {row.name for row in status(params) if row.missing}
    rows = [("experiment", "runs", "finished", "title", "datasets")]
    for name in experiment_names():
        try:
            planned = plan_experiment(params, name)
        except ConfigError as error:
            rows.append((name, "", "", f"cannot be planned: {error}".splitlines()[0], ""))
            continue
        judge = Judge({**planned.encoders, **{run.name: run for run in planned.runs}})
        there = [run.name for run in planned.runs if RunFolder.named(run.name).finished]
        finished = sum(judge.run_verdict(name).usable for name in there)
        data = dict.fromkeys(data for run in planned.runs for data in run.data)
        shown = " ".join(_marked(entry, Path(params.data.prepared), lacking) for entry in data)
        rows.append((name, str(len(planned.runs)), str(finished), planned.spec.title, shown))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", _LEGEND])


def status_text(plan: WorkflowPlan, *, every: bool = False) -> str:
    """Return the finished, stale and missing runs of every experiment of `plan`, a line for each reason.

    Args:
        plan: the experiments.
        every: give every run its own line instead.
    """
    blocks = []
    for name in plan.experiments:
        verdicts = {run: plan.judge.run_verdict(run) for run in plan.run_names(name)}
        states = Counter(verdict.state for verdict in verdicts.values())
        counted = ", ".join(f"{states[state]} {state}" for state in get_args(State) if states[state])
        blocks.append(f"{name}: {len(verdicts)} runs: {counted}")
        blocks += [f"  {run}  {_said(verdict)}" for run, verdict in verdicts.items()] if every else _reasons(verdicts)
    data = [f"dataset {name}: {why}; it will be prepared again" for name, why in plan.outdated_data.items()]
    return "\n".join([*blocks, *data])


def _said(verdict: Verdict) -> str:
    return verdict.state + (f": {verdict.why}" if verdict.why else "")


def _reasons(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return a line per state and reason with its runs, at most `NAMED` by name."""
    runs_of: dict[str, list[str]] = defaultdict(list)
    for run, verdict in verdicts.items():
        if not verdict.usable:
            runs_of[_said(verdict)].append(run)
    lines = []
    for reason, runs in runs_of.items():
        more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
        lines += [f"  {len(runs)} {reason}", f"      {', '.join(runs[:NAMED])}{more}"]
    return lines


def _marked(data: str, prepared: Path, lacking: Set[str]) -> str:
    """Return a dataset's name, with `*` if it will be prepared on request, with `!` if its archives are missing."""
    if (prepared / data / "digest").exists():
        return data
    return f"{data}!" if without_split(split_data_name(data)[0]) in lacking else f"{data}*"
