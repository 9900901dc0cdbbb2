"""Give the Snakefile its experiments, runs, and their plan files.

The main process of a workflow validates the configuration, expands it and writes plan files (`WorkflowPlan`). The rules
read them, also in jobs on other machines (`run_inputs`, `report_inputs`). PyTorch is imported only if a network or a
weight file decides whether a training can begin (`rehearsal`).
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from probmetric.config import ConfigError, Experiment, Method, Params, Tuning, parse
from probmetric.errors import nearest
from probmetric.io import digest_of, read_json, read_yaml, write_json
from probmetric.metrics import METRICS, metric_names
from probmetric.metrics.ood import UNANSWERABLE
from probmetric.models import REGISTRY as BACKBONES
from probmetric.models._weights import missing_weights, unfit_weights, unknown_tag, unpublished
from probmetric.planning.declared import absent, outdated, strangers
from probmetric.planning.expansion import PlannedExperiment, borrowed, find_run, plan_experiment
from probmetric.planning.plans import (
    DATA,
    ReportPlan,
    dataset_plan,
    reporting_code,
    workflow_runs,
    write_data_plan,
    write_dataset_plan,
)
from probmetric.planning.rehearsal import kind_of, refusal
from probmetric.process import path_with_this_python, switch_telemetry_off
from probmetric.reporting.claims import load_claims
from probmetric.reporting.figures import REGISTRY as FIGURES
from probmetric.runs.folder import RunFolder, Step
from probmetric.runs.identity import planned_steps, plugin_modules
from probmetric.runs.made import Judge
from probmetric.runs.plan import PLANS, Run, RunPlan
from probmetric.runs.source import is_own, remember, unnamed_reads
from probmetric.tracking.store import check_place

log = logging.getLogger(__name__)

TIMM_TAG = str(BACKBONES.options("timm")["tag"].default)
# Beginnings of metrics' names that are measured only with a setting of `evaluation`.
SWITCHES = {"train/structure/": "training_images", "structure/proxy_": "proxies", "clustering/": "clustering"}
AHEAD = 60  # seconds by which clocks of machines with one file system may differ


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
            ConfigError: a value is wrong; the message names place, value, allowed values and the nearest match.
        """
        params: Params = parse(Params, dict(config), "params.yaml")
        _check_stage_names(Path("params.yaml"))
        planned = {name: plan_experiment(params, name) for name in params.experiments}
        for name, experiment in planned.items():
            check_report(params, name, experiment)
        runs = {run.name: run for experiment in planned.values() for run in experiment.runs}
        named = [find_run(params, name) for name in params.runs]
        encoders = {name: run for experiment in planned.values() for name, run in experiment.encoders.items()}
        encoders |= borrowed(named, partial(find_run, params))
        plan = cls(params, planned, encoders | {run.name: run for run in named} | runs)
        check_archives(params, plan.data)
        plan._check_trainings()
        return plan

    @classmethod
    def of(cls, params: Params, experiments: Sequence[str]) -> WorkflowPlan:
        """Return the plan of some experiments by the current params.yaml; errors as for `from_config`."""
        return cls.from_config(params.model_dump(mode="json") | {"experiments": list(experiments)})

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments to build."""
        return list(self.planned)

    def run_names(self, experiment: str) -> tuple[str, ...]:
        """Return the runs of an experiment, in its order."""
        return tuple(run.name for run in self.planned[experiment].runs)

    @property
    def data(self) -> list[str]:
        """Prepared datasets that the runs read, each once."""
        return list(dict.fromkeys(name for run in self.runs.values() for name in run.data))

    @property
    def reported(self) -> list[str]:
        """Names of the experiments that get a report: none if the runs end before their evaluation."""
        return self.experiments if self.params.until == "evaluate" else []

    def is_made(self, run: str) -> bool:
        """Say whether a run is made for Snakemake, up to the step with which the runs end."""
        return Path(made_file(self.params.until).format(run=run)).exists()

    @functools.cached_property
    def judge(self) -> Judge:
        """The judge that tells of every step whether it is finished and up to date."""
        return Judge(self.runs)

    def write(self) -> None:
        """Write the plan file of every planned dataset, run and report, if it has changed.

        The plan file also changes for a run or dataset that exists but not as planned (its record was deleted, or its
        files came from elsewhere), so that Snakemake makes it again. While a workflow is running here, existing plans
        do not change: jobs that have not started yet do what was planned.
        """
        plans: dict[Path, Callable[[], Path]] = {DATA: partial(write_data_plan, self.params)}
        for name in self.data:
            again = name in self.outdated_data
            plans[dataset_plan(name)] = partial(write_dataset_plan, self.params, name, again=again)
        for run in self.runs.values():
            plan = self.run_plan(run)
            plans[plan.path] = partial(plan.write, planned_steps(run), again=self._unlike(run))
        plans |= {plan.path: plan.write for plan in map(self.report_plan, self.planned)}
        if workflow_runs():
            log.warning("a workflow is running here and keeps its plan; changes of params.yaml wait for the next one")
            plans = {path: write for path, write in plans.items() if not path.exists()}
        for write in plans.values():
            write()
        remember()

    def _unlike(self, run: Run) -> bool:
        """Say whether a run exists for Snakemake, but was not made as planned."""
        steps = run.steps_until(self.params.until)
        return self.is_made(run.name) and not all(self.judge.verdict(run.name, step).usable for step in steps)

    def check_machine(self) -> None:
        """Stop early if this machine would stop the workflow late: by its clock, or by the place of the MLflow store.

        Raises:
            ConfigError: a file that Snakemake compares has a time in the future; Snakemake would wait, or repeat all.
            FileError: the store cannot be written.
        """
        self._check_times()
        if self.planned:
            check_place(self.params.tracking.store, self.params.tracking.artifacts)

    def _check_times(self) -> None:
        files = [Path(self.params.data.prepared) / name / "digest" for name in self.data]
        files += [file for name in self.runs for file in (PLANS / f"{name}.json", RunFolder.named(name).metrics_file)]
        files += [Path(f"reports/{name}/index.html") for name in self.planned]
        limit = time.time() + AHEAD
        late = [str(file) for file in dict.fromkeys(files) if file.exists() and file.stat().st_mtime > limit]
        if late:
            more = f" and {len(late) - 1} other file(s)" if len(late) > 1 else ""
            folders = f"results state reports {self.params.data.prepared}"
            raise ConfigError(
                f"{late[0]}{more}: last changed in the future, by this machine's clock. Set the clock right, or give "
                f"the files the present time: `find {folders} -newermt now -exec touch {{}} +`."
            )

    def run_plan(self, run: Run) -> RunPlan:
        """Return the plan for the job of a run."""
        return RunPlan(run, self.params.tracking.store, self.params.plugins)

    def report_plan(self, experiment: str) -> ReportPlan:
        """Return everything except results on which an experiment's tables, figures, page and MLflow runs depend."""
        planned = self.planned[experiment]
        shown = self.run_names(experiment)
        needed = dict.fromkeys([*shown, *(name for run in planned.runs for name in run.encoders), *planned.encoders])
        report = planned.spec.model_dump(mode="json", include={"title", "description", "metrics", "figures"})
        report["labels"] = {run.settings.method: run.settings.label for run in planned.runs}
        report["prepared"] = self.params.data.prepared
        report["plan"] = self.plan_digest(experiment)
        report["committed"] = "" if planned.substitution else planned.spec.plan
        report |= planned.searched
        foreign = [module for module in map(FIGURES.module, planned.spec.figures) if not is_own(module)]
        return ReportPlan(
            experiment=experiment,
            shown=shown,
            runs={name: str(self.run_plan(self.runs[name]).path) for name in needed},
            report=report,
            tracking=self.params.tracking.model_dump(mode="json"),
            plugins=self.params.plugins,
            code=reporting_code(tuple(foreign)),
        )

    def check_planned(self, run: str) -> None:
        """Raise `ConfigError` for a run that was not planned, because its plan file may be old."""
        if run not in self.runs:
            raise ConfigError(
                f"run {run} is in none of the experiments planned ({', '.join(self.planned) or 'none'}). "
                f"Add it to one, name its experiment, or ask for it alone: --config 'runs=[{run}]'"
            )

    def _check_trainings(self) -> None:
        """Stop if a pending training cannot begin: network, weights or images are missing, or do not fit."""
        judged: dict[str, str] = {}
        for name, run in self._untrained():
            where = next((f"experiment {each}: " for each in self.planned if name in self.run_names(each)), "")
            where, weights, tag = f"{where}run {name}", run.settings.pretrained, _timm_tag(run)
            origin, file, why = self.runs.get(run.origin or ""), isinstance(weights, str), ""
            if unknown := tag and unknown_tag(tag):
                raise ConfigError(f"{where}: backbone: {unknown}.")
            if origin:
                networks = [f"{each.settings.backbone.name} {_timm_tag(each)}".split(".")[0] for each in (origin, run)]
                if networks[0] != networks[1]:
                    why = f"the weights of run {origin.name} are of {networks[0].strip()}, not {networks[1].strip()}"
            elif file and not Path(str(weights)).is_file():
                why = f"there is no weight file {weights}; correct it or put it there"
            elif weights and tag:
                why = unfit_weights(str(weights), tag).rstrip(".") if file else unpublished(tag)
            if why:
                raise ConfigError(f"{where}: pretrained: {why}.")
            kind = kind_of(run.settings)
            if kind and kind not in judged:
                data = run.settings.data not in self.outdated_data
                judged[kind] = refusal(run.settings, data=data, weights=file and not origin)
            if why := judged.get(kind, ""):
                raise ConfigError(f"{where}: {why}")

    def _untrained(self) -> Iterator[tuple[str, Run]]:
        """Yield the runs that are not trained yet."""
        for name, run in self.runs.items():
            if run.trains and not self.judge.verdict(name, "train").usable:
                yield name, run

    @functools.cached_property
    def outdated_data(self) -> dict[str, str]:
        """Return the prepared datasets of the plan that must be prepared again, and why."""
        reasons = {name: outdated(self.params, name) for name in self.data}
        return {name: why for name, why in reasons.items() if why}

    def plan_digest(self, experiment: str) -> str:
        """Return the digest of an experiment's plan: runs with all their settings, metrics, claims."""
        runs = {name: self.runs[name].settings.model_dump(mode="json") for name in self.run_names(experiment)}
        claims = [claim.model_dump(mode="json") for claim in load_claims()]
        return digest_of([runs, list(self.planned[experiment].spec.metrics), claims])[:12]

    def notice(self) -> str:
        """Return the message at the start of a workflow; empty if all is as planned."""
        stale = sum(self.judge.run_verdict(name).state == "stale" for name in self.runs)
        lines = [f"{stale} run(s) are stale and are made again (`probmetric status` says why)."] if stale else []
        modules = {module for run in self.runs.values() for module in plugin_modules(run.settings)}
        lines += [
            f"Warning: {module} reads a file while it is imported and names none that is there, so its changes "
            'go unnoticed; name it in the module: READS = ["scale.npy"].'
            for module in unnamed_reads(*sorted(modules))
        ]
        lines += [
            f"Warning: the plan of {name} is {digest}, not {planned.spec.plan}, which its experiment file has."
            for name, planned in self.planned.items()
            if planned.spec.plan
            and not planned.substitution
            and (digest := self.plan_digest(name)) != planned.spec.plan
        ]
        tags = dict.fromkeys(_timm_tag(run) for _, run in self._untrained() if run.settings.pretrained is True)
        lines += [f"Warning: pretrained: {why}." for why in map(missing_weights, filter(None, tags)) if why]
        return "\n".join(lines)


def _timm_tag(run: Run) -> str:
    """Return the timm tag of a run's backbone; empty for another backbone."""
    backbone = run.settings.backbone
    return str(backbone.options.get("tag", TIMM_TAG)) if backbone.name == "timm" else ""


def made_file(until: Step) -> str:
    """Return the file (with `{run}` for the run's name) that shows Snakemake that a run is made up to a step.

    Snakemake removes it before the job; the job restores it if the results are still right.
    """
    return "results/{run}/metrics.json" if until == "evaluate" else f"state/{until}/{{run}}"


def run_inputs(run: str, result_of: str) -> list[str]:
    """Return the files that the job of a run waits for, from its plan.

    Args:
        run: its name.
        result_of: the file that shows that another run is made, with `{run}` for its name.
    """
    plan = RunPlan.read(PLANS / f"{run}.json").run
    others = dict.fromkeys([*plan.encoders, *([plan.origin] if plan.trains and plan.origin else [])])
    digests = [f"{plan.settings.prepared}/{name}/digest" for name in plan.data]
    weights = plan.settings.pretrained
    files = [weights] if isinstance(weights, str) and not plan.origin and Path(weights).is_file() else []
    return [*digests, *(result_of.format(run=name) for name in others if name != run), *files]


def report_inputs(experiment: str) -> list[str]:
    """Return the results that an experiment's report waits for, from its plan."""
    values = read_json(PLANS / "experiments" / f"{experiment}.json", "plan again", dict[str, Any])
    return [str(RunFolder.named(run).metrics_file) for run in values["shown"]]


def _check_stage_names(path: Path) -> None:
    """Stop if the file names an experiment on other data, since DVC could then not read any of its stages."""
    named = (read_yaml(path).get("experiments") if path.exists() else None) or []
    for name in [named] if isinstance(named, str) else named:
        if "@" in str(name):
            raise ConfigError(
                f"{path}: experiments: {name!r} cannot be the name of a DVC stage; ask for it by "
                f"`snakemake --config experiments={name}`."
            )


def check_archives(params: Params, names: Iterable[str]) -> None:
    """Stop before the first job if a dataset cannot be prepared; the message says which files to put where."""
    lines = [
        f"dataset {r.name!r} is {r.state}: {', '.join(r.missing)} not found; {r.next_command}."
        for r in absent(params, names)
    ]
    if lines:
        raise ConfigError("\n".join([*lines, "`probmetric data status` shows all datasets."]))


def check_report(params: Params, name: str, planned: PlannedExperiment) -> None:
    """Stop if an experiment names an unknown figure, a metric that is not computed, or one label twice."""
    labels = dict[str, str]()
    for method, label in {run.settings.method: run.settings.label for run in planned.runs}.items():
        if (other := labels.setdefault(label, method)) != method:
            raise ConfigError(
                f"experiment {name}: methods {other!r} and {method!r} are both called {label!r} in tables and figures; "
                "give one of them another `label`."
            )
    for figure in planned.spec.figures:
        try:
            FIGURES.check(figure)
        except ValueError as error:
            raise ConfigError(f"experiment {name}: figures: {error}") from None
    sets = [UNANSWERABLE, *(other for run in planned.runs for other in strangers(params, run.settings.dataset))]
    ks = sorted({k for run in planned.runs for k in run.settings.evaluation.ks})
    check_metrics(f"experiment {name}", planned.spec.metrics, ks=ks, ood=sets)
    for metric in planned.spec.metrics if planned.substitution is None else ():
        switch = next((switch for begins, switch in SWITCHES.items() if metric.startswith(begins)), "")
        if switch and not any(getattr(run.settings.evaluation, switch) for run in planned.runs):
            raise ConfigError(
                f"experiment {name}: metric {metric!r} is measured where evaluation.{switch} is true, which it is of "
                "no run here; set it (params.yaml, or the method), or leave the metric out."
            )


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

    It also sets `GLIBC_TUNABLES`, unless the user has, so that glibc (2.35 or newer) takes memory in huge pages where
    the kernel offers them on request: a step of a small net takes 5 to 10 % less processor time.
    """
    switch_telemetry_off()
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    os.environ["PATH"] = path_with_this_python()


_AT_K = re.compile(r"(?:recall|precision)_at_(\d+)")


def check_metrics(where: str, metrics: Iterable[str], *, ks: Iterable[int], ood: Iterable[str]) -> None:
    """Raise `ConfigError` for a metric that is not computed.

    Args:
        where: the file or command that names them, for the message.
        metrics: the names.
        ks: `evaluation.ks`.
        ood: out-of-distribution sets of the runs.
    """
    ks, ood = tuple(ks), tuple(dict.fromkeys(ood))
    computed = metric_names(ks, ood)
    for name in metrics:
        if name in computed:
            continue
        group, _, last = name.rpartition("/")
        at_k = _AT_K.fullmatch(last)
        if at_k and f"{group}/recall_at_1" in computed:
            raise ConfigError(
                f"{where}: metric {name!r} needs {at_k[1]} in evaluation.ks (params.yaml, or the method), now {ks}."
            )
        if group.startswith("ood/"):
            sets = ", ".join(ood) or "none"
            measured = ", ".join(metric.name for metric in METRICS if "ood" in metric.groups)
            raise ConfigError(
                f"{where}: metric {name!r}: no run has {group.removeprefix('ood/')!r} as out-of-distribution set or "
                f"{last!r} is not measured on it (sets: {sets}; see `ood` in params.yaml; metrics: {measured})."
            )
        same_group = [other for other in computed if other.rpartition("/")[0] == group]
        raise ConfigError(f"{where}: nothing computes metric {name!r}; {nearest(name, same_group or computed)}")
