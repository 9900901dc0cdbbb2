"""What is to be built: the validated configuration, its experiments, and the runs they expand to."""

import os
import sys
import time

import psutil
from probmetric.planning.console import linked
from probmetric.planning.devices import device_count
from probmetric.planning.jobs import JobPlan
from probmetric.planning.slurm import outlast_outages, separate_array_tasks
from probmetric.planning.summaries import (
    closing_summary,
    failure_summary,
    partial_reports,
)
from probmetric.planning.workflow import (
    WorkflowPlan,
    prepare_environment,
    weights_of,
)
from probmetric.resident import owner
from snakemake.exceptions import WorkflowError

prepare_environment()
separate_array_tasks()

try:
    # A job on another machine asks for nothing but its own run.
    PLAN = (WorkflowPlan if workflow.is_main_process else JobPlan).from_config(config)
except ValueError as error:
    raise WorkflowError(f"The configuration cannot be run.\n{error}") from None

if workflow.is_main_process and PLAN.notice():
    print(PLAN.notice(), file=sys.stderr)

if workflow.local_exec and "gpu" not in workflow.global_resources and device_count():
    workflow.register_resource("gpu", device_count())

EXPERIMENTS = PLAN.experiments
PREPARED = PLAN.params.data.prepared
# What Snakemake sets to a job's threads, for a job whose threads are processes: it is served as jobs of one thread are.
ONE_THREAD_EACH = " ".join(
    f"{library}=1"
    for library in (
        "OMP_NUM_THREADS",
        "GOTO_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    )
)


wildcard_constraints:
    data=r"[a-z0-9_-]+(\+(noise|uniform|nearest)[0-9.]+(s[0-9]+)?)?",
    run=r"[^/]+/[^/]+/seed[0-9]+",
    bundle=r"[0-9a-f]{16}",
    experiment=r"[a-z0-9_-]+(/[a-z0-9_-]+)?(@[a-z0-9_+-]+)?",
    split=r"[a-z]+",


def plan_file(wildcards):
    """Parameter function: the file that tells the job everything."""
    return PLAN.plan_file(wildcards.run)


def minutes(step):
    """Resource function: the time to ask a cluster for."""

    def of_job(wildcards, attempt):
        return PLAN.need(wildcards.run, step, attempt).minutes

    return of_job


def megabytes(step):
    """Resource function: the memory to ask a cluster for."""

    def of_job(wildcards, attempt):
        return PLAN.need(wildcards.run, step, attempt).megabytes

    return of_job


def bundle_minutes(wildcards, attempt):
    return PLAN.bundle_need(wildcards.bundle, attempt).minutes


def bundle_megabytes(wildcards, attempt):
    return PLAN.bundle_need(wildcards.bundle, attempt).megabytes


def report_file(wildcards):
    """Parameter function: the file that tells a reporting job everything."""
    return PLAN.report_file(wildcards.experiment)


def urgency(wildcards):
    """Priority function: data of the first runs is prepared first, so that they can finish while the rest is prepared."""
    return PLAN.urgency(wildcards.data) if workflow.is_main_process else 0


def data_again(wildcards):
    """Input function: a file newer than any result where the dataset has to be prepared again, else nothing."""
    return [local(PLAN.again)] if wildcards.data in PLAN.outdated_data else []


def forced():
    """Whether steps are asked for by name, whatever their state."""
    return bool(workflow.dag_settings.forcerun or workflow.dag_settings.forceall)


def judged(paths, again):
    """Input files whose age does not count, unless what is made from them is made again.

    Identities decide what is made again (probmetric.planning.staleness), times and Snakemake's metadata do not.
    """
    return paths if again or forced() else [ancient(path) for path in paths]


def run_digests(step):
    """Input function: digest files of the prepared datasets `step` reads; what they say counts, not their age."""

    def of_run(wildcards):
        paths = PLAN.digests(wildcards.run)
        needed = paths[:1] if step in ("train", "fit_posterior") else paths
        return judged(needed, PLAN.repeats(wildcards.run, step))

    return of_run


def training_images(wildcards):
    """Input function: the table of the images trained on; of ready jobs Snakemake starts those with the most first."""
    folder = os.path.dirname(PLAN.digests(wildcards.run)[0])
    return judged([f"{folder}/manifest.parquet"], PLAN.repeats(wildcards.run, "train"))


def bundle_digests(wildcards):
    return judged(PLAN.bundle_digests(wildcards.bundle), bool(PLAN.outdated_data))


def again(step):
    """Input function: a file newer than any result where `step` has to be made again, else nothing."""

    def of_run(wildcards):
        return [local(PLAN.again)] if PLAN.outdated(wildcards.run, step) else []

    return of_run


def report_again(wildcards):
    return [local(PLAN.again)] if PLAN.reports_again(wildcards.experiment) else []


def run_files(step, *names):
    """Input function: files of the run's own folder, read by `step`."""

    def of_run(wildcards):
        paths = [f"results/{wildcards.run}/{name}" for name in names]
        return judged(paths, PLAN.repeats(wildcards.run, step))

    return of_run


def encoder_file(step, name):
    """Input function: file `name` of the runs that trained this run's encoder, or its ensemble's encoders."""

    def of_run(wildcards):
        encoders = PLAN.run(wildcards.run).encoders
        paths = [f"results/{encoder}/{name}" for encoder in encoders]
        return judged(paths, PLAN.repeats(wildcards.run, step))

    return of_run


def origin(wildcards):
    """Input function: weights the run starts from, where a run of ours makes them."""
    paths = weights_of([PLAN.run(wildcards.run).origin])
    return judged(paths, PLAN.repeats(wildcards.run, "train"))


def posterior(wildcards):
    if not PLAN.run(wildcards.run).fits_posterior:
        return []
    return run_files("embed", "posterior.safetensors")(wildcards)


def experiment_files(name):
    """Input function: file `name` of every run of the experiment that the report waits for."""

    def of_experiment(wildcards):
        paths = PLAN.awaited(wildcards.experiment, name, every=forced())
        return judged(paths, PLAN.reports_again(wildcards.experiment))

    return of_experiment


def report_files(*names):
    """Input function: files of the experiment's report."""

    def of_experiment(wildcards):
        paths = [f"reports/{wildcards.experiment}/{name}" for name in names]
        return judged(paths, PLAN.reports_again(wildcards.experiment))

    return of_experiment


def start():
    """Jobs elsewhere are told which plans they follow; here no queue needs sparing.

    After every finished job Snakemake's limiter has the ready jobs weighed once more per second, for as long as any
    are ready: with a thousand jobs the main process is busy with nothing else.
    """
    PLAN.start()
    outlast_outages(workflow.executor_settings)
    if workflow.local_exec and PLAN.params.resident:
        owner.offer()
    if workflow.local_exec and workflow.scheduler is not None:
        workflow.scheduler.job_rate_limiter = None


def tell(text):
    print(linked(text, terminal=sys.stderr.isatty()), file=sys.stderr)


def finish():
    """After a successful run: where to look and how long it took."""
    owner.settle()
    if EXPERIMENTS:
        tell(closing_summary(PLAN, time.time() - psutil.Process().create_time()))


def stop():
    """After a failure: which jobs failed, where their logs are, and what could not be done without them."""
    owner.settle()
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
    tell(failure_summary(named, left))
    tell(partial_reports(PLAN))
