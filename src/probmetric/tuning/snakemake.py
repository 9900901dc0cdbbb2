"""Training the runs of a search: one Snakemake call per batch, so that clusters, locks and resume work as always."""

from __future__ import annotations

import json
from collections.abc import Sequence

from probmetric.process import call
from probmetric.runs.folder import RunFolder
from probmetric.runs.made import Judge
from probmetric.runs.plan import Run
from probmetric.tuning.search import TuningError

AGAIN = (
    "Run the command again. If the message names a lock, a workflow is running in this folder, or one was killed: when "
    "none is running, `snakemake --unlock`, then the command again."
)
DRY_RUN = {"-n", "--dry-run", "--dryrun"}


def build_studies(names: Sequence[str], options: Sequence[str] = ()) -> None:
    """Have Snakemake build the experiments `names`, from data to report, one after the other; called again it goes on.

    Raises:
        TuningError: some of it could not be made; Snakemake's messages say what.
    """
    incomplete = []
    for name in names:
        if status := call(["snakemake", "--keep-going", *options, "--config", f"experiments=[{name}]"]):
            _check_not_stopped(status)
            incomplete.append(name)
    if incomplete:
        raise TuningError(f"not complete: {', '.join(incomplete)}; Snakemake's messages are above. {AGAIN}")


def train_runs(runs: Sequence[Run], options: Sequence[str] = ()) -> None:
    """Have Snakemake train every run; runs that cannot be trained are left out, the others finish.

    Args:
        runs: planned runs; those trained already, as planned, are left alone.
        options: further options of `snakemake`, such as `--profile slurm`.

    Raises:
        TuningError: Snakemake itself failed or was stopped.
        SystemExit: in a dry run; what is asked next depends on what these would have reached.
    """
    judge = Judge({run.name: run for run in runs})
    waiting = [run.name for run in runs if not judge.verdict(run.name, "train").usable]
    if not waiting:
        return
    chosen = ["until=train", "experiments=[]", f"runs={json.dumps(waiting, separators=(',', ':'))}"]
    status = call(["snakemake", "--keep-going", *options, "--config", *chosen])
    _check_not_stopped(status)
    if DRY_RUN.intersection(options):
        raise SystemExit(status)
    if status and not any(RunFolder.named(name).history_file.exists() for name in waiting):
        raise TuningError(f"no run of this batch could be trained; Snakemake's message is above. {AGAIN}")


def _check_not_stopped(status: int) -> None:
    if status < 0 or status == 130:
        raise TuningError("stopped; run the same command again to go on.")
