"""What the Snakefile knows: experiments, runs, the plan file of each, and which steps are to be made again.

Kept out of the Snakefile so that it can be tested, and light: reading a configuration imports no PyTorch.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from probmetric.config import ConfigError, Experiment, Method, Params, Tuning, parse
from probmetric.io import read_yaml, write_json
from probmetric.planning.bundles import BundlePlan, bundled
from probmetric.planning.declared import absent, outdated, strangers
from probmetric.planning.metric_names import check_metrics
from probmetric.planning.needs import Need, Needs
from probmetric.planning.plans import PLANS, DataPlan, ReportPlan, RunPlan, write_current
from probmetric.planning.runs import PlannedExperiment, Run, find_run, origins, plan_experiment
from probmetric.planning.staleness import Judge, report_state, steps_of
from probmetric.privacy import switch_telemetry_off
from probmetric.reporting.figures import REGISTRY as FIGURES
from probmetric.reporting.record import signature
from probmetric.runs.folder import RunFolder, Step
from probmetric.runs.identity import step_code
from probmetric.runs.names import RESULTS
from probmetric.runs.source import remember

_SMALL = 200
_STEPS_PRIORITY = 3  # of the last step of a run (workflow/rules/runs.smk)
AGAIN = PLANS / "again"


def receipt(bundle: str) -> str:
    """The file that says a bundle is made."""
    return f"state/bundles/{bundle}.json"


def weights_of(runs: Iterable[str | None]) -> list[str]:
    """Weight files of runs, of which some may be None."""
    return sorted(str(RunFolder.named(run).weights_file()) for run in runs if run)


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
            ConfigError: where, the value, what is allowed and the nearest match; or results are stale and `stale` is
                `error`.
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
        encoders = origins([*named, *encoders.values()], lambda name: find_run(params, name)) | encoders
        runs = encoders | {run.name: run for run in named} | runs
        _check_archives(params, {name for run in runs.values() for name in run.data})
        plan = cls(params, planned, runs)
        plan._check_weights()
        plan._check_stale()
        return plan

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments to build."""
        return list(self.planned)

    def run_names(self, experiment: str) -> tuple[str, ...]:
        """Runs of an experiment, in its order."""
        return tuple(run.name for run in self.planned[experiment].runs)

    def run(self, name: str) -> Run:
        """A run of the plan.

        Raises:
            ConfigError: no planned experiment has it.
        """
        if name not in self.runs:
            raise ConfigError(
                f"run {name} is in none of the experiments planned ({', '.join(self.planned) or 'none'}). "
                f"Add it to one, name its experiment, or ask for it alone: --config 'runs=[{name}]'"
            )
        return self.runs[name]

    @functools.cached_property
    def needs(self) -> Needs:
        """Knows how much time and memory a step takes."""
        return Needs()

    def need(self, run: str, step: Step, attempt: int) -> Need:
        """Time and memory that a job of `step` asks for at its attempt 1, 2, ..."""
        return self.needs.of(self.runs[run], step, attempt)

    def bundle_need(self, bundle: str, attempt: int) -> Need:
        """Time and memory that the job of a bundle asks for."""
        return self.needs.of_all([self.runs[run] for run in self._bundles[bundle].runs], attempt)

    @functools.cached_property
    def judge(self) -> Judge:
        """Knows of every step whether it is finished and up to date."""
        return Judge(self.runs, self.params.stale, self.outdated_data)

    @functools.cached_property
    def outdated_data(self) -> dict[str, str]:
        """Prepared datasets of the plan that are to be prepared again, and why."""
        found = {name: outdated(self.params, name) for name in self._data}
        return {name: why for name, why in found.items() if why}

    def repeats(self, run: str, step: Step) -> bool:
        """Whether a step is not finished, or its files are of other settings, data or code."""
        return not self.judge.verdict(run, step).usable

    def outdated(self, run: str, step: Step) -> bool:
        """Whether a step's files are there, but of other settings, data or code."""
        return self.judge.verdict(run, step).state == "stale"

    def reports_again(self, experiment: str) -> bool:
        """Whether an experiment's report has to be made, or made again."""
        if any(not self.judge.run_verdict(name).usable for name in self.run_names(experiment)):
            return True
        return signature(experiment) != report_state(self.report_plan(experiment), self.judge)

    @functools.cached_property
    def _bundles(self) -> dict[str, BundlePlan]:
        """By name, the bundles the unfinished runs are made in; empty where every step has a job of its own."""
        started_from = {run.origin for run in self.runs.values()}
        unfinished = [
            name for name in self.runs if not self.judge.run_verdict(name).usable and name not in started_from
        ]
        plans = [self._bundle(names) for names in bundled(self.runs, unfinished, self.params.runs_per_job)]
        return {plan.path.stem: plan for plan in plans}

    def _bundle(self, names: Iterable[str]) -> BundlePlan:
        needed = dict.fromkeys(run for name in names for run in (*self.runs[name].encoders, name))
        encoders_first = sorted(needed, key=lambda name: not self.runs[name].trains)
        return BundlePlan({name: self.plan_file(name) for name in encoders_first}, self.params.stale)

    @functools.cached_property
    def _bundle_of(self) -> dict[str, str]:
        return {run: name for name, bundle in self._bundles.items() for run in bundle.runs}

    def bundle_file(self, bundle: str) -> str:
        """The file that tells the job of a bundle everything."""
        return str(self._bundles[bundle].path)

    def bundle_digests(self, bundle: str) -> list[str]:
        """Digest files of the prepared datasets the runs of a bundle read."""
        return sorted({path for run in self._bundles[bundle].runs for path in self.digests(run)})

    def bundle_origins(self, bundle: str) -> list[str]:
        """Weight files that runs of a bundle start from; a job of its own makes each."""
        return weights_of({self.runs[name].origin for name in self._bundles[bundle].runs})

    def awaited(self, experiment: str, name: str, *, every: bool) -> list[str]:
        """Files a report waits for: `name` of its runs, or the receipts of the bundles they are made in.

        In a large experiment finished runs are not waited for, unless `every` run is to be looked at.
        """
        runs = self.run_names(experiment)
        if self._bundle_of:
            return sorted({receipt(self._bundle_of[run]) for run in runs if run in self._bundle_of})
        small = every or len(runs) <= _SMALL
        return [f"{RESULTS}/{run}/{name}" for run in runs if small or not self.judge.run_verdict(run).usable]

    @functools.cached_property
    def _plan_files(self) -> dict[str, str]:
        return {name: str(RunPlan.of(run, self.params).write()) for name, run in self.runs.items()}

    def plan_file(self, run: str) -> str:
        """The file that tells a job of `run` everything."""
        return self._plan_files[run]

    @functools.cached_property
    def _reports(self) -> dict[str, ReportPlan]:
        return {name: self._report_plan(name) for name in self.planned}

    def report_plan(self, experiment: str) -> ReportPlan:
        """What an experiment's tables, figures, page and MLflow runs depend on besides the results."""
        return self._reports[experiment]

    def _report_plan(self, experiment: str) -> ReportPlan:
        planned = self.planned[experiment]
        shown = self.run_names(experiment)
        needed = dict.fromkeys([*shown, *(name for run in planned.runs for name in run.encoders), *planned.encoders])
        report = planned.spec.model_dump(mode="json", include={"title", "description", "metrics", "figures"})
        report["labels"] = {run.settings.method: run.settings.label for run in planned.runs}
        report["prepared"] = self.params.data.prepared
        if planned.budgets:
            report["budgets"] = dict(planned.budgets)
            report["tuned"] = dict(planned.tuned)
            report["tuned_on"] = dict(planned.tuned_on)
        if planned.substitution:
            report["substituted"] = planned.substitution.source
            report["left_out"] = dict(planned.left_out)
        return ReportPlan(
            experiment=experiment,
            shown=shown,
            runs={name: self.plan_file(name) for name in needed},
            report=report,
            tracking=self.params.tracking.model_dump(mode="json"),
            stale=self.params.stale,
            plugins=self.params.plugins,
        )

    def report_file(self, experiment: str) -> str:
        """The file that tells the reporting jobs of an experiment everything."""
        return str(self.report_plan(experiment).write())

    @functools.cached_property
    def data_file(self) -> str:
        """The file that tells the data jobs where data lies and how it is made."""
        return str(DataPlan.of(self.params).write())

    def start(self) -> None:
        """Say to jobs on other machines which plans they follow."""
        runs = {name: self.plan_file(name) for name in self.runs}
        write_current(runs, {name: self.report_file(name) for name in self.experiments}, self.data_file)

    @functools.cached_property
    def _data(self) -> list[str]:
        return list(dict.fromkeys(data for run in self.runs.values() for data in run.data))

    def urgency(self, data: str) -> int:
        """How early prepared data is needed: above any step of a run, and highest for that of the first run."""
        return _STEPS_PRIORITY + len(self._data) - self._data.index(data) if data in self._data else 0

    def digests(self, run: str) -> list[str]:
        """Digest files of the prepared datasets a run reads, its own first."""
        return [f"{self.params.data.prepared}/{name}/digest" for name in self.run(run).data]

    @functools.cached_property
    def again(self) -> str:
        """A file newer than every result: input of the steps that are made again, so that Snakemake does."""
        AGAIN.parent.mkdir(parents=True, exist_ok=True)
        AGAIN.write_text(f"{time.time_ns()}\n", encoding="utf-8")
        return str(AGAIN)

    def stale(self) -> dict[str, str]:
        """Run -> why, of the runs with results that no longer are what is planned."""
        verdicts = {name: self.judge.run_verdict(name) for name in self.runs}
        return {name: verdict.why for name, verdict in verdicts.items() if verdict.state == "stale"}

    def _check_weights(self) -> None:
        """Stop if a run that is still to be trained starts from a weight file that is not there."""
        named = {name: run.settings.pretrained for name, run in self.runs.items() if run.trains}
        files = {
            name: path
            for name, path in named.items()
            if isinstance(path, str) and self.runs[name].origin not in self.runs and not Path(path).is_file()
        }
        for name, path in files.items():
            if not self.judge.verdict(name, "train").usable:
                raise ConfigError(
                    f"run {name}: pretrained: there is no weight file {path}; correct it or put it there."
                )

    def _check_stale(self) -> None:
        if self.params.stale == "error" and (stale := self.stale()):
            shown = "\n".join(f"  {name}: {why}" for name, why in list(stale.items())[:10])
            raise ConfigError(
                f"{len(stale)} run(s) are stale, and `stale` is `error`:\n{shown}\n"
                "Set `stale: rerun` to make them again, `keep` to use them marked; `probmetric status` lists all."
            )

    def _read_sources(self) -> None:
        """Read the code of every step once, here: each of the jobs would parse all of it."""
        for run in {run.settings.method: run for run in self.runs.values()}.values():
            for step in steps_of(run):
                step_code(run.settings, step)
        remember()

    def notice(self) -> str:
        """One line on what is stale or kept, for the start of a workflow; empty where all is as planned."""
        states = Counter(self.judge.run_verdict(name).state for name in self.runs)
        self._read_sources()
        said = []
        if states["stale"]:
            said.append(f"{states['stale']} run(s) are stale and are made again")
        if states["kept"]:
            said.append(f"{states['kept']} run(s) of an earlier release are kept, marked in every table")
        return f"{'; '.join(said)} (`probmetric status` says why)." if said else ""


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
    lines = [
        f"dataset {r.name!r} is {r.state}: {', '.join(r.missing)} not found; {r.next_command}."
        for r in absent(params, names)
    ]
    if lines:
        raise ConfigError("\n".join([*lines, "`probmetric data status` shows all datasets."]))


def _check_report(params: Params, name: str, planned: PlannedExperiment) -> None:
    """Stop where an experiment asks for a figure nobody draws or a metric nothing computes."""
    for figure in planned.spec.figures:
        try:
            FIGURES.check(figure)
        except ValueError as error:
            raise ConfigError(f"experiment {name}: figures: {error}") from None
    sets = [other for run in planned.runs for other in strangers(params, run.settings.dataset)]
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


def prepare_environment() -> None:
    """Let jobs find `probmetric` and `dvc` beside this Python, whether or not its environment is activated.

    Their C library (glibc 2.35 or newer; others do not read this) takes memory in huge pages where the kernel offers
    them on request, and with a `GLIBC_TUNABLES` of the user's as that says: a step of a small net takes 5 to 10 % less
    processor time.
    """
    switch_telemetry_off()
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
