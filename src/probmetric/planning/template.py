"""`probmetric init` in an empty folder: the workflow's own files, from the wheel or from the checkout.

Such a project has no dvc.yaml, whose stages name files of the checkout: its data is prepared without DVC. Its conda
file names this version of the package instead of the checkout and its locked requirements.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import probmetric
from probmetric.config import ConfigError
from probmetric.io import read_text, write_text
from probmetric.planning.declared import PARAMS

FILES = ("Snakefile", ".gitignore", "workflow", "params.yaml")  # the last one says that the project is whole
LINK, LINKED = "profiles", "workflow/profiles"  # where Snakemake looks for the default profile
CONDA = Path("workflow/envs/probmetric.yaml")
CHECKOUT = "      - -r ../../requirements.lock\n      - -e ../..\n"
PACKAGE = Path(probmetric.__file__).parent


def origin(folder: Path) -> Path:
    """Return the folder whose params.yaml and workflow hold in `folder`: itself, or what a project starts from.

    Raises:
        ConfigError: it is no project and none can be started in it, as files of those names are there, or this
            installation has no workflow to copy.
    """
    if (folder / PARAMS).exists():
        return folder
    taken = [name for name in (LINK, *FILES) if os.path.lexists(folder / name) and name != ".gitignore"]
    if taken:
        raise ConfigError(
            f"{folder.resolve()} has no {PARAMS} but {', '.join(taken)}: it is no project and none can be started in "
            "it. Run this in another folder, or move them away."
        )
    return _source()


def start(folder: Path) -> list[str]:
    """Write the workflow into `folder` unless it is a project already; says so in a line, [] where it was one.

    Raises:
        ConfigError: as `origin`.
    """
    source = origin(folder)
    if source == folder:
        return []
    (folder / LINK).symlink_to(LINKED)
    written = [name for name in FILES if not (folder / name).exists()]
    for name in written:
        place = source / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(place, folder / name)
    conda, installed = read_text(folder / CONDA), f"      - probmetric[all]=={probmetric.__version__}\n"
    write_text(folder / CONDA, conda.replace(CHECKOUT, installed))
    return [f"Started a project in {folder.resolve()}: {', '.join([*written, LINK])}."]


def _source() -> Path:
    places = (PACKAGE / "template", PACKAGE.parents[1])
    source = next((place for place in places if all((place / name).exists() for name in FILES)), None)
    if source is None:
        raise ConfigError(f"the installation in {PACKAGE} holds no workflow to start from; install the wheel.")
    return source
