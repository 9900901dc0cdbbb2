"""Tuning: every method gets the same number of training runs to choose its settings, on validation data only.

A search (`workflow/tuning/<name>.yaml`) asks Optuna for settings, has Snakemake train the ordinary runs they name, and
reads the validation metric from their histories; test images are never embedded. Nothing is stored besides the runs:
the optimiser is seeded, so a search started again asks the same questions, finds the answers on disk and goes on where
it stopped.

    search    ranges -> settings, and the loop: ask, train, tell; one Snakemake call per batch
    report    trials.csv, the history figure, the methods file with the chosen settings, and the experiment of both
"""

from __future__ import annotations

from pathlib import Path

from probmetric.config import ConfigError, Tuning, load
from probmetric.errors import nearest

SEARCHES = Path("workflow/tuning")


def tuning_names(folder: Path = SEARCHES) -> list[str]:
    """Names of the search files."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_tuning(name: str, folder: Path = SEARCHES) -> Tuning:
    """Read and validate search `name`; an unknown name is answered with the nearest."""
    names = tuning_names(folder)
    if name not in names:
        raise ConfigError(f"unknown search {name!r}: {nearest(name, names)}")
    return load(Tuning, folder / f"{name}.yaml")
