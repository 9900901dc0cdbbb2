"""Tuning: every method gets the same number of training runs to choose its settings, on validation data only.

A search (`workflow/tuning/<name>.yaml`) asks Optuna for settings, lets Snakemake train ordinary runs with them, and
reads the validation metric from their histories. Test images are never embedded. A search stores only its runs: the
optimiser is seeded, so a search started again asks for the same settings, finds the trained runs and goes on.

    search    ranges -> settings, and the loop: ask, train, tell; one Snakemake call per batch
    report    trials.csv, the history figure, the methods file with the chosen settings, and the experiments of a search
"""

from __future__ import annotations

from pathlib import Path

from probmetric.config import ConfigError, Tuning, load
from probmetric.errors import nearest

SEARCHES = Path("workflow/tuning")


def tuning_names(folder: Path = SEARCHES) -> list[str]:
    """Return the names of the search files."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_tuning(name: str, folder: Path = SEARCHES) -> Tuning:
    """Read and validate search `name`. An unknown name raises an error that names the nearest valid one."""
    names = tuning_names(folder)
    if name not in names:
        raise ConfigError(f"unknown search {name!r}: {nearest(name, names)}")
    return load(Tuning, folder / f"{name}.yaml")
