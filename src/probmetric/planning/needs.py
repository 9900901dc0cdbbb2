"""What a job asks a cluster for: time and memory, from what runs of the same kind took here.

A kind is a step of one method, with the same overrides but for the number of epochs, on one dataset, label noise aside.
Of the recorded jobs (`benchmarks/jobs`) and histories of its latest runs the longest and largest count:

    time     10 minutes + 3 times the longest; of a training, the start and so many epochs at the slowest rate
    memory   1 GB + 2 times the largest resident size

Where nothing of the kind was recorded, a job asks for `UNKNOWN`. Every further attempt asks for as much again; from the
third on also for what is asked without records, should this machine be slower than the one they are from.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from probmetric.io import FileError
from probmetric.job_times import JOBS, job_megabytes, job_seconds
from probmetric.planning.runs import Run
from probmetric.planning.staleness import steps_of
from probmetric.runs.folder import RunFolder, Step
from probmetric.runs.names import EPOCHS, RESULTS

LATEST = 10


@dataclass(frozen=True)
class Need:
    """Time in minutes and memory in MB."""

    minutes: int
    megabytes: int


@dataclass(frozen=True)
class Took:
    """What jobs of a kind took at most: seconds, and MB of memory."""

    seconds: float
    megabytes: float

    @property
    def need(self) -> Need:
        """What is asked for, by the factors of the module docstring."""
        return Need(10 + math.ceil(3 * self.seconds / 60), 1000 + math.ceil(2 * self.megabytes))


UNKNOWN: dict[Step, Need] = {
    "train": Need(1440, 16000),
    "fit_posterior": Need(240, 8000),
    "embed": Need(240, 8000),
    "evaluate": Need(120, 8000),
}


def grown(took: Took | None, unknown: Need, attempt: int) -> Need:
    """What attempt 1, 2, ... asks for, given what records say, if anything, and what is asked for without them."""
    if took is None:
        return Need(attempt * unknown.minutes, attempt * unknown.megabytes)
    known = took.need
    late = max(0, attempt - 2)
    return Need(
        max(attempt * known.minutes, late * unknown.minutes), max(attempt * known.megabytes, late * unknown.megabytes)
    )


@dataclass(frozen=True)
class Needs:
    """What jobs took, by kind; files are read where a job of their kind is to run."""

    jobs: Path = JOBS
    results: Path = RESULTS
    _known: dict[tuple[Step, str, int], Took | None] = field(default_factory=dict)
    _names: dict[Step, dict[str, list[str]]] = field(default_factory=dict)

    def of(self, run: Run, step: Step, attempt: int = 1) -> Need:
        """What a job of `step` of `run` asks for."""
        return grown(self._of(run, step), UNKNOWN[step], attempt)

    def of_all(self, runs: Iterable[Run], attempt: int = 1) -> Need:
        """What one job asks for that makes all steps of `runs`, one after the other."""
        found = [self._of(run, step) for run in runs for step in steps_of(run)]
        known = [took for took in found if took]
        whole = Took(sum(took.seconds for took in known), max((took.megabytes for took in known), default=0.0))
        return grown(whole if len(known) == len(found) else None, UNKNOWN["train"], attempt)

    def _of(self, run: Run, step: Step) -> Took | None:
        epochs = run.settings.training.epochs if step == "train" else 0
        key = step, kind(run.name), epochs
        if key not in self._known:
            self._known[key] = self._read(*key)
        return self._known[key]

    def _read(self, step: Step, of: str, epochs: int) -> Took | None:
        names = sorted(self._recorded(step).get(of, ()), key=lambda name: self._file(step, name).stat().st_mtime)
        seconds, megabytes = [], []
        for name in names[-LATEST:]:
            with contextlib.suppress(FileError):  # a damaged record tells nothing
                taken, size = job_seconds(self._file(step, name), "s"), job_megabytes(self._file(step, name))
                seconds.append(self._training(name, taken, epochs) if step == "train" else taken)
                megabytes.append(size)
        return Took(max(seconds), max(megabytes)) if any(megabytes) else None

    def _training(self, name: str, taken: float, epochs: int) -> float:
        """Seconds for so many epochs, from a recorded training that took `taken` seconds, or its last attempt did."""
        trained = [row.get("seconds") or 0.0 for row in RunFolder.named(name, self.results).history]
        return max(0.0, taken - sum(trained)) + epochs * max(trained) if trained else taken

    def _file(self, step: Step, name: str) -> Path:
        return self.jobs / step / f"{name}.tsv"

    def _recorded(self, step: Step) -> dict[str, list[str]]:
        """Kind -> recorded runs."""
        if step not in self._names:
            found: dict[str, list[str]] = {}
            folder = self.jobs / step
            for path in folder.glob("*/*/seed*.tsv"):
                name = path.relative_to(folder).as_posix().removesuffix(".tsv")
                found.setdefault(kind(name), []).append(name)
            self._names[step] = found
        return self._names[step]


@functools.lru_cache(maxsize=65536)
def kind(run: str) -> str:
    """The name of a run without its seed, label noise and number of epochs."""
    data, method, _seed = run.split("/")
    parts = [part for part in method.split("+") if not part.startswith(EPOCHS)]
    return f"{data.partition('+')[0]}/{'+'.join(parts)}"
