"""What is to be built: the validated configuration, its experiments, and the runs they expand to."""

import os
import sys
import time

import psutil
from probmetric.planning.workflow import (
    WorkflowPlan,
    closing_summary,
    failure_summary,
    put_environment_on_path,
    record_in_dvc,
)
from snakemake.exceptions import WorkflowError

put_environment_on_path()

try:
    PLAN = WorkflowPlan.from_config(config)
except ValueError as error:
    raise WorkflowError(f"The configuration cannot be run.\n{error}") from None

EXPERIMENTS = PLAN.experiments
PREPARED = PLAN.params.data.prepared


wildcard_constraints:
    data=r"[a-z0-9_-]+(\+(noise|uniform|nearest)[0-9.]+(s[0-9]+)?)?",
    run=r"[^/]+/[^/]+/seed[0-9]+",
    experiment=r"[a-z0-9_-]+(/[a-z0-9_-]+)?(@[a-z0-9_+-]+)?",
    split=r"[a-z]+",


def step_settings(step):
    """Parameter function: the settings of `step` for the run at hand, as JSON, and nothing of other runs."""

    def of_run(wildcards):
        return PLAN.settings_json(wildcards.run, step)

    return of_run


def run_digests(wildcards):
    """Digest files of the prepared datasets a run reads; their content, not their age, decides (see data_identity)."""
    return [ancient(path) for path in PLAN.digests(wildcards.run)]


def train_digest(wildcards):
    return ancient(PLAN.digests(wildcards.run)[0])


def data_identity(wildcards):
    """Parameter function: what the digests say, so that other data, but not a newer file, repeats the step."""
    return PLAN.data_identity(PLAN.digests(wildcards.run))


def train_identity(wildcards):
    return PLAN.data_identity(PLAN.digests(wildcards.run)[:1])


def encoder_file(name):
    """Input function: file `name` of the runs that trained this run's encoder, or its ensemble's encoders."""

    def of_run(wildcards):
        return collect(f"results/{{run}}/{name}", run=PLAN.runs[wildcards.run].encoders)

    return of_run


def posterior(wildcards):
    needed = PLAN.runs[wildcards.run].fits_posterior
    return [f"results/{wildcards.run}/posterior.safetensors"] if needed else []


def experiment_files(pattern):
    """Input function: `pattern` for every run of the experiment."""

    def of_experiment(wildcards):
        return collect(pattern, run=PLAN.run_names(wildcards.experiment))

    return of_experiment


def report_settings(wildcards):
    return PLAN.report_json(wildcards.experiment)


def start():
    """On this machine no queue needs sparing, and what limits the rate of submissions costs ever more.

    After every finished job Snakemake's limiter has the ready jobs weighed once more per second, for as long as any
    are ready: with a thousand jobs the main process is busy with nothing else.
    """
    if workflow.local_exec and workflow.scheduler is not None:
        workflow.scheduler.job_rate_limiter = None


def finish():
    """After a successful run: DVC is told, and people where to look and what the orchestration cost."""
    if not EXPERIMENTS:
        return
    record_in_dvc(EXPERIMENTS)
    seconds = time.time() - psutil.Process().create_time()
    cores = workflow.resource_settings.cores or os.cpu_count()
    print(closing_summary(PLAN, seconds, cores), file=sys.stderr)


def stop():
    """After a failure: which jobs failed, where their logs are, and what could not be done without them."""
    scheduler, dag = workflow.scheduler, workflow.dag
    if scheduler is None or not scheduler.failed:
        return
    failed = {
        part
        for job in scheduler.failed
        for part in (job.jobs if job.is_group() else [job])
    }
    left = sum(
        not dag.finished(job) and job not in failed for job in dag.needrun_jobs()
    )
    named = [(job.rule.name, ", ".join(job.wildcards), list(job.log)) for job in failed]
    print(failure_summary(named, left), file=sys.stderr)
