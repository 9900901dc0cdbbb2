"""Write the record of a finished step, `results/<run>/made/<step>.json`, and compare it with the plan.

A step is made again if its record does not fit the plan: other settings, data, code or files of the steps before. Times
of files do not matter, so a copy, a clone or an rsync of the results is valid.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from probmetric.io import content_digest, digest_of, remembered_json, remove, write_json
from probmetric.runs.folder import RunFolder, Step
from probmetric.runs.identity import PRETRAINED, Ingredients, ingredients, steps_before
from probmetric.runs.plan import Run
from probmetric.runs.source import LINKS

State = Literal["finished", "stale", "missing"]
_SHOWN = 3


@dataclass(frozen=True)
class Made:
    """The record of a finished step.

    Attributes:
        ingredients: its settings, data, code and files of the steps before.
        release: version of this package that made it.
        output: digest of its output, for the steps after it.
        files: name of each file it wrote -> digest of its content; `RunFolder` checks them.
    """

    ingredients: Ingredients
    release: str
    output: str
    files: Mapping[str, str] = field(default_factory=dict)


def read_made(run: str, step: Step) -> Made | None:
    """Return the record of a step; None if the step was never finished, or the record is damaged."""
    try:
        values = remembered_json(RunFolder.named(run).made_file(step))
        parts = {name: values["ingredients"][name] for name in Ingredients.__dataclass_fields__}
        return Made(Ingredients(**parts), values["release"], values["output"], values["files"])
    except (KeyError, TypeError):
        return None


def forget(run: str, step: Step) -> None:
    """Remove the record of a step, before its files change."""
    remove(RunFolder.named(run).made_file(step))


def record(run: str, made_of: Ingredients, *, release: str) -> Made:
    """Write the record of a step, after all its files.

    `made/evaluate.json` holds the metrics too, so that a lost metrics.json (Snakemake removes it before a job) can be
    written again without a new evaluation (`restore_metrics`).
    """
    folder, step = RunFolder.named(run), made_of.step
    files = {file.name: content_digest(file) for file in folder.step_files(step)}
    output = digest_of({file.name: files[file.name] for file in folder.step_results(step)})
    made = Made(made_of, release, output, files)
    metrics = {"metrics": folder.read_metrics()} if step == "evaluate" else {}
    write_json(folder.made_file(step), asdict(made) | {"identity": made_of.identity} | metrics)
    return made


def restore_metrics(run: str) -> bool:
    """Write metrics.json again from the record of a finished evaluation; return False if the record has no metrics."""
    folder = RunFolder.named(run)
    values = remembered_json(folder.made_file("evaluate"))
    metrics = values.get("metrics") if isinstance(values, dict) else None
    if not isinstance(metrics, dict):
        return False
    write_json(folder.metrics_file, metrics)
    return True


@dataclass(frozen=True)
class Verdict:
    """State of a step or of a run, and the reason if it is not finished as planned."""

    state: State
    why: str = ""

    @property
    def usable(self) -> bool:
        """Whether the files are those that the plan would make."""
        return self.state == "finished"


FRESH, MISSING = Verdict("finished"), Verdict("missing")


class Judge:
    """Compare the steps of many runs with their records; every record is read once."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        """Judge `runs`; a run from which they take an encoder or weights is judged, too, if it is among them."""
        self.runs = runs
        self.made = functools.cache(read_made)
        self._verdicts: dict[tuple[str, Step], Verdict] = {}

    def verdict(self, run: str, step: Step) -> Verdict:
        """Return the state of a step."""
        key = run, step
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(self.runs[run], step)
        return self._verdicts[key]

    def run_verdict(self, run: str) -> Verdict:
        """Return the state of a whole run: that of the first step, its own or before, that is not usable."""
        planned = self.runs[run]
        borrowed = [self.verdict(name, "train") for name in planned.encoders if name != run and name in self.runs]
        stale = [verdict for verdict in borrowed if verdict.state == "stale"]
        verdicts = [self.verdict(run, step) for step in planned.steps]
        return next((verdict for verdict in [*stale, *verdicts] if not verdict.usable), FRESH)

    def _judge(self, run: Run, step: Step) -> Verdict:
        made = self.made(run.name, step)
        if made is None:
            there = all(file.exists() for file in RunFolder.named(run.name).step_files(step))
            return Verdict("stale", "no record says what made it") if there else MISSING
        before = steps_before(run, step)
        stale = [key for key in before.values() if key[0] in self.runs and self.verdict(*key).state == "stale"]
        if stale:
            return Verdict("stale", f"{stale[0][1]} of {stale[0][0]} is stale")
        wanted = ingredients(run, step, self.upstream(run, step))
        return _compared(made.ingredients, wanted, ignored={name for name in before if name not in wanted.upstream})

    def upstream(self, run: Run, step: Step) -> dict[str, str]:
        """Return the outputs of the finished steps before `step`: name -> digest."""
        made = {name: self.made(*key) for name, key in steps_before(run, step).items()}
        return {name: record.output for name, record in made.items() if record}


def _compared(had: Ingredients, wanted: Ingredients, ignored: Set[str]) -> Verdict:
    """Return the verdict on a record; `ignored` steps before have no files to compare."""
    absent = {PRETRAINED} - wanted.upstream.keys()  # results stay valid if the weight file is gone
    anew = [name for name in _differing(had.upstream, wanted.upstream) if name not in absent | ignored]
    version = f"step {wanted.step} version {had.version} -> {wanted.version}" if had.version != wanted.version else ""
    data = [name for name in sorted(wanted.data) if had.data.get(name) != wanted.data[name]]
    reasons = [
        *filter(None, [version]),
        *_settings(had.settings, wanted.settings),
        *(f"dataset {name} has other content" for name in data),
        *(f"{name} was made anew" for name in anew),
        *(f"{name} changed" for name in _changed_modules(had, wanted)),
    ]
    more = f" and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return Verdict("stale", ", ".join(reasons[:_SHOWN]) + more) if reasons else FRESH


def _differing(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in had.keys() | wanted.keys() if had.get(name) != wanted.get(name))


def _settings(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ, as `loss.scale 16 -> 32`; missing settings have their defaults."""
    names = _differing(had, wanted)
    return [f"{name} {had.get(name, 'default')} -> {wanted.get(name, 'default')}" for name in names]


def _changed_modules(had: Ingredients, wanted: Ingredients) -> list[str]:
    """Return the modules whose code differs by content; a module may move."""
    if sorted(set(had.code.values())) == sorted(set(wanted.code.values())):
        return []
    digests = set(had.code.values())
    changed = [name for name, digest in wanted.code.items() if digest not in digests]
    changed = changed or _differing(had.code, wanted.code)
    return [name for name in changed if name != LINKS] or changed  # links follow from the modules' contents
