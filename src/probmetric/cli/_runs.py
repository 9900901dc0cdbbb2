"""Commands for runs: their steps, several runs in one job, searches for settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from probmetric.cli._shared import Add, add_threads, params, run_plan

if TYPE_CHECKING:
    from probmetric.launch import Place
    from probmetric.planning.plans import RunPlan


def train(options: argparse.Namespace) -> None:
    """`probmetric train`."""
    _on_processes(options, "train")


def fit_posterior(options: argparse.Namespace) -> None:
    """`probmetric fit-posterior`."""
    plan = run_plan(options)
    from probmetric.runs.steps import already_made, fit_posterior

    if not already_made(plan, "fit_posterior"):
        fit_posterior(plan, threads=options.threads)


def embed(options: argparse.Namespace) -> None:
    """`probmetric embed`."""
    _on_processes(options, "embed")


def evaluate(options: argparse.Namespace) -> None:
    """`probmetric evaluate`."""
    plan = run_plan(options)
    from probmetric.runs.steps import already_made, evaluate

    if not already_made(plan, "evaluate"):
        evaluate(plan)


def _on_processes(options: argparse.Namespace, step: Literal["train", "embed"]) -> None:
    """A step that several processes may share."""
    plan = run_plan(options)
    from probmetric.runs import steps as pipeline

    if pipeline.already_made(plan, step):
        return
    place = _take_place(options, plan)
    work = pipeline.train if step == "train" else pipeline.embed
    work(plan, threads=place.threads(options.threads), place=place)


def _take_place(options: argparse.Namespace, plan: RunPlan) -> Place:
    """Start the processes asked for, or find out which of them this one is."""
    from probmetric.launch import take_place

    again = [options.command, options.run, "--threads", str(options.threads), "--processes", str(options.processes)]
    return take_place(options.processes, [*again, "--plan", str(plan.write())])


def make(options: argparse.Namespace) -> None:
    """`probmetric make`."""
    from probmetric.bundle import make
    from probmetric.io import write_json
    from probmetric.planning.bundles import BundlePlan

    plan = BundlePlan.read(options.plan)
    make(plan, threads=options.threads)
    if options.receipt:
        write_json(options.receipt, {"runs": list(plan.runs)})


def tune(options: argparse.Namespace) -> None:
    """`probmetric tune`."""
    from probmetric.planning.experiments import every_method
    from probmetric.tuning import cost, load_tuning, report
    from probmetric.tuning.search import Search
    from probmetric.tuning.snakemake import build_studies, train_runs

    project = params()
    search = Search(project, every_method(project), load_tuning(options.search))
    if options.estimate:
        print(cost.estimated(search, options.search, cost.Times.recorded()))
        return
    report.studies(search, options.search)  # a mistake in them is said now, not after hours
    search.run(
        lambda runs: train_runs(runs, project.stale, options.snakemake),
        lambda search: report.write_progress(search, options.search),
    )
    print(report.table(search))
    print(f"Tuned methods, to be named in experiments: {report.write_methods(search, options.search)}")
    if written := report.write_studies(search, options.search):
        print(f"Their experiments: {', '.join(map(str, written))}", flush=True)
        build_studies([path.stem for path in written], options.snakemake)


def declare(add: Add) -> None:
    """Declare the commands of this module."""
    steps = [
        ("train", train, "train one run's encoder; goes on from its checkpoint after an interruption"),
        ("fit-posterior", fit_posterior, "fit one run's uncertainty on its trained encoder"),
        ("embed", embed, "embed validation, test and OOD images of one run"),
        ("evaluate", evaluate, "measure one run's embeddings"),
    ]
    for name, function, text in steps:
        command = add(name, function, text)
        command.add_argument("run", help="<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>")
        command.add_argument("--plan", type=Path, help="plan file of the run (default: resolve from params.yaml)")
        if name != "evaluate":
            add_threads(command)
        if name in ("train", "embed"):
            command.add_argument("--processes", type=int, default=1, help="processes that share the work, on any nodes")
    command = add("make", make, "make what is not finished of several runs, one after the other")
    command.add_argument("plan", type=Path, help="plan file of the bundle (state/plan/bundles)")
    command.add_argument("--receipt", type=Path, help="JSON file to write when all are finished")
    add_threads(command)
    command = add("tune", tune, "search a method's settings on validation data; started again it goes on")
    command.add_argument(
        "--estimate", action="store_true", help="only say what processor time it will take (give it before the name)"
    )
    command.add_argument("search", help="name of a file below workflow/tuning")
    command.add_argument("snakemake", nargs=argparse.REMAINDER, help="options for snakemake, e.g. --profile slurm")
