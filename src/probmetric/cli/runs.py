"""Run the commands for runs and the project: make a run, search settings, list experiments, states and components."""

from __future__ import annotations

import argparse
from pathlib import Path

from probmetric.cli.project import PARAMS, check_planned, params
from probmetric.config import ConfigError
from probmetric.errors import nearest
from probmetric.launch import take_place
from probmetric.metrics import METRICS, direction, find, heading
from probmetric.metrics import REGISTRY as OWN_METRICS
from probmetric.planning.expansion import find_run
from probmetric.planning.experiments import every_method
from probmetric.planning.overview import experiment_overview, status_text
from probmetric.planning.workflow import WorkflowPlan
from probmetric.registry import REQUIRED, Option, UnknownNameError, load_plugins, registry_of
from probmetric.runs.identity import planned_steps
from probmetric.runs.made import Judge
from probmetric.runs.plan import RunPlan
from probmetric.runs.steps import make, unfinished
from probmetric.tuning import load_tuning, report
from probmetric.tuning.search import Search, build_studies, train_runs


def run(options: argparse.Namespace) -> None:
    """Run `probmetric run`."""
    plan, path = _run_plan(options)
    steps = unfinished(plan.run, options.until)
    if not steps:
        print(f"{options.run}: everything is made.")
        return
    again = ["run", options.run, "--until", options.until, "--plan", str(path)]
    again += ["--threads", str(options.threads), "--processes", str(options.processes)]
    place = take_place(options.processes, again)
    make(plan, steps, threads=place.threads(options.threads), place=place)


def _run_plan(options: argparse.Namespace) -> tuple[RunPlan, Path]:
    """Return the given plan (the workflow gives one) and its file; without one, plan the run by params.yaml."""
    if options.plan is not None:
        plan = RunPlan.read(options.plan)
        check_planned(options.run, plan.run.name, options.plan)
        return plan, options.plan
    project = params()
    plan = RunPlan(find_run(project, options.run), project.tracking.store, project.plugins)
    for name in plan.run.encoders:
        if name != options.run and not Judge({name: find_run(project, name)}).verdict(name, "train").usable:
            raise ConfigError(
                f"{options.run} uses the network of {name}, which is missing or out of date; make that first: "
                f"probmetric run {name} --until train"
            )
    return plan, plan.write(planned_steps(plan.run))


def tune(options: argparse.Namespace) -> None:
    """Run `probmetric tune`."""
    project = params()
    search = Search(project, every_method(project), load_tuning(options.search))
    report.check_names(search, options.search)
    report.check_studies(search, options.search)
    search.run(
        lambda runs: train_runs(runs, options.snakemake),
        lambda search: report.write_progress(search, options.search),
    )
    print(report.table(search))
    print(f"Tuned methods, to be named in experiments: {report.write_methods(search, options.search)}")
    if written := report.write_studies(search, options.search):
        print(f"Their experiments: {', '.join(map(str, written))}", flush=True)
        build_studies([path.stem for path in written], options.snakemake)


def status(options: argparse.Namespace) -> None:
    """Run `probmetric status`."""
    project = params()
    names = [options.experiment] if options.experiment else project.experiments
    print(status_text(WorkflowPlan.of(project, names), every=options.all))


def components(options: argparse.Namespace) -> None:
    """Run `probmetric list`."""
    load_plugins(params().plugins if PARAMS.exists() else ())
    print(listing(options.kind, options.name))


def experiments(options: argparse.Namespace) -> None:
    """Run `probmetric experiments`."""
    print(experiment_overview(params()))


LISTED = {
    "losses": "loss",
    "uncertainties": "uncertainty",
    "backbones": "backbone",
    "views": "view",
    "metrics": "metric",
    "scores": "score",
    "figures": "figure",
    "sources": "dataset",
}


def listing(kinds: str, name: str | None = None) -> str:
    """Return text about the components of a kind (`losses`, `views`, ...), or about the one called `name`.

    Raises:
        UnknownNameError: there is no such kind or component; the message suggests the nearest.
    """
    if kinds not in LISTED:
        raise UnknownNameError(f"unknown kind of component {kinds!r}: {nearest(kinds, LISTED)}")
    if name is not None:
        return _about(LISTED[kinds], name)
    if kinds == "metrics":
        OWN_METRICS.names()
        return _rows(_metrics())
    registry = registry_of(LISTED[kinds])
    return _rows({name: registry.entry(name).doc for name in registry.names()})


def _metrics() -> dict[str, str]:
    definitions = {f"{group}/{metric.name}": metric.definition for metric in METRICS for group in metric.groups}
    for name, entry in OWN_METRICS.foreign_entries().items():
        full = f"{entry.constants['group']}/{name}"
        definitions[full] = f"{entry.doc} [{direction(full)}]"
    return definitions


def _about(kind: str, name: str) -> str:
    if kind == "metric":
        return _about_metric(name)
    registry = registry_of(kind)
    entry = registry.entry(name)
    head = [f"{kind} {name}", f"  {entry.doc}", f"  defined in {entry.module}"]
    told = [f"  {key}: {value}" for key, value in entry.constants.items() if value not in (False, {}, [])]
    options = {option.name: _option(option) for option in entry.options.values()}
    return "\n".join([*head, *told, "options:", _rows(options, indent="  ")] if options else [*head, *told])


def _about_metric(name: str) -> str:
    record = find(name)
    lines = [f"metric {name}", f"  {heading(name)}", f"  {record.definition}", f"  better: {record.direction}"]
    lines += [f"  unit: {record.unit}"] if record.unit else []
    lines += [f"  source: {record.source}"] if record.source else []
    return "\n".join([*lines, f"  computed in {record.computed}"])


def _option(option: Option) -> str:
    default = "no default" if option.default is REQUIRED else f"{option.default!r}"
    return f"{default}   {option.allowed}"


def _rows(rows: dict[str, str], indent: str = "") -> str:
    width = max(map(len, rows), default=0)
    return "\n".join(f"{indent}{name:<{width}}  {text}".rstrip() for name, text in rows.items())
