"""What is to be built: the main process plans and writes plan files, which jobs elsewhere read too."""

import os
import sys
import time

from probmetric.errors import ProbMetricError
from probmetric.planning.console import linked
from probmetric.planning.console import (
    closing_summary,
    failure_summary,
    partial_reports,
)
from probmetric.planning.experiments import NAME
from probmetric.planning.plans import hold_plans
from probmetric.planning.workflow import (
    WorkflowPlan,
    made_file,
    prepare_environment,
    report_inputs,
    run_inputs,
)
from snakemake.exceptions import WorkflowError

prepare_environment()
BEGAN = time.time()
PLAN = None

# A job on another machine does what was planned, whatever params.yaml says by then.
if "PROBMETRIC_PLANNED" not in os.environ:
    try:
        PLAN = WorkflowPlan.from_config(config)
        PLAN.write()
        PLAN.check_machine()
    except (ProbMetricError, ValueError) as error:
        raise WorkflowError(f"The configuration cannot be run.\n{error}") from None
    os.environ["PROBMETRIC_PLANNED"] = "yes"
    if notice := PLAN.notice():
        print(notice, file=sys.stderr)


envvars:
    "PROBMETRIC_PLANNED",


PREPARED = config.get("data", {}).get("prepared", "data/prepared")
UNTIL = config.get("until", "evaluate")
EXPERIMENTS = PLAN.experiments if PLAN and UNTIL == "evaluate" else []
MADE = made_file(UNTIL)


wildcard_constraints:
    data=r"[a-z0-9_-]+(\+(split|fold)[0-9]+)?(\+(noise|uniform|nearest)[0-9.]+(s[0-9]+)?)?",
    run=r"[^/]+/[^/]+/seed[0-9]+",
    experiment=NAME,


def inputs_of_run(wildcards):
    """Digests of the data a run reads, results of the runs whose weights it uses."""
    if PLAN:
        PLAN.check_planned(wildcards.run)
    return run_inputs(wildcards.run, MADE)


def results_of_experiment(wildcards):
    return report_inputs(wildcards.experiment)


def tell(text):
    if text:
        print(linked(text, terminal=sys.stderr.isatty()), file=sys.stderr)
