"""Training the runs of a search: one Snakemake call per batch, so that clusters, locks and resume work as always."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from probmetric.config import StalePolicy
from probmetric.interruptions import call
from probmetric.planning.runs import Run
from probmetric.planning.staleness import Judge
from probmetric.runs.folder import RunFolder
from probmetric.tuning.search import TuningError


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
        raise TuningError(
            f"not complete: {', '.join(incomplete)}; Snakemake's messages are above. Run the command again."
        )


def train_runs(runs: Sequence[Run], stale: StalePolicy = "auto", options: Sequence[str] = ()) -> None:
    """Have Snakemake make `history.csv` of every run; runs that cannot be trained are left out, the others finish.

    Args:
        runs: planned runs; those trained already, as planned, are left alone.
        stale: what counts as trained after a change of code (`stale:` of params.yaml).
        options: further options of `snakemake`, such as `--profile slurm`.

    Raises:
        TuningError: Snakemake itself failed or was stopped.
    """
    judge = Judge({run.name: run for run in runs}, stale)
    waiting = [run.name for run in runs if not judge.verdict(run.name, "train").usable]
    missing = [str(RunFolder.named(name).history_file) for name in waiting]
    if not missing:
        return
    config = ["--config", "experiments=[]", f"runs={json.dumps(waiting, separators=(',', ':'))}"]
    command = ["snakemake", *missing, "--keep-going", *options, *config]
    status = call(command)
    _check_not_stopped(status)
    if status and not any(Path(target).exists() for target in missing):
        raise TuningError("no run of this batch could be trained; Snakemake's message is above. Run the command again.")


def _check_not_stopped(status: int) -> None:
    if status < 0 or status == 130:
        raise TuningError("stopped; run the same command again to go on.")
