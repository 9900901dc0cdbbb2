"""Commands that say what there is and what is finished, remove what is old, write what is generated."""

from __future__ import annotations

import argparse
from pathlib import Path

from probmetric.cli._shared import PARAMS, Add, params


def status(options: argparse.Namespace) -> None:
    """`probmetric status`."""
    from probmetric.planning.overview import status_text
    from probmetric.planning.workflow import WorkflowPlan

    project = params()
    names = [options.experiment] if options.experiment else list(project.experiments)
    # `error` would stop before anything is listed; `rerun` calls the same results stale
    stale = "rerun" if project.stale == "error" else project.stale
    config = project.model_dump(mode="json") | {"experiments": names, "stale": stale}
    print(status_text(WorkflowPlan.from_config(config), every=options.all))


def clean(options: argparse.Namespace) -> None:
    """`probmetric clean`."""
    from probmetric.io.folders import remove_folder
    from probmetric.runs.made import KEPT_RESULTS, superseded

    folders = superseded()
    for folder in folders:
        print(folder)
        if not options.dry_run:
            remove_folder(folder, KEPT_RESULTS)
    done = "would be removed" if options.dry_run else "removed"
    print(f"{len(folders)} folder(s) with results of earlier settings or code {done}.")


def components(options: argparse.Namespace) -> None:
    """`probmetric list`."""
    from probmetric.listing import listing
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
    pages = {Path("docs/evaluation.md"): write_tables, Path("docs/claims.md"): write_claims}
    tables = [write(page) for page, write in pages.items() if page.is_file()]
    for path in [write_catalogue(), *write_schemas(options.output), *tables]:
        print(path)


def declare(add: Add) -> None:
    """Declare the commands of this module."""
    command = add("status", status, "list an experiment's runs: finished, stale (why), missing")
    command.add_argument("experiment", nargs="?", help="default: those of params.yaml")
    command.add_argument("--all", action="store_true", help="a line for every run, also where there are many")
    command = add("clean", clean, "remove kept results of earlier settings and code (state/kept)")
    command.add_argument("--dry-run", "-n", action="store_true", help="only list them")
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
