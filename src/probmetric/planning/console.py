"""What a running workflow says in the terminal: a line per finished run, with its headline metric and the time left.

Snakemake hands its messages to a logger plugin (`snakemake_logger_plugin_probmetric`; the profiles name it). This one
replaces those about single jobs, and leaves the rest (errors, warnings, dry runs, `--verbose`, `--printshellcmds`) to
Snakemake's own handler. `--quiet` means what it always means. In a terminal, paths of logs, runs and reports are links.

The time left: for every rule, jobs to come times the mean seconds of those that ended, divided by how many ran at once.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probmetric.io import FileError
from probmetric.metrics import label
from probmetric.runs.folder import RunFolder

HEADLINES = ("retrieval/recall_at_1", "classification/accuracy", "verification/accuracy")
_PATH = re.compile(r"(?<![\w/.-])(?:logs|results|reports|state)/[\w@+=./-]*[\w/]")
_FEW = 2  # finished runs from which the time left is told


@dataclass
class Progress:
    """What ran so far: which jobs there are, since when they run, how long those took that ended.

    Attributes:
        clock: seconds, for tests.
        to_do: rule -> jobs that have not ended.
        about: job -> (rule, wildcards).
        started: job -> when.
        took: rule -> seconds of the jobs that ended.
    """

    clock: Any = time.monotonic
    to_do: Counter[str] = field(default_factory=Counter)
    about: dict[int, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.since = self.clock()
        self.total: Counter[str] = Counter()

    def plan(self, jobs: Mapping[str, int]) -> str:
        """Take in how many jobs of each rule there are; returns them in a line."""
        self.total = Counter({rule: number for rule, number in jobs.items() if rule not in ("all", "total")})
        self.to_do = Counter(self.total)
        counted = ", ".join(f"{number} {rule}" for rule, number in self.total.items())
        return f"{sum(self.total.values())} jobs: {counted}. Results come in as runs finish."

    def start(self, job: int) -> None:
        """A job was handed to the machine, or to the cluster's queue."""
        self.started[job] = self.clock()

    def end(self, job: int) -> Iterator[str]:
        """A job ended well: the lines it is worth."""
        rule, wildcards = self.about.get(job, ("", {}))
        self.to_do[rule] -= 1
        now = self.clock()
        self.took[rule].append(now - self.started.pop(job, now))
        if rule == "prepare":
            yield self._line(f"prepared {wildcards.get('data', '')}")
        elif rule == "evaluate":
            done = self.total[rule] - self.to_do[rule]
            counted = f"{done} of {self.total[rule]} runs"
            yield self._line(f"{finding(wildcards['run'])}   {', '.join(filter(None, (counted, self.left())))}")
        elif rule == "bundle":
            done = self.total[rule] - self.to_do[rule]
            counted = f"{done} of {self.total[rule]} bundles of runs"
            yield self._line(", ".join(filter(None, (counted, self.left()))))
        elif rule == "report":
            yield self._line(f"page: reports/{wildcards['experiment']}/index.html")

    def left(self) -> str:
        """`about 6 min left`; empty while too little is known."""
        if sum(len(self.took[rule]) for rule in ("evaluate", "bundle") if rule in self.took) < _FEW:
            return ""
        busy = sum(sum(seconds) for seconds in self.took.values())
        usual = busy / sum(map(len, self.took.values()))
        means = {rule: sum(seconds) / len(seconds) for rule, seconds in self.took.items()}
        work = sum(number * means.get(rule, usual) for rule, number in self.to_do.items() if number > 0)
        at_once = max(1.0, busy / max(self.clock() - self.since, 1e-9))
        return f"about {duration(work / at_once)} left" if work else ""

    def _line(self, text: str) -> str:
        seconds = int(self.clock() - self.since)
        return f"[{seconds // 60:3d}:{seconds % 60:02d}] {text}"


def finding(run: str) -> str:
    """`results/digits/contrastive/seed0   Recall@1 0.981`: a finished run and the first of the headlines it has."""
    folder = RunFolder.named(run)
    try:
        metrics = folder.metrics
    except FileError:
        return str(folder.path)
    name = next((name for name in HEADLINES if isinstance(metrics.get(name), int | float)), "")
    return f"{folder.path}   {label(name)} {metrics[name]:.3f}" if name else str(folder.path)


def duration(seconds: float) -> str:
    """`40 s`, `6 min`, `2 h 10 min`, as exact as a guess deserves."""
    if seconds < 60:
        return f"{10 * max(1, round(seconds / 10))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {10 * (minutes % 60 // 10)} min"


def linked(text: str, *, terminal: bool) -> str:
    """`text` with the paths of logs, runs and reports as links (OSC 8), where it goes to a terminal that has them."""
    if not terminal or os.environ.get("TERM") in (None, "dumb", "linux"):
        return text
    return _PATH.sub(lambda path: f"\033]8;;{Path(path[0]).absolute().as_uri()}\033\\{path[0]}\033]8;;\033\\", text)
