"""What a running workflow says in the terminal: a line per finished run, with its headline metric.

Snakemake hands its messages to a logger plugin (`snakemake_logger_plugin_probmetric`; the profiles name it). This one
replaces those about single jobs, and leaves the rest (errors, warnings, dry runs, `--verbose`, `--printshellcmds`) to
Snakemake's own handler. `--quiet` means what it always means. In a terminal, paths of logs, runs and reports are links.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probmetric.io import FileError
from probmetric.metrics import label
from probmetric.runs.folder import RunFolder

HEADLINES = ("retrieval/recall_at_1", "classification/accuracy", "verification/accuracy")
_PATH = re.compile(r"(?<![\w/.-])(?:logs|results|reports|state)/[\w@+=./-]*[\w/]")


@dataclass
class Progress:
    """What ran so far.

    Attributes:
        clock: seconds, for tests.
        done: rule -> jobs that ended.
        about: job -> (rule, wildcards).
    """

    clock: Any = time.monotonic
    done: Counter[str] = field(default_factory=Counter)
    about: dict[int, tuple[str, Mapping[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.since = self.clock()
        self.total: Counter[str] = Counter()

    def plan(self, jobs: Mapping[str, int]) -> str:
        """Take in how many jobs of each rule there are; returns them in a line."""
        self.total = Counter({rule: number for rule, number in jobs.items() if rule not in ("all", "total")})
        counted = ", ".join(f"{number} {rule}" for rule, number in self.total.items())
        return f"{sum(self.total.values())} jobs: {counted}. Results come in as runs finish."

    def end(self, job: int) -> Iterator[str]:
        """Take in that a job ended well; yields the lines it is worth."""
        rule, wildcards = self.about.get(job, ("", {}))
        self.done[rule] += 1
        if rule == "prepare":
            yield self._line(f"prepared {wildcards.get('data', '')}")
        elif rule == "run":
            yield self._line(f"{finding(wildcards['run'])}   {self.done[rule]} of {self.total[rule]} runs")
        elif rule == "report":
            yield self._line(f"page: reports/{wildcards['experiment']}/index.html")

    def _line(self, text: str) -> str:
        seconds = int(self.clock() - self.since)
        return f"[{seconds // 60:3d}:{seconds % 60:02d}] {text}"


def finding(run: str) -> str:
    """Return a finished run and the first headline it has: `results/digits/contrastive/seed0   Recall@1 0.981`."""
    folder = RunFolder.named(run)
    try:
        metrics = folder.metrics
    except FileError:
        return str(folder.path)
    name = next((name for name in HEADLINES if isinstance(metrics.get(name), int | float)), "")
    return f"{folder.path}   {label(name)} {metrics[name]:.3f}" if name else str(folder.path)


def linked(text: str, *, terminal: bool) -> str:
    """Make paths of logs, runs and reports in `text` links (OSC 8), where it goes to a terminal that has them."""
    if not terminal or os.environ.get("TERM") in (None, "dumb", "linux"):
        return text
    return _PATH.sub(lambda path: f"\033]8;;{Path(path[0]).absolute().as_uri()}\033\\{path[0]}\033]8;;\033\\", text)
