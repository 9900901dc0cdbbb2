"""Run the commands for reports of finished runs, figures, MLflow, the site, and schemas for docs and editors."""

from __future__ import annotations

import argparse
import os
import sys

from probmetric import tracking
from probmetric.cli import vectors
from probmetric.cli.project import check_planned, params
from probmetric.io import remembered_json, write_json
from probmetric.io.folders import check_new_file
from probmetric.planning.plans import ReportPlan
from probmetric.planning.workflow import WorkflowPlan, write_schemas
from probmetric.registry import write_catalogue
from probmetric.reporting.experiment import REPORTS, ReportContext, sign, stale_runs
from probmetric.reporting.figures import draw
from probmetric.reporting.recommended import recommendation
from probmetric.serving.vectors import meant_as_vectors


def report(options: argparse.Namespace) -> None:
    """Run `probmetric report`."""
    if meant_as_vectors(options.experiment):
        vectors.report(options)
        return
    vectors.check_unused(options, {**vectors.OF_VECTORS, "group": "", "output": None}, "an experiment")
    from probmetric.reporting.report import make_report  # imports Matplotlib, which a page of vectors does not need

    print(make_report(_plan(options), options.threads))


def _plan(options: argparse.Namespace) -> ReportPlan:
    """Return the given plan (the workflow gives one); without one, plan the experiment by params.yaml."""
    if options.plan is not None:
        plan = ReportPlan.read(options.plan)
        check_planned(options.experiment, plan.experiment, options.plan)
        return plan
    planned = WorkflowPlan.of(params(), [options.experiment])
    planned.write()  # the states of runs depend on their plan files
    return planned.report_plan(options.experiment)


def recommend(options: argparse.Namespace) -> None:
    """Print the method to deploy: `probmetric recommend`."""
    plan = _plan(options)
    print(recommendation(ReportContext.of(plan, stale_runs(plan.verdicts()))))


def figure(options: argparse.Namespace) -> None:
    """Run `probmetric figure`."""
    from probmetric.reporting.report import contents_of, write_page

    context = ReportContext.of(_plan(options))
    picture, *_ = draw(options.figure, context)
    write_page(contents_of(context))
    print(picture)
    sign(context.folder, context.stale)


def track(options: argparse.Namespace) -> None:
    """Run `probmetric track`."""
    if options.receipt:
        check_new_file(options.receipt, lambda path: isinstance(remembered_json(path), dict))
    plan = _plan(options)
    context = ReportContext.of(plan)
    receipt = tracking.track(
        plan.experiment,
        context.runs,
        context.folder,
        store_uri=plan.tracking["store"],
        artifact_root=plan.tracking["artifacts"],
    )
    if options.receipt:
        write_json(options.receipt, receipt)


def publish(options: argparse.Namespace) -> None:
    """Run `probmetric publish`."""
    from probmetric.reporting.site import write_site

    print(write_site(REPORTS, options.output))


def ui(options: argparse.Namespace) -> None:
    """Run `probmetric ui`."""
    settings = params().tracking
    command = tracking.ui_command(settings.store, options.port, settings.artifacts)
    print("\n".join(tracking.ui_addresses(settings.store, options.port)), file=sys.stderr)
    os.execvp(command[0], command)  # the server replaces this process


def schema(options: argparse.Namespace) -> None:
    """Run `probmetric schema`."""
    params()  # elsewhere this would create a folder `workflow`
    for path in [write_catalogue(), *write_schemas(options.output)]:
        print(path)
