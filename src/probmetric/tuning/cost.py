"""Processor time a search and its studies will take, from what runs of the same kind took on this machine.

Training: seconds an epoch of the method on the dataset (else of any method on it), median over the histories in
`results/`, times the epochs, as if nothing stopped early. Every other part of a job (start, data, validation,
posterior, embedding, evaluation): processor seconds of the recorded jobs (`benchmarks/jobs`) of any run, less what
their epochs took. Runs that are finished count too: it is what the whole takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from probmetric.config import Experiment, Methods, parse
from probmetric.job_times import JOBS, job_seconds
from probmetric.planning.runs import Run, expand
from probmetric.planning.staleness import steps_of
from probmetric.runs.folder import RunFolder, Step
from probmetric.runs.names import RESULTS, RunKey
from probmetric.tuning import report
from probmetric.tuning.search import Search, Trial, training_seconds


@dataclass(frozen=True)
class Times:
    """Measured seconds: (dataset, method) -> one epoch; step -> a job without its epochs."""

    epoch: dict[tuple[str, str], float]
    job: dict[str, float]

    @classmethod
    def recorded(cls, results: Path = RESULTS, jobs: Path = JOBS) -> Times:
        """Medians of what was recorded here."""
        folders = [RunFolder(path) for path in sorted(results.glob("*/*/seed*"))]
        trained = [run for run in folders if run.history_file.exists()]
        spent = {run.key.run: training_seconds(run) for run in trained}
        rates: dict[tuple[str, str], list[float]] = {}
        for run in trained:
            if seconds := spent[run.key.run]:
                rates.setdefault((run.key.data, run.key.method), []).append(seconds / len(run.history))
        rest: dict[str, list[float]] = {}
        for step in ("train", "fit_posterior", "embed", "evaluate"):
            for path in sorted((jobs / step).glob("*/*/seed*.tsv")):
                name = str(path.relative_to(jobs / step).with_suffix(""))
                epochs = spent.get(name, 0.0) if step == "train" else 0.0
                rest.setdefault(step, []).append(max(0.0, job_seconds(path, "cpu_time") - epochs))
        return cls({key: median(found) for key, found in rates.items()}, {key: median(rest[key]) for key in rest})

    def of(self, run: Run, steps: Iterable[Step]) -> float | None:
        """Processor seconds of `steps` of a run; None where nothing of the kind was timed."""
        chosen = list(steps)
        if any(step not in self.job for step in chosen):
            return None
        total = sum(self.job[step] for step in chosen)
        if "train" not in chosen or run.settings.loss is None:
            return total
        data = RunKey.parse(run.name).data
        clean = data.partition("+")[0]
        alike = [seconds for (found, _), seconds in self.epoch.items() if found.partition("+")[0] == clean]
        method = run.settings.method.removeprefix("tuned-")
        known = (self.epoch.get((found, method)) for found in (data, clean))
        epoch = next((seconds for seconds in known if seconds is not None), median(alike) if alike else None)
        return None if epoch is None else total + epoch * run.settings.training.epochs


def estimated(search: Search, name: str, times: Times) -> str:
    """A line on the search, one on each of its studies, one on all."""
    spec = search.spec
    trials = [run for method in spec.methods for run in search.planned(method)]
    lines, total = [], 0.0
    parts: list[tuple[str, list[Run], Callable[[Run], Iterable[Step]]]] = [
        (f"search: {spec.trials} trials of {len(spec.methods)} methods", trials, lambda _: ("train",))
    ]
    parts.extend((f"study {study}", runs, steps_of) for study, runs in _study_runs(search, name).items())
    for title, runs, steps in parts:
        found = [times.of(run, steps(run)) for run in runs]
        known = [seconds for seconds in found if seconds is not None]
        scale = len(found) / len(known) if known else 0.0
        total += sum(known) * scale
        untimed = len(found) - len(known)
        note = f", {untimed} of them like the others, having no time recorded here" if untimed and known else ""
        lines.append(
            f"{title}: {len(runs)} runs{note}: " + (_hours(sum(known) * scale) if known else "no times recorded")
        )
    if not total:
        return "\n".join([*lines, "Train some runs of these kinds first; or begin: what is done is not done again."])
    return "\n".join([*lines, f"together: {_hours(total)}; on two idle cores about half as long"])


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h of processor time"


def _study_runs(search: Search, name: str) -> dict[str, list[Run]]:
    """Runs of the studies, their methods as if every search had kept its first settings; encoders once."""
    first = {method: [Trial(method, 0, {}, (), 0.0)] for method in search.spec.methods}
    search.trials.update({method: found for method, found in first.items() if not search.trials[method]})
    methods: Methods = parse(Methods, {"methods": report.tuned_methods(search, name)}, "tuned")
    known = {**search.methods, **methods.methods}
    return {
        study: expand(search.params, parse(Experiment, content, study), known)
        for study, content in report.studies(search, name).items()
    }
