"""Commands for runs and for the project: make a run, search settings; what there is, what is finished."""

from __future__ import annotations

import argparse
from pathlib import Path

from probmetric.cli.listing import listing
from probmetric.cli.plans import workflow_plan
from probmetric.cli.project import PARAMS, params
from probmetric.launch import take_place
from probmetric.planning.expansion import find_run
from probmetric.planning.experiments import every_method
from probmetric.planning.overview import experiment_overview, status_text
from probmetric.registry import load_plugins
from probmetric.runs.identity import planned_steps
from probmetric.runs.plan import RunPlan
from probmetric.runs.steps import make, unfinished
from probmetric.tuning import load_tuning, report
from probmetric.tuning.search import Search
from probmetric.tuning.snakemake import build_studies, train_runs


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
    """Return the plan given (as the workflow does) and its file; by hand, what params.yaml says of the run now."""
    if options.plan is not None:
        return RunPlan.read(options.plan), options.plan
    project = params()
    plan = RunPlan(find_run(project, options.run), project.tracking.store, project.plugins)
    return plan, plan.write(planned_steps(plan.run))


def tune(options: argparse.Namespace) -> None:
    """Run `probmetric tune`."""
    project = params()
    search = Search(project, every_method(project), load_tuning(options.search))
    report.studies(search, options.search)  # a mistake in them is said now, not after hours
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
    names = [options.experiment] if options.experiment else list(params().experiments)
    print(status_text(workflow_plan(names), every=options.all))


def components(options: argparse.Namespace) -> None:
    """Run `probmetric list`."""
    load_plugins(params().plugins if PARAMS.exists() else ())
    print(listing(options.kind, options.name))


def experiments(options: argparse.Namespace) -> None:
    """Run `probmetric experiments`."""
    print(experiment_overview(params()))
