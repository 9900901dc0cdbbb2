"""The project in the current folder: params.yaml and what is planned of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from probmetric.config import Params, load
from probmetric.io import FileError, present
from probmetric.planning.plans import ReportPlan
from probmetric.planning.workflow import WorkflowPlan

PARAMS = Path("params.yaml")


def params() -> Params:
    """Return the project's params.yaml."""
    if not present(PARAMS):
        raise FileError(
            f"there is no {PARAMS} in {Path.cwd()}; run this command inside a project folder, the one that holds it "
            "(`probmetric init` starts one)."
        )
    return load(Params, PARAMS)


def workflow_plan(experiments: list[str]) -> WorkflowPlan:
    """Return what params.yaml plans of some experiments now."""
    return WorkflowPlan.from_config(params().model_dump(mode="json") | {"experiments": experiments})


def report_plan(options: argparse.Namespace) -> ReportPlan:
    """Return the plan given (as the workflow does); by hand, what params.yaml says of the experiment now."""
    if options.plan is not None:
        return ReportPlan.read(options.plan)
    return workflow_plan([options.experiment]).report_plan(options.experiment)
