"""Training the runs of a search: one Snakemake call per batch, so that clusters, locks and resume work as always."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from probmetric.run_folder import RunFolder
from probmetric.tuning.search import TuningError


def train_runs(runs: Sequence[str], options: Sequence[str] = ()) -> None:
    """Have Snakemake make `history.csv` of every run; runs that cannot be trained are left out, the others finish.

    Args:
        runs: run names.
        options: further options of `snakemake`, such as `--profile slurm`.

    Raises:
        TuningError: Snakemake itself failed or was stopped.
    """
    targets = [str(RunFolder.named(run).history_file) for run in runs]
    missing = [target for target in targets if not Path(target).exists()]
    if not missing:
        return
    config = ["--config", "experiments=[]", f"runs={json.dumps(list(runs), separators=(',', ':'))}"]
    command = ["snakemake", *missing, "--keep-going", *options, *config]
    status = subprocess.run(command, check=False).returncode
    if status < 0 or status == 130:
        raise TuningError("training was stopped; run the same command again to go on.")
    if status and not any(Path(target).exists() for target in missing):
        raise TuningError("no run of this batch could be trained; Snakemake's message is above. Run the command again.")
