"""Bundles: many runs made by one job, where a job for every step would be too many or would leave a GPU waiting.

Snakemake weighs every job for milliseconds: tens of thousands are minutes before the first one starts. Above
`MOST_RUNS` unfinished runs they are put together; each run of a bundle has its own logs, failure and resume, and a
bundle that is started again goes on with what is not finished. Runs that share an encoder are in one bundle.
`runs_per_job` in params.yaml asks for bundles of fewer runs, or where there are fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from probmetric.config import StalePolicy
from probmetric.planning.plans import PLANS, RunPlan, read_plan, write_plan
from probmetric.planning.runs import Run

MOST_RUNS = 1500
_BUNDLES = 400


@dataclass(frozen=True)
class BundlePlan:
    """Plan files of the runs of a bundle and of the encoders they use, these first; what is done about other code."""

    runs: Mapping[str, str]
    stale: StalePolicy = "auto"

    @property
    def path(self) -> Path:
        """Where the plan lies; named by its content."""
        return write_plan(PLANS / "bundles", {"runs": dict(self.runs), "stale": self.stale})

    @classmethod
    def read(cls, path: str | Path) -> BundlePlan:
        """Read a plan; errors as of `RunPlan.read`."""
        return cls(**read_plan(path))

    def plans(self) -> list[RunPlan]:
        """The plans of its runs, in the order they are made."""
        return [RunPlan.read(path) for path in self.runs.values()]


def bundled(runs: Mapping[str, Run], unfinished: Iterable[str], per_job: int = 0) -> list[tuple[str, ...]]:
    """Names of the runs of every bundle; nothing where there are few and each step has its job.

    Args:
        runs: every run of the plan, by name.
        unfinished: those to be made.
        per_job: how many runs a bundle has, at least; 0: bundles are made where there are many runs only.
    """
    waiting = list(unfinished)
    if len(waiting) <= MOST_RUNS and not per_job:
        return []
    size = per_job or -(-len(waiting) // _BUNDLES)
    found: list[tuple[str, ...]] = []
    current: list[str] = []
    for group in _groups(runs, waiting):
        current += group
        if len(current) >= size:
            found.append(tuple(current))
            current = []
    return [*found, tuple(current)] if current else found


def _groups(runs: Mapping[str, Run], names: Iterable[str]) -> list[list[str]]:
    """Runs that rest on common encoders, together; encoders first."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    wanted = list(names)
    for name in wanted:
        for encoder in runs[name].encoders:
            leader[find(name)] = find(encoder)
    groups: dict[str, list[str]] = {}
    for name in sorted(wanted, key=lambda name: not runs[name].trains):
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())
