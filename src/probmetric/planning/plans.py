"""Write and read plan files of reports and of datasets, beside those of runs (`probmetric.runs.plan`).

    state/plans/experiments/<experiment>.json   one experiment: its runs and the content of its report
    state/plans/data.json                       where data are stored and how they are made
    state/plans/data/<dataset>.json             ingredients of one prepared dataset

A file is rewritten only if the plan has changed, because Snakemake compares its time with those of the results. No file
changes while a workflow is running here (`hold_plans`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probmetric import reporting
from probmetric.config import Params, parse
from probmetric.io import FileError, digest_of, present, read_json, sha256_file, try_lock
from probmetric.planning.declared import made_of
from probmetric.registry import load_plugins
from probmetric.runs.made import Judge, Verdict
from probmetric.runs.plan import AGAIN, PLANS, RunPlan, write_if_changed
from probmetric.runs.source import module_digests

DATA = PLANS / "data.json"
LOCK = PLANS / ".lock"

_HELD = contextlib.ExitStack()


@dataclass(frozen=True)
class ReportPlan:
    """One experiment.

    Attributes:
        experiment: its name.
        shown: its runs, in its order.
        runs: plan file of each run, and of every run whose encoder one of them borrows.
        report: content of its tables, figures and page.
        tracking: where MLflow stores it.
        plugins: modules of the user's own components.
        code: digest of the code that makes reports.
    """

    experiment: str
    shown: Sequence[str]
    runs: Mapping[str, str]
    report: Mapping[str, Any]
    tracking: Mapping[str, str]
    plugins: Sequence[str] = ()
    code: str = ""

    @property
    def path(self) -> Path:
        """Path of the plan file."""
        return PLANS / "experiments" / f"{self.experiment}.json"

    def write(self) -> Path:
        """Write the plan, unless it stands there already; returns its path."""
        return write_if_changed(self.path, asdict(self))

    @classmethod
    def read(cls, path: str | Path) -> ReportPlan:
        """Read a plan.

        Raises:
            FileError: it is missing or damaged.
        """
        values = read_json(path, AGAIN, dict[str, Any])
        try:
            load_plugins(values["plugins"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise FileError(f"{path} is damaged or was edited ({error!r}); delete it and {AGAIN}.") from error

    def verdicts(self) -> dict[str, Verdict]:
        """Judge the runs of the report by their plans; return run -> verdict."""
        judge = Judge({name: RunPlan.read(path).run for name, path in self.runs.items()})
        return {name: judge.run_verdict(name) for name in self.shown}


@functools.cache
def reporting_code(figures: tuple[str, ...] = ()) -> str:
    """Return the digest of the code that makes reports.

    It covers `reporting` with its imports, templates, claims and published numbers, and users' `figures`.
    """
    folder = Path(reporting.__file__).parent
    files = {path: str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()}
    modules = [name.removesuffix(".py").replace("/", ".") for path, name in files.items() if path.suffix == ".py"]
    roots = [f"{reporting.__name__}.{name}".removesuffix(".__init__") for name in modules]
    others = {name: sha256_file(path) for path, name in files.items() if path.suffix not in (".py", ".pyc")}
    return digest_of([module_digests(*roots, *figures), others])


def workflow_runs() -> bool:
    """Say whether a workflow is running in this folder, by the lock of `hold_plans`."""
    if not PLANS.is_dir():
        return False
    with try_lock(LOCK) as free:
        return not free


def hold_plans() -> None:
    """Keep the plan files unchanged until this process, which runs a workflow, ends."""
    _HELD.enter_context(try_lock(LOCK))


def write_data_plan(params: Params) -> Path:
    """Write which datasets there are, where they are stored and how they are made, if that has changed."""
    about_data = Params(data=params.data, datasets=params.datasets, noise=params.noise, plugins=params.plugins)
    return write_if_changed(DATA, about_data.model_dump(mode="json"))


def read_data_plan(path: str | Path) -> Params:
    """Read a plan of data; its settings that are not about data are defaults. Errors as for `ReportPlan.read`."""
    params: Params = parse(Params, read_json(path, AGAIN, dict[str, Any]), str(path))
    return params


def write_dataset_plan(params: Params, name: str, *, again: bool = False) -> Path:
    """Write the current ingredients of prepared dataset `name`, if they have changed; return the path.

    `again` changes the file in any case, so that the dataset is prepared again.
    """
    path = dataset_plan(name)
    before = read_json(path, AGAIN, dict[str, Any]) if present(path) else {}
    return write_if_changed(path, made_of(params, name, before), again=again)


def dataset_plan(name: str) -> Path:
    """Return the path of the file with the ingredients of prepared dataset `name`."""
    return PLANS / "data" / f"{name}.json"
