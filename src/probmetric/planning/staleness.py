"""Which steps of a run are finished, and whether their files are what today's plan and code would make.

    missing   never finished, or a file of it is gone
    stale     made from other settings, data, code or files than the plan names: made again
    kept      made by other code of an earlier release of this package: used as it is, and marked wherever it is shown
    fresh     as planned

`stale:` in params.yaml decides about changed code: `auto` (the default) repeats what a user's own component or an
edited source made, and keeps what an earlier release made; `rerun` repeats both, `keep` keeps both, `error` stops.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from probmetric import __version__
from probmetric.config import StalePolicy
from probmetric.io import digest_of
from probmetric.planning.runs import Run
from probmetric.runs.folder import Step
from probmetric.runs.identity import PRETRAINED, data_digests, ingredients
from probmetric.runs.made import Ingredients, Made, files_there, read_made
from probmetric.runs.names import RESULTS
from probmetric.runs.source import is_own

if TYPE_CHECKING:
    from probmetric.planning.plans import ReportPlan

State = Literal["fresh", "kept", "stale", "missing"]
_SHOWN = 3


@dataclass(frozen=True)
class Verdict:
    """State of one step, and why where it is not fresh."""

    state: State
    why: str = ""

    @property
    def usable(self) -> bool:
        """Whether the files may be used as they are."""
        return self.state in ("fresh", "kept")


FRESH, _MISSING = Verdict("fresh"), Verdict("missing")


def steps_of(run: Run) -> tuple[Step, ...]:
    """Steps of a run in their order; one with a base trains nothing."""
    training: tuple[Step, ...] = ("train",) if run.trains else ()
    posterior: tuple[Step, ...] = ("fit_posterior",) if run.fits_posterior else ()
    return (*training, *posterior, "embed", "evaluate")


def step_ingredients(run: Run, step: Step, before: Mapping[str, Made]) -> Ingredients:
    """What `step` of `run` would be made from now.

    Args:
        run: the planned run.
        step: the step.
        before: the finished steps before it (`steps_before`).
    """
    names = run.data if step in ("embed", "evaluate") else run.data[:1]
    return ingredients(run.settings, step, data=data_digests(run.settings.prepared, names), upstream=before)


def steps_before(run: Run, step: Step) -> dict[str, tuple[str, Step]]:
    """The steps whose files `step` reads: name -> (run, step); of several encoders one each."""
    if step == "train":
        return {PRETRAINED: (run.origin, "train")} if run.origin else {}
    if step == "evaluate":
        return {"embed": (run.name, "embed")}
    encoders: dict[str, tuple[str, Step]] = {
        f"encoder {number}": (name, "train") for number, name in enumerate(run.encoders)
    }
    if step == "embed" and run.fits_posterior:
        encoders["posterior"] = (run.name, "fit_posterior")
    return encoders


class Judge:
    """Judges the steps of many runs; every record is read once."""

    def __init__(
        self, runs: Mapping[str, Run], policy: StalePolicy = "auto", outdated: Mapping[str, str] | None = None
    ) -> None:
        """Judge `runs`, which hold every run whose encoder another one borrows.

        Args:
            runs: the planned runs by name.
            policy: what is done about changed code.
            outdated: prepared datasets that are about to be prepared again, and why.
        """
        self.runs, self.policy, self.outdated = runs, policy, outdated or {}
        self._made: dict[tuple[str, Step], Made | None] = {}
        self._verdicts: dict[tuple[str, Step], Verdict] = {}

    def made(self, run: str, step: Step) -> Made | None:
        """The record of a step."""
        key = run, step
        if key not in self._made:
            self._made[key] = read_made(run, step)
        return self._made[key]

    def verdict(self, run: str, step: Step) -> Verdict:
        """State of a step."""
        key = run, step
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(run, step)
        return self._verdicts[key]

    def run_verdict(self, run: str) -> Verdict:
        """State of the whole run: of its first step, or of a step before, that is not fresh; missing counts last."""
        found = [self.verdict(*key) for key in self._steps(run)]
        order = ("stale", "missing", "kept")
        return next((verdict for state in order for verdict in found if verdict.state == state), FRESH)

    def mark(self, run: str) -> str:
        """What reports put behind a kept run: the release that made it and its cohort; empty for one as planned."""
        for key in self._steps(run):
            made = self.made(*key)
            if made and self.verdict(*key).state == "kept":
                last = self.made(run, "evaluate") or made
                return f"{made.release}-{last.ingredients.cohort[:4]}"
        return ""

    def _steps(self, run: str) -> list[tuple[str, Step]]:
        """Every step the results of a run rest on."""
        planned = self.runs[run]
        borrowed: list[tuple[str, Step]] = [(name, "train") for name in planned.encoders]
        return list(dict.fromkeys([*borrowed, *((run, step) for step in steps_of(planned))]))

    def _judge(self, run: str, step: Step) -> Verdict:
        if not (RESULTS / run).exists():
            return _MISSING
        made, planned = self.made(run, step), self.runs[run]
        if made is None:
            there = files_there(run, step)
            return Verdict("stale", "no record says what made it") if there else Verdict("missing")
        if step == "evaluate" and not files_there(run, step):
            return Verdict("missing")
        before = self._before(planned, step)
        stale = [key for key in before.values() if self.verdict(*key).state == "stale"]
        if stale:
            return Verdict("stale", f"{stale[0][1]} of {stale[0][0]} is stale")
        finished = {name: found for name, key in before.items() if (found := self.made(*key))}
        wanted = step_ingredients(planned, step, finished)
        gone = [key for name, key in before.items() if name not in finished]
        if gone and set(made.ingredients.cohorts) != {self.cohort(*key) for key in before.values()}:
            return Verdict("stale", f"{gone[0][1]} of {gone[0][0]} is missing, and was another one")
        return self._compare(made, wanted, ignored={name for name in before if name not in finished})

    def _before(self, planned: Run, step: Step) -> dict[str, tuple[str, Step]]:
        """`steps_before`; a run that weights came from, where it is not ours, is judged by their file alone."""
        found = steps_before(planned, step)
        return {name: key for name, key in found.items() if name != PRETRAINED or key[0] in self.runs}

    def cohort(self, run: str, step: Step) -> str:
        """Cohort the step would have if it were made now."""
        planned = self.runs[run]
        before = [self.cohort(*key) for key in self._before(planned, step).values()]
        return replace(step_ingredients(planned, step, {}), cohorts=tuple(sorted(set(before)))).cohort

    def _compare(self, made: Made, wanted: Ingredients, ignored: Set[str]) -> Verdict:
        """Verdict on a record; of `ignored` steps before nothing is there to compare."""
        had = made.ingredients
        absent = {PRETRAINED} - wanted.upstream.keys()  # a weight file that is gone is not held against the results
        anew = [name for name in _differing(had.upstream, wanted.upstream) if name not in absent | ignored]
        decisive = [
            *_settings(had.settings, wanted.settings),
            *_data(had.data, wanted.data),
            *(f"dataset {name}: {self.outdated[name]}" for name in sorted(had.data) if name in self.outdated),
            *(f"{name} was made anew" for name in anew),
        ]
        if decisive:
            return Verdict("stale", _listed(decisive))
        code = _code(had, wanted)
        if not code:
            return FRESH
        repeat = {"auto": _by_user(had, wanted) or made.release == __version__, "keep": False}.get(self.policy, True)
        why = _listed(code)
        return Verdict("stale", why) if repeat else Verdict("kept", f"made by release {made.release}: {why}")


def _differing(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in had.keys() | wanted.keys() if had.get(name) != wanted.get(name))


def _settings(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Settings that differ, as `loss.scale 16 -> 32`; what is not named has its default."""
    names = _differing(had, wanted)
    return [f"{name} {had.get(name, 'default')} -> {wanted.get(name, 'default')}" for name in names]


def _data(had: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Datasets with other content; one that is not prepared here is not held against the results."""
    return [f"dataset {name} has other content" for name in sorted(wanted) if had.get(name) != wanted[name]]


def _code(had: Ingredients, wanted: Ingredients) -> list[str]:
    """What of the code differs: by content, so that a module may move."""
    found = [f"step {wanted.step} version {had.version} -> {wanted.version}"] if had.version != wanted.version else []
    return found + [f"{name} changed" for name in _changed_modules(had, wanted)]


def _changed_modules(had: Ingredients, wanted: Ingredients) -> list[str]:
    if sorted(set(had.code.values())) == sorted(set(wanted.code.values())):
        return []
    known = set(had.code.values())
    changed = [name for name, digest in wanted.code.items() if digest not in known]
    return changed or _differing(had.code, wanted.code)


def _by_user(had: Ingredients, wanted: Ingredients) -> bool:
    return any(not is_own(name) for name in _changed_modules(had, wanted))


def _listed(reasons: Iterable[str]) -> str:
    found = list(reasons)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def report_state(plan: ReportPlan, judge: Judge) -> str:
    """Digest of everything a report is made from: its plan, its runs' results and how they are judged, our code."""
    found = {}
    for name in plan.shown:
        verdict, made = judge.run_verdict(name), judge.made(name, "evaluate")
        found[name] = [verdict.state, verdict.why, made.identity if made and verdict.usable else ""]
    return digest_of([plan.plain(), found, _reporting_code()])


@functools.cache
def _reporting_code() -> str:
    """Digest of the reporting room's files: code, templates, claims and published numbers."""
    folder = Path(__file__).parents[1] / "reporting"
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    return digest_of({str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
