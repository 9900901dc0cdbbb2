"""Plan files: what a job is told. Planning writes them, jobs read them and nothing else.

    state/plan/<run>/<digest>.json                    one run: settings, encoder, where its curves are shown
    state/plan/experiments/<experiment>/<digest>.json one experiment: its runs and what its report shows
    state/plan/data/<digest>.json                     where data lies and how it is made
    state/plan/current.json                           what the workflow follows that runs now, for jobs elsewhere

A file is named by its content and never changes: a job that waits in a queue does what was planned, whatever
params.yaml says by then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmetric.config import Params, RunSettings, StalePolicy, parse
from probmetric.io import FileError, digest_of, present, read_json, write_json
from probmetric.planning.runs import Run
from probmetric.planning.staleness import Judge
from probmetric.registry import load_plugins
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import RESULTS

PLANS = Path("state/plan")
CURRENT = PLANS / "current.json"
_AGAIN = "plan again: run `snakemake`, or the command without --plan"


@dataclass(frozen=True)
class RunPlan:
    """One run, the MLflow store its curves are shown in while it trains, and where components of its own come from."""

    run: Run
    store: str = ""
    plugins: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run, params: Params) -> RunPlan:
        """The plan of a run that `params` resolves."""
        return cls(run, params.tracking.store, params.plugins)

    def write(self) -> Path:
        """Write the plan, unless it is there; returns its path."""
        run = self.run
        values = {
            "run": run.name,
            "encoder": run.encoder,
            "settings": run.settings.model_dump(mode="json"),
            "store": self.store,
            "plugins": list(self.plugins),
        }
        return write_plan(PLANS / run.name, values)

    @classmethod
    def read(cls, path: str | Path) -> RunPlan:
        """Read a plan.

        Raises:
            FileError: it is missing, damaged or was edited.
        """
        values = read_plan(path)
        load_plugins(values["plugins"])
        settings = parse(RunSettings, values["settings"], str(path), checked=True)
        return cls(Run(values["run"], values["encoder"], settings), values["store"], tuple(values["plugins"]))


@dataclass(frozen=True)
class ReportPlan:
    """One experiment.

    Attributes:
        experiment: its name.
        shown: its runs, in its order.
        runs: plan file of each, and of every run whose encoder one of them borrows.
        report: what its tables, figures and page show.
        tracking: where MLflow keeps it.
        stale: what is done about results of other code.
        plugins: where components of the user's own come from.
    """

    experiment: str
    shown: Sequence[str]
    runs: Mapping[str, str]
    report: Mapping[str, Any]
    tracking: Mapping[str, str]
    stale: StalePolicy = "auto"
    plugins: Sequence[str] = ()

    def plain(self) -> dict[str, Any]:
        """Plain values, as they are written."""
        return self.__dict__ | {"shown": list(self.shown), "plugins": list(self.plugins)}

    def write(self) -> Path:
        """Write the plan, unless it is there; returns its path."""
        return write_plan(PLANS / "experiments" / self.experiment, self.plain())

    @classmethod
    def read(cls, path: str | Path) -> ReportPlan:
        """Read a plan; errors as of `RunPlan.read`."""
        values = read_plan(path)
        load_plugins(values["plugins"])
        return cls(**values)

    def judge(self) -> Judge:
        """Judges the experiment's runs as they were planned."""
        return Judge({name: RunPlan.read(path).run for name, path in self.runs.items()}, self.stale)


@dataclass(frozen=True)
class DataPlan:
    """The part of params.yaml that says which datasets there are, where they lie and how they are made."""

    params: Params

    @classmethod
    def of(cls, params: Params) -> DataPlan:
        """The plan of a configuration; everything that is not about data has its default."""
        return cls(Params(data=params.data, datasets=params.datasets, noise=params.noise, plugins=params.plugins))

    def write(self) -> Path:
        """Write the plan, unless it is there; returns its path."""
        return write_plan(PLANS / "data", self.params.model_dump(mode="json"))

    @classmethod
    def read(cls, path: str | Path) -> DataPlan:
        """Read a plan; errors as of `RunPlan.read`."""
        return cls(parse(Params, read_plan(path), str(path)))


def recorded_run(name: str, results: Path = RESULTS) -> Run:
    """A finished run below `results` with the settings it was made with (`run.yaml`), whatever params.yaml says now.

    Raises:
        FileError: it is not finished, or its record was changed.
    """
    folder = RunFolder.named(name, results)
    if not folder.finished:
        raise FileError(f"{name} is not finished; make it: `snakemake {folder.metrics_file}`.")
    values, path = folder.record, folder.record_file
    load_plugins(values.get("plugins", ()))
    try:
        return Run(name, values["encoder"], parse(RunSettings, values["settings"], str(path), checked=True))
    except (KeyError, TypeError) as error:
        raise FileError(f"{path} was changed ({error!r}); delete it and run the workflow again.") from error


def write_current(runs: Mapping[str, str], experiments: Mapping[str, str], data: str) -> None:
    """Say which plans the workflow that starts now follows."""
    write_json(CURRENT, {"runs": dict(runs), "experiments": dict(experiments), "data": data})


def read_current() -> dict[str, Any]:
    """Plans of the workflow that runs now: {"runs": name -> path, "experiments": ..., "data": path}."""
    if not present(CURRENT):
        return {"runs": {}, "experiments": {}}
    found: dict[str, Any] = read_json(CURRENT, _AGAIN, dict[str, dict[str, str] | str])
    return found


def write_plan(folder: Path, values: Mapping[str, Any]) -> Path:
    """Write `values` under their digest, unless they are there; returns the path.

    Many are written at once, so they are renamed but not flushed to the disk: one that a power cut damaged no longer
    fits its name, and `read_plan` says so.
    """
    path = folder / f"{digest_of(values)[:16]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{path.name}.{os.getpid()}"
        # A line per entry: to be read by people, and ten times faster than json's own indentation.
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        temporary.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        temporary.replace(path)
    return path


def read_plan(path: str | Path) -> dict[str, Any]:
    """Values of a plan file.

    Raises:
        FileError: it is missing, damaged or was edited.
    """
    values = read_json(path, fix=_AGAIN)
    if not isinstance(values, dict) or digest_of(values)[:16] != Path(path).stem:
        raise FileError(f"{path} is damaged or was edited: it does not fit its name; delete it and {_AGAIN}.")
    return values
