"""Read the project in the current folder."""

from __future__ import annotations

from pathlib import Path

from probmetric.config import DataFolders, Params, load
from probmetric.io import FileError, present

PARAMS = Path("params.yaml")


def check_planned(name: str, planned: str, plan: Path) -> None:
    """Raise `FileError` if the given plan file is not that of the run or experiment `name`."""
    if planned != name:
        raise FileError(f"{plan} is the plan of {planned}, not of {name}; give that of {name}, or leave --plan out.")


def params() -> Params:
    """Return the project's params.yaml."""
    if not present(PARAMS):
        raise FileError(
            f"there is no {PARAMS} in {Path.cwd()}; run this command inside a project folder, the one that holds it "
            "(`probmetric init` starts one)."
        )
    return load(Params, PARAMS)


def prepared_folder() -> Path:
    """Return the folder of the project's prepared datasets; without a project, the default one."""
    return Path((params().data if present(PARAMS) else DataFolders()).prepared)
