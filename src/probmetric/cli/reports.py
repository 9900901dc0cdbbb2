"""Commands for experiments whose runs are finished: tables, figures, pages, MLflow."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.cli.arguments import Add, add_threads, params, report_plan, whole

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

REPORTS = Path("reports")


def _report(options: argparse.Namespace) -> ReportContext:
    """The report's context: the plan, and what `aggregate` found of its runs."""
    from probmetric.reporting.experiment import ReportContext

    return ReportContext.of(report_plan(options))


def aggregate(options: argparse.Namespace) -> None:
    """`probmetric aggregate`."""
    from probmetric.reporting.aggregate import aggregate_experiment

    aggregate_experiment(report_plan(options))


def tables(options: argparse.Namespace) -> None:
    """`probmetric tables`."""
    from probmetric.reporting.tables import write_tables

    write_tables(_report(options))


def figure(options: argparse.Namespace) -> None:
    """`probmetric figure`."""
    from probmetric.reporting.figures import draw

    draw(options.figure, _report(options))


def figures(options: argparse.Namespace) -> None:
    """`probmetric figures`."""
    from probmetric.reporting.figures import draw_all

    draw_all(_report(options), processes=options.threads)


def page(options: argparse.Namespace) -> None:
    """`probmetric report`."""
    from probmetric.reporting.aggregate import aggregate_experiment
    from probmetric.reporting.figures import draw_all
    from probmetric.reporting.html import write_report
    from probmetric.reporting.record import sign
    from probmetric.reporting.tables import write_tables

    plan = report_plan(options)
    aggregate_experiment(plan)
    write_tables(_report(options))
    draw_all(_report(options), processes=options.threads)
    write_report(_report(options))
    sign(REPORTS / plan.experiment)


def track(options: argparse.Namespace) -> None:
    """`probmetric track`."""
    from probmetric.io import remembered_json, write_json
    from probmetric.io.folders import check_new_file
    from probmetric.tracking import track

    if options.receipt:
        check_new_file(options.receipt, lambda path: isinstance(remembered_json(path), dict))
    plan, report = report_plan(options), _report(options)
    receipt = track(
        plan.experiment,
        report.runs,
        report.folder,
        store_uri=plan.tracking["store"],
        artifact_root=plan.tracking["artifacts"],
    )
    if options.receipt:
        write_json(options.receipt, receipt)


def theory(options: argparse.Namespace) -> None:
    """`probmetric theory`."""
    from probmetric.reporting.theory import write_theory

    for path in write_theory(options.output):
        print(path)


def publish(options: argparse.Namespace) -> None:
    """`probmetric publish`."""
    from probmetric.reporting.site import write_site

    print(write_site(REPORTS, options.output))


def ui(options: argparse.Namespace) -> None:
    """`probmetric ui`."""
    from probmetric.tracking import ui_addresses, ui_command

    tracking = params().tracking
    command = ui_command(tracking.store, options.port, tracking.artifacts)
    print("\n".join(ui_addresses(tracking.store, options.port)), file=sys.stderr)
    os.execvp(command[0], command)  # the server takes this process over


def declare(add: Add) -> None:
    """Declare the commands of this module."""
    steps = [
        ("aggregate", aggregate, "collect an experiment's metrics into runs.csv and metrics.json"),
        ("tables", tables, "write an experiment's tables (Markdown, CSV, LaTeX) and the files of `dvc plots`"),
        ("figures", figures, "draw every figure of an experiment"),
        ("figure", figure, "draw one figure of an experiment"),
        ("report", page, "write an experiment's HTML page"),
        ("track", track, "bring MLflow up to date with an experiment's results"),
    ]
    for name, function, text in steps:
        command = add(name, function, text)
        command.add_argument("experiment", help="name of a file below workflow/experiments, e.g. demo")
        if name == "figure":
            command.add_argument("figure", help="metric_per_method, learning_curves, ...")
        if name in ("figures", "report"):
            add_threads(command)
        if name == "track":
            command.add_argument("--receipt", type=Path, help="JSON file that says what was written")
        if name == "report":
            command.add_argument(
                "--partial",
                action="store_true",
                help="say nothing of runs that are not finished but that",
            )
        command.add_argument("--plan", type=Path, help="plan file of the experiment (default: params.yaml)")
    command = add("theory", theory, "draw the papers' figures that need no training")
    command.add_argument("--output", type=Path, default=REPORTS / "theory")
    command = add("publish", publish, "collect all pages and the theory figures in a static site")
    command.add_argument("--output", type=Path, default=Path("site"))
    command = add("ui", ui, "browse the runs in the MLflow UI on this machine")
    command.add_argument("--port", type=whole(1, 65535), default=5000)
