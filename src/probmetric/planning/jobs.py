"""What the Snakefile knows inside a job on another machine."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probmetric.config import Params, parse
from probmetric.planning.bundles import BundlePlan
from probmetric.planning.needs import UNKNOWN, Need, grown
from probmetric.planning.plans import PLANS, DataPlan, ReportPlan, RunPlan, read_current
from probmetric.planning.runs import Run, find_run
from probmetric.planning.workflow import WorkflowPlan, weights_of
from probmetric.runs.folder import Step


@dataclass(frozen=True)
class JobPlan:
    """What the Snakefile knows inside a job on another machine: the plans of the workflow that started it.

    Where that wrote none here (a pod with its own copy of the repository), a run is resolved from the configuration.
    """

    params: Params

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> JobPlan:
        """Validate Snakemake's `config`; nothing is expanded."""
        return cls(parse(Params, dict(config), "params.yaml"))

    @functools.cached_property
    def _current(self) -> dict[str, Any]:
        return read_current()

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments to build."""
        return list(self.params.experiments)

    @functools.cached_property
    def _plans(self) -> dict[str, RunPlan]:
        return {}

    def _plan(self, run: str) -> RunPlan:
        if run not in self._plans:
            path = self._current["runs"].get(run)
            planned = RunPlan.read(path) if path else RunPlan.of(find_run(self.params, run), self.params)
            self._plans[run] = planned
        return self._plans[run]

    def run(self, name: str) -> Run:
        """The job's run."""
        return self._plan(name).run

    def plan_file(self, run: str) -> str:
        """The file that tells a job of `run` everything."""
        return self._current["runs"].get(run) or str(self._plan(run).write())

    def digests(self, run: str) -> list[str]:
        """Digest files of the prepared datasets a run reads, its own first."""
        found = self.run(run)
        return [f"{found.settings.prepared}/{name}/digest" for name in found.data]

    def _report(self, experiment: str) -> ReportPlan:
        path = self._current["experiments"].get(experiment)
        if path:
            return ReportPlan.read(path)
        return WorkflowPlan.from_config(self.params.model_dump() | {"experiments": [experiment]}).report_plan(
            experiment
        )

    def awaited(self, experiment: str, name: str, *, every: bool) -> list[str]:
        """Nothing: the workflow that started the job has waited for all."""
        return []

    def need(self, run: str, step: Step, attempt: int) -> Need:
        """What is asked for without records: the workflow that started the job has asked."""
        return grown(None, UNKNOWN[step], attempt)

    def bundle_need(self, bundle: str, attempt: int) -> Need:
        """The same for the job of a bundle."""
        return grown(None, UNKNOWN["train"], attempt)

    def bundle_file(self, bundle: str) -> str:
        """The file that tells the job of a bundle everything."""
        return str(PLANS / "bundles" / f"{bundle}.json")

    def bundle_digests(self, bundle: str) -> list[str]:
        """Digest files of the prepared datasets the runs of a bundle read."""
        found = [plan.run for plan in BundlePlan.read(self.bundle_file(bundle)).plans()]
        return sorted({f"{run.settings.prepared}/{name}/digest" for run in found for name in run.data})

    def bundle_origins(self, bundle: str) -> list[str]:
        """Weight files that runs of a bundle start from."""
        return weights_of({plan.run.origin for plan in BundlePlan.read(self.bundle_file(bundle)).plans()})

    def report_file(self, experiment: str) -> str:
        """The file that tells the reporting jobs of an experiment everything."""
        return self._current["experiments"].get(experiment) or str(self._report(experiment).write())

    @property
    def data_file(self) -> str:
        """The file that tells the data jobs where data lies and how it is made."""
        return self._current.get("data") or str(DataPlan.of(self.params).write())

    @property
    def outdated_data(self) -> dict[str, str]:
        """Nothing: the workflow that started the job has decided."""
        return {}

    def repeats(self, run: str, step: Step) -> bool:
        """False: the workflow that started the job has decided."""
        return False

    def outdated(self, run: str, step: Step) -> bool:
        """False: the workflow that started the job has decided."""
        return False

    def reports_again(self, experiment: str) -> bool:
        """False: the workflow that started the job has decided."""
        return False
