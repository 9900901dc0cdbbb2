"""What made the files of a run folder: one record per step, and the files of earlier settings kept beside.

    results/<run>/made/<step>.json                  what the present files of the step were made from
    state/kept/<run>/<step>/<identity>/...          hard links to the files of every identity made so far
    state/kept/<run>/<step>/latest                  the identity made or brought back last

The identity of a step is the digest of its settings that differ from their defaults, its data, the version of the step,
the code of its components and what the steps before it wrote. Times of files mean nothing: a copy, a clone or an rsync
is as good as the original. Going back to earlier settings brings the kept files back instead of computing them again;
`probmetric clean` removes those that no longer belong to a run as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from probmetric.io import atomic_path, content_digest, digest_of, remembered_json, remove, write_json, write_text
from probmetric.io.folders import mark_folder, remove_folder
from probmetric.runs.folder import STEPS, RunFolder, Step

KEPT, KEPT_RESULTS = Path("state/kept"), "kept results"
_COMPLETE, _LATEST = "complete", "latest"
_SHORT = 16


@dataclass(frozen=True)
class Ingredients:
    """Everything a step's results depend on.

    Attributes:
        step: the step.
        version: version of the step; raised when what it does changes in a way no component's code shows.
        settings: dotted settings that differ from their defaults.
        data: prepared dataset -> digest.
        code: module -> digest of its syntax tree.
        upstream: file written by a step before -> digest of its content.
        cohorts: cohorts of the steps before.
    """

    step: Step
    version: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, str] = field(default_factory=dict)
    cohorts: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Digest that two runs of the step share only if they compute the same."""
        return digest_of(self._decisive(dict(self.settings)) | {"upstream": dict(self.upstream)})

    @property
    def cohort(self) -> str:
        """Digest shared by the seeds of one setting made by the same code: what a table's cell may average."""
        settings = {name: value for name, value in self.settings.items() if name != "seed"}
        return digest_of(self._decisive(settings) | {"cohorts": sorted(set(self.cohorts))})

    def _decisive(self, settings: dict[str, Any]) -> dict[str, Any]:
        # Code counts by content: a module that was moved or renamed does what it did.
        code = sorted(set(self.code.values()))
        data = dict(sorted(self.data.items()))
        return {"step": self.step, "version": self.version, "settings": settings, "data": data, "code": code}


@dataclass(frozen=True)
class Made:
    """The record of a finished step.

    Attributes:
        ingredients: what it was made from.
        release: version of this package that made it.
        output: digest of what it wrote, for the steps after it.
        files: name of each file it wrote -> digest of its content; `RunFolder` checks them.
    """

    ingredients: Ingredients
    release: str
    output: str
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Identity of the files."""
        return self.ingredients.identity


def read_made(run: str, step: Step) -> Made | None:
    """The record of a step; None where it was never finished, or its record is damaged."""
    try:
        values = remembered_json(RunFolder.named(run).made_file(step))
        known = {name: values["ingredients"][name] for name in Ingredients.__dataclass_fields__}
        known["cohorts"] = tuple(known["cohorts"])
        return Made(Ingredients(**known), values["release"], values["output"], values.get("files", {}))
    except (KeyError, TypeError):
        return None


def files_there(run: str, step: Step) -> bool:
    """Whether every file of the step is there."""
    return all(file.exists() for file in RunFolder.named(run).step_files(step))


def forget(run: str, step: Step) -> None:
    """Remove the record of a step, before its files change."""
    remove(RunFolder.named(run).made_file(step))


def record(run: str, ingredients: Ingredients, *, release: str) -> Made:
    """Say what made the files of a step, last of all, and keep them beside under their identity."""
    folder, step = RunFolder.named(run), ingredients.step
    output = digest_of({file.name: content_digest(file) for file in folder.step_results(step)})
    made = Made(ingredients, release, output, {file.name: content_digest(file) for file in folder.step_files(step)})
    write_json(folder.made_file(step), asdict(made) | {"identity": made.identity, "cohort": ingredients.cohort})
    _keep(folder, made)
    return made


def restore(run: str, ingredients: Ingredients) -> bool:
    """Bring back the files this step made of the same ingredients before it made others; False if there are none.

    Files of the latest identity are not brought back: who deletes them, or forces the step, wants them computed.
    """
    folder, step = RunFolder.named(run), ingredients.step
    kept = _kept_folder(folder, step, ingredients.identity)
    latest = kept.with_name(_LATEST)
    if not (kept / _COMPLETE).exists() or not latest.exists() or latest.read_text() == ingredients.identity:
        return False
    forget(run, step)
    for file in _all_files(folder, step):
        _link(kept / file.relative_to(folder.path), file)
    write_text(latest, ingredients.identity)
    return True


def superseded() -> list[Path]:
    """Kept folders whose files are not those of the run as it is."""
    found = []
    for folder in sorted(path.parent for path in KEPT.glob(f"*/*/*/*/*/{_COMPLETE}")):
        run, step = str(folder.parents[1].relative_to(KEPT)), folder.parent.name
        made = read_made(run, step) if step in STEPS else None
        if made is None or made.identity[:_SHORT] != folder.name:
            found.append(folder)
    return found


def _keep(folder: RunFolder, made: Made) -> None:
    """Link the files into `state/kept`; a folder without the mark of completeness is no copy."""
    step = made.ingredients.step
    kept = _kept_folder(folder, step, made.identity)
    remove_folder(kept, KEPT_RESULTS)
    names = [file.relative_to(folder.path).as_posix() for file in _all_files(folder, step)]
    mark_folder(kept, KEPT_RESULTS, [*names, _COMPLETE])
    for file in _all_files(folder, step):
        _link(file, kept / file.relative_to(folder.path))
    (kept / _COMPLETE).touch()
    write_text(kept.with_name(_LATEST), made.identity)


def _all_files(folder: RunFolder, step: Step) -> tuple[Path, ...]:
    return (*folder.step_files(step), folder.made_file(step))


def _kept_folder(folder: RunFolder, step: Step, identity: str) -> Path:
    return KEPT / folder.key.run / step / identity[:_SHORT]


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none; `target` is replaced whole."""
    with atomic_path(target) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
