"""What is planned of the project in the current folder."""

from __future__ import annotations

import argparse

from probmetric.cli.project import params
from probmetric.planning.plans import ReportPlan
from probmetric.planning.workflow import WorkflowPlan


def workflow_plan(experiments: list[str]) -> WorkflowPlan:
    """Return what params.yaml plans of some experiments now."""
    return WorkflowPlan.from_config(params().model_dump(mode="json") | {"experiments": experiments})


def report_plan(options: argparse.Namespace) -> ReportPlan:
    """Return the plan given (as the workflow does); by hand, what params.yaml says of the experiment now."""
    if options.plan is not None:
        return ReportPlan.read(options.plan)
    return workflow_plan([options.experiment]).report_plan(options.experiment)
