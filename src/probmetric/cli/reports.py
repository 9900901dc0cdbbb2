"""Commands for experiments whose runs are finished: reports, figures, MLflow, the site."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from probmetric.cli import vectors
from probmetric.cli.arguments import Add, add_threads, params, report_plan, whole

REPORTS = Path("reports")


def report(options: argparse.Namespace) -> None:
    """`probmetric report`."""
    from probmetric.serving.vectors import is_vectors

    if is_vectors(options.experiment):
        vectors.report(options)
        return
    from probmetric.reporting.report import make_report

    make_report(report_plan(options), options.threads)


def figure(options: argparse.Namespace) -> None:
    """`probmetric figure`."""
    from probmetric.reporting.experiment import ReportContext
    from probmetric.reporting.figures import draw
    from probmetric.reporting.record import sign
    from probmetric.reporting.report import contents_of, write_page

    context = ReportContext.of(report_plan(options))
    draw(options.figure, context)
    write_page(contents_of(context))
    sign(context.folder, context.stale)


def track(options: argparse.Namespace) -> None:
    """`probmetric track`."""
    from probmetric.io import remembered_json, write_json
    from probmetric.io.folders import check_new_file
    from probmetric.reporting.experiment import ReportContext
    from probmetric.tracking import track

    if options.receipt:
        check_new_file(options.receipt, lambda path: isinstance(remembered_json(path), dict))
    plan = report_plan(options)
    context = ReportContext.of(plan)
    receipt = track(
        plan.experiment,
        context.runs,
        context.folder,
        store_uri=plan.tracking["store"],
        artifact_root=plan.tracking["artifacts"],
    )
    if options.receipt:
        write_json(options.receipt, receipt)


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
        ("report", report, "make an experiment's report: tables, claims, figures, page, the files of `dvc plots`"),
        ("figure", figure, "draw one figure of an experiment again, and renew its page"),
        ("track", track, "bring MLflow up to date with an experiment's results"),
    ]
    for name, function, text in steps:
        command = add(name, function, text)
        also = "; or a file of vectors of any model" if name == "report" else ""
        command.add_argument("experiment", help=f"name of a file below workflow/experiments, e.g. demo{also}")
        if name == "figure":
            command.add_argument("figure", help="metric_per_method, learning_curves, ...")
        if name == "report":
            add_threads(command)
            command.add_argument("--output", type=Path, help="page of a file of vectors (default: beside it)")
            command.add_argument("--label", default="", help="column of its classes (default: label)")
        if name == "track":
            command.add_argument("--receipt", type=Path, help="JSON file that says what was written")
        command.add_argument("--plan", type=Path, help="plan file of the experiment (default: params.yaml)")
    command = add("publish", publish, "collect all pages and the theory figures in a static site")
    command.add_argument("--output", type=Path, default=Path("site"))
    command = add("ui", ui, "browse the runs in the MLflow UI on this machine")
    command.add_argument("--port", type=whole(1, 65535), default=5000)
