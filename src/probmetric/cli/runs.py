"""Commands for runs and for the project: make a run, search settings; what there is, what is finished."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.cli.arguments import PARAMS, Add, add_threads, params
from probmetric.runs.folder import STEPS

if TYPE_CHECKING:
    from probmetric.runs.plan import RunPlan


def run(options: argparse.Namespace) -> None:
    """`probmetric run`."""
    from probmetric.launch import take_place
    from probmetric.runs.steps import make, unfinished

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
    from probmetric.runs.plan import RunPlan

    if options.plan is not None:
        return RunPlan.read(options.plan), options.plan
    from probmetric.planning.expansion import find_run
    from probmetric.runs.identity import planned_steps

    project = params()
    plan = RunPlan(find_run(project, options.run), project.tracking.store, project.plugins)
    return plan, plan.write(planned_steps(plan.run))


def tune(options: argparse.Namespace) -> None:
    """`probmetric tune`."""
    from probmetric.planning.experiments import every_method
    from probmetric.tuning import load_tuning, report
    from probmetric.tuning.search import Search
    from probmetric.tuning.snakemake import build_studies, train_runs

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
    """`probmetric status`."""
    from probmetric.planning.overview import status_text
    from probmetric.planning.workflow import WorkflowPlan

    project = params()
    names = [options.experiment] if options.experiment else list(project.experiments)
    config = project.model_dump(mode="json") | {"experiments": names}
    print(status_text(WorkflowPlan.from_config(config), every=options.all))


def components(options: argparse.Namespace) -> None:
    """`probmetric list`."""
    from probmetric.cli.listing import listing
    from probmetric.registry import load_plugins

    load_plugins(params().plugins if PARAMS.exists() else ())
    print(listing(options.kind, options.name))


def experiments(options: argparse.Namespace) -> None:
    """`probmetric experiments`."""
    from probmetric.planning.overview import experiment_overview

    print(experiment_overview(params()))


def schema(options: argparse.Namespace) -> None:
    """`probmetric schema`."""
    from probmetric.metrics import write_tables
    from probmetric.planning.workflow import write_schemas
    from probmetric.registry import write_catalogue
    from probmetric.reporting.claims.board import write_tables as write_claims

    params()  # elsewhere a folder `workflow` would be begun
    pages = {Path("docs/reference/evaluation.md"): write_tables, Path("docs/reference/claims.md"): write_claims}
    tables = [write(page) for page, write in pages.items() if page.is_file()]
    for path in [write_catalogue(), *write_schemas(options.output), *tables]:
        print(path)


def declare(add: Add) -> None:
    """Declare the commands of this module."""
    command = add("run", run, "make one run: train, fit, embed, evaluate; what is made is skipped")
    command.add_argument("run", help="<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>")
    command.add_argument("--plan", type=Path, help="plan file of the run (default: resolve from params.yaml)")
    command.add_argument("--until", choices=STEPS, default="evaluate", help="the step to end with")
    command.add_argument("--processes", type=int, default=1, help="processes that share the work, on any nodes")
    add_threads(command)
    command = add("tune", tune, "search a method's settings on validation data; started again it goes on")
    command.add_argument("search", help="name of a file below workflow/tuning")
    command.add_argument("snakemake", nargs=argparse.REMAINDER, help="options for snakemake, e.g. --profile slurm")
    command = add("status", status, "list an experiment's runs: finished, stale (why), missing")
    command.add_argument("experiment", nargs="?", help="default: those of params.yaml")
    command.add_argument("--all", action="store_true", help="a line for every run, also where there are many")
    command = add("list", components, "list components, or the options of one: losses, views, metrics, sources, ...")
    command.add_argument("kind", help="losses, uncertainties, backbones, views, metrics, scores, figures or sources")
    command.add_argument("name", nargs="?", help="one of them: its options, with defaults and what they take")
    add("experiments", experiments, "list the experiments with their runs and the data they need")
    command = add(
        "schema",
        schema,
        "write what is generated: components' catalogue, JSON schemas for editors, tables of metrics",
    )
    command.add_argument("--output", type=Path, default=Path("workflow/schemas"))
