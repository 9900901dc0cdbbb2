"""What the Snakefile knows: experiments, runs, and each step's settings as JSON.

Kept out of the Snakefile so that it can be tested, and light: reading a configuration imports no PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from probmetric.config import ConfigError, Experiment, Method, Params, Tuning, parse
from probmetric.io import read_yaml, sha256_file, write_json
from probmetric.planning.metric_names import check_metrics
from probmetric.planning.runs import PlannedExperiment, Run, find_run, plan_experiment
from probmetric.privacy import switch_telemetry_off
from probmetric.reporting.figures import REGISTRY as FIGURES
from probmetric.run_folder import RunFolder

_PLACES = {"report": "index.html", "table": "table.md"}

# Each step is repeated only when one of its own settings changes.
_POSTERIOR = {"dataset", "noise", "method", "seed", "prepared", "base", "uncertainty"}
_STEPS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "train": lambda run: run.settings.encoder().plain(),
    "fit_posterior": lambda run: run.settings.model_dump(mode="json", include=_POSTERIOR),
    "embed": lambda run: run.settings.model_dump(mode="json", include=_POSTERIOR | {"ood"}),
    "evaluate": lambda run: run.settings.plain(),
}


@dataclass(frozen=True)
class WorkflowPlan:
    """The experiments asked for and the runs they need."""

    params: Params
    planned: Mapping[str, PlannedExperiment]
    runs: Mapping[str, Run]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> WorkflowPlan:
        """Validate Snakemake's `config` (params.yaml and `--config` values) and expand its experiments.

        Raises:
            ConfigError: where, the value, what is allowed and the nearest match.
        """
        params: Params = parse(Params, dict(config), "params.yaml")
        _check_stage_names(Path("params.yaml"))
        planned = {name: plan_experiment(params, name) for name in params.experiments}
        for name, experiment in planned.items():
            _check_report(params, name, experiment)
        runs = {run.name: run for experiment in planned.values() for run in experiment.runs}
        named = [find_run(params, name) for name in params.runs]
        encoders = {name: run for experiment in planned.values() for name, run in experiment.encoders.items()}
        encoders |= {name: find_run(params, name) for run in named for name in run.encoders}
        runs = encoders | {run.name: run for run in named} | runs
        _check_archives(params, {name for run in runs.values() for name in run.data})
        return cls(params, planned, runs)

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments to build."""
        return list(self.planned)

    @property
    def specs(self) -> dict[str, Experiment]:
        """What each experiment's file says, datasets replaced where its name asks for it."""
        return {name: experiment.spec for name, experiment in self.planned.items()}

    def run_names(self, experiment: str) -> tuple[str, ...]:
        """Runs of an experiment, in its order."""
        return tuple(run.name for run in self.planned[experiment].runs)

    def settings_json(self, run: str, step: str) -> str:
        """Settings of `step` for `run`, nothing else: what Snakemake compares to decide whether to repeat it."""
        return json.dumps(_STEPS[step](self.runs[run]), sort_keys=True)

    def report_json(self, experiment: str) -> str:
        """What an experiment's tables, figures and page depend on besides the results."""
        planned = self.planned[experiment]
        settings = planned.spec.model_dump(mode="json", include={"title", "description", "metrics", "figures"})
        settings["labels"] = {run.settings.method: run.settings.label for run in planned.runs}
        settings["runs"] = list(self.run_names(experiment))
        if planned.budgets:
            settings["budgets"] = dict(planned.budgets)
        if planned.substitution:
            settings["substituted"] = planned.substitution.source
            settings["left_out"] = dict(planned.left_out)
        return json.dumps(settings, sort_keys=True)

    def digests(self, run: str) -> list[str]:
        """Digest files of the prepared datasets a run reads, its own first."""
        return [f"{self.params.data.prepared}/{name}/digest" for name in self.runs[run].data]

    @staticmethod
    def data_identity(digests: Iterable[str]) -> str:
        """First digits of every digest file's hash; a dataset that is not prepared yet is named so."""
        return " ".join(sha256_file(path)[:16] if Path(path).exists() else "not prepared" for path in digests)


def _check_stage_names(path: Path) -> None:
    """Stop where the file names an experiment on other data: DVC could then not read any of its stages."""
    named = read_yaml(path).get("experiments", []) if path.exists() else []
    for name in [named] if isinstance(named, str) else named:
        if "@" in str(name):
            raise ConfigError(
                f"{path}: experiments: {name!r} cannot be the name of a DVC stage; ask for it by "
                f"`snakemake --config experiments={name}`."
            )


def _check_archives(params: Params, names: Iterable[str]) -> None:
    """Stop, saying what to put where, if a dataset is neither prepared nor can be: before the first job, not after."""
    folder = Path(params.data.prepared)
    wanted = {name.partition("+")[0] for name in names if not (folder / name / "digest").exists()}
    if not wanted:
        return
    from probmetric.planning.declared import status

    absent = [row for row in status(params, sorted(wanted)) if row.missing]
    lines = [f"dataset {r.name!r} is {r.state}: {', '.join(r.missing)} not found; {r.next_command}." for r in absent]
    if lines:
        hint = "`probmetric data status` shows all datasets; a set that is only needed as `ood` can be left out there."
        raise ConfigError("\n".join([*lines, hint]))


def _check_report(params: Params, name: str, planned: PlannedExperiment) -> None:
    """Stop where an experiment asks for a figure nobody draws or a metric nothing computes."""
    for figure in planned.spec.figures:
        try:
            FIGURES.check(figure)
        except ValueError as error:
            raise ConfigError(f"experiment {name}: figures: {error}") from None
    sets = [other for run in planned.runs for other in run.settings.ood]
    check_metrics(f"experiment {name}", planned.spec.metrics, ks=params.evaluation.ks, ood=sets)


def write_schemas(folder: Path) -> list[Path]:
    """Write the JSON schemas of params.yaml, experiment, methods and tuning files, for editors."""
    models: dict[str, Any] = {
        "params": Params,
        "experiment": Experiment,
        "tuning": Tuning,
        "methods": dict[str, Method],
    }
    paths = []
    for name, model in models.items():
        path = folder / f"{name}.schema.json"
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | TypeAdapter(model).json_schema()
        write_json(path, schema)
        paths.append(path)
    return paths


def put_environment_on_path() -> None:
    """Let jobs find `probmetric` and `dvc` beside this Python, whether or not its environment is activated."""
    switch_telemetry_off()
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def record_in_dvc(experiments: Iterable[str]) -> None:
    """Tell DVC that Snakemake, run by hand, has done its last stage, so that `dvc repro` has nothing left to do.

    Inside `dvc repro` (DVC_STAGE is set) DVC records the stage itself.
    """
    if "DVC_STAGE" in os.environ or not Path(".dvc").exists():
        return
    for name in experiments:
        command = ["dvc", "commit", "--force", "--quiet", f"benchmark@{name}"]
        subprocess.run(command, check=False, capture_output=True)


def closing_summary(plan: WorkflowPlan, seconds: float, cores: int) -> str:
    """Where to look after a finished workflow, and what share of its wall time was orchestration.

    Args:
        plan: what was built.
        seconds: wall time since the workflow's process started.
        cores: jobs that could run at once.
    """
    from probmetric.reporting.orchestration import measure, start_seconds

    since = time.time() - seconds
    account = measure(
        "benchmarks/jobs",
        [run.path for run in map(RunFolder.named, plan.runs) if run.history_file.exists()],
        seconds,
        cores=cores,
        since=since,
        starts=start_seconds(),
        output="state/orchestration.json",
    )
    places = [f"  {kind:<8} reports/{name}/{file}" for name in plan.experiments for kind, file in _PLACES.items()]
    return "\n".join(["", account.text(), "", "Done. Where to look:", *places, "  runs     make ui  (MLflow)"])


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
