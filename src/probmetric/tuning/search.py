"""The search: ask the optimiser for settings, train the runs, tell the optimiser their validation metric.

The optimiser is Optuna's tree-structured Parzen estimator, deterministic from its seed. The search asks for trials in
batches of a fixed size, whatever the number of machines, and tells results in the order asked, so the outcome depends
on the search file only. One Snakemake call trains a batch, so clusters, locks and resuming work as usual.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from probmetric.config import Component, ConfigError, Method, Params, RunSettings, SearchRange, Tuning, naming
from probmetric.errors import ProbMetricError
from probmetric.planning.composition import READ_WITH, composed, lineage
from probmetric.planning.expansion import Point, resolve
from probmetric.planning.experiments import PRESET
from probmetric.process import call
from probmetric.runs.folder import RunFolder, validations
from probmetric.runs.identity import REGISTRIES
from probmetric.runs.made import Judge
from probmetric.runs.names import RESULTS, log_file, with_part
from probmetric.runs.plan import Run

if TYPE_CHECKING:
    import optuna

UNSEEN = ("uncertainty", "evaluation")
DIGITS = 3  # significant digits, at least, of a number in a run's folder name


class TuningError(ProbMetricError, RuntimeError):
    """A search cannot go on; the message says what failed and where to look."""


@dataclass(frozen=True)
class Trial:
    """Settings tried for a method; `objective` is None if training failed, `seconds` is the time of training."""

    method: str
    number: int
    values: Mapping[str, Any]
    runs: tuple[str, ...]
    objective: float | None
    seconds: float = field(default=0.0, compare=False)


class Search:
    """Searches of several methods side by side, with equal budgets."""

    def __init__(self, params: Params, methods: Mapping[str, Method], spec: Tuning, *, results: Path = RESULTS) -> None:
        """Plan a search.

        Args:
            params: params.yaml.
            methods: every known method.
            spec: the search file.
            results: folder of the runs.

        Raises:
            ConfigError: a method is unknown, has no ranges or does not train; a range names no setting.
        """
        self.params, self.methods, self.spec, self.results = params, methods, spec, results
        self.ranges = {name: self._ranges_of(name) for name in spec.methods}
        for name in spec.posteriors:
            base = lineage(methods, name)[-1].base
            if base not in spec.methods:
                raise ConfigError(f"posteriors: the base of {name!r} is {base!r}, which is not tuned here.")
        self.trials: dict[str, list[Trial]] = {name: [] for name in spec.methods}
        self._studies: dict[str, optuna.Study] = {}

    def run(
        self, train: Callable[[Sequence[Run]], Collection[str]], on_batch: Callable[[Search], object] | None = None
    ) -> None:
        """Search until every method has had its trials.

        Args:
            train: trains planned runs and returns the names of the runs that it could train.
            on_batch: called after every batch.
        """
        self._studies = {name: self._study(name) for name in self.spec.methods}
        for start in range(0, self.spec.trials, self.spec.batch):
            size = min(self.spec.batch, self.spec.trials - start)
            drawn = [(name, self._studies[name].ask()) for name in self.spec.methods for _ in range(size)]
            planned = [(name, trial, suggest(trial, self.ranges[name])) for name, trial in drawn]
            runs = {(name, trial.number): self._runs(name, values) for name, trial, values in planned}
            trained = train(list({run.name: run for of_trial in runs.values() for run in of_trial}.values()))
            for name, trial, values in planned:
                of_trial = runs[name, trial.number]
                failed = any(run.name not in trained for run in of_trial)  # outputs of earlier trainings do not count
                objective, seconds = (None, 0.0) if failed else self._reached(of_trial)
                done = Trial(name, trial.number, dict(values), tuple(run.name for run in of_trial), objective, seconds)
                self._tell(trial, done)
            if all(trial.objective is None for trials in self.trials.values() for trial in trials):
                run = next(iter(self.trials.values()))[0].runs[0]
                raise TuningError(f"none of the first {start + size} trial(s) could be trained; see {log_file(run)}.")
            if on_batch:
                on_batch(self)

    def best(self, method: str) -> Trial | None:
        """Return the trial with the best validation metric (the earliest of equals), or None if all failed."""
        tried = [trial for trial in self.trials[method] if trial.objective is not None]
        return max(tried, key=lambda trial: trial.objective or -math.inf, default=None)

    def shared_settings(self, method: str) -> dict[str, Any]:
        """Return the settings, by dotted key, that all trials of a method share; its preset is written out."""
        shared = dict(self.spec.set)
        preset = self.params.presets.get(shared.pop(PRESET, ""))
        taken = composed(self.params, self.methods, method, self.spec.dataset).taken_of(preset) if preset else {}
        return taken | shared

    def _ranges_of(self, name: str) -> dict[str, SearchRange]:
        self._check_trains(name, {})
        method = self.methods[name]
        ranges = self.spec.ranges | method.search | self.spec.spaces.get(name, {})
        if not ranges:
            raise ConfigError(
                f"method {name!r} declares no `search`, the search file no `ranges` and no `spaces` for it."
            )
        deciders = {each.decider: ranges[each.decider].checked[0] for each in READ_WITH if each.decider in ranges}
        for key, span in ranges.items():
            if key.partition(".")[0] in UNSEEN:
                raise ConfigError(f"range of {key}: training does not read it, so that no trial differs; leave it out.")
            hint = "" if span.choices or span.integer else " (only whole numbers: `integer: true`)"
            for value in span.checked:
                with naming(f"range of {key}, which holds {value}{hint}"):
                    self._check_trains(name, deciders | {key: value})
        return dict(ranges)

    def _check_trains(self, name: str, values: Mapping[str, Any]) -> None:
        """Raise `ConfigError` if a trial of the method with these values would not train, or would see test images."""
        run = self._resolve(name, values, self.spec.seeds[0])
        if not run.trains or not run.settings.learns:
            raise ConfigError(f"method {name!r} trains nothing, so there is nothing to search.")
        if run.settings.training.selection == "as_published":
            raise ConfigError(
                f"method {name!r}: training.selection 'as_published' would let its search see test images."
            )

    def _resolve(self, name: str, values: Mapping[str, Any], seed: int, fold: int = 0) -> Run:
        point = Point(
            dataset=with_part(self.spec.dataset, "fold", fold),
            noise=self.spec.noise,
            method=name,
            seed=seed,
            overrides=dict(self.spec.set) | dict(values),
        )
        return resolve(self.params, self.methods, point)

    def _runs(self, name: str, values: Mapping[str, Any]) -> list[Run]:
        return [self._resolve(name, values, seed, fold) for seed, fold in self.spec.runs]

    def _study(self, name: str) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(
            seed=self.spec.search_seed, n_startup_trials=self.spec.startup_trials, constant_liar=True
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        present = present_values(self._resolve(name, {}, self.spec.seeds[0]).settings, self.ranges[name])
        if present:
            study.enqueue_trial(present)
        return study

    def _tell(self, trial: optuna.Trial, done: Trial) -> None:
        import optuna

        state = None if done.objective is not None else optuna.trial.TrialState.FAIL
        self._studies[done.method].tell(trial, done.objective, state=state)
        self.trials[done.method].append(done)

    def _reached(self, runs: Sequence[Run]) -> tuple[float | None, float]:
        """Return the mean validation metric of trained runs (None if a run lacks one) and the seconds of training."""
        folders = [RunFolder.named(run.name, self.results) for run in runs]
        values = [value for folder in folders if (value := validation_metric(folder)) is not None]
        objective = fmean(values) if len(values) == len(runs) else None
        return objective, sum(folder.times.get("training/seconds", 0.0) for folder in folders)


def validation_metric(run: RunFolder) -> float | None:
    """Return the best validation metric in a run's history; None if it never validated."""
    return max(filter(math.isfinite, validations(run.history)), default=None)


def suggest(trial: optuna.Trial, ranges: Mapping[str, SearchRange]) -> dict[str, Any]:
    """Return a trial's settings by dotted key; numbers have three digits, or as many as their range needs."""
    return {key: _value(trial, key, span) for key, span in sorted(ranges.items())}


def _value(trial: optuna.Trial, key: str, span: SearchRange) -> Any:
    if span.choices:
        return trial.suggest_categorical(key, list(span.choices))
    low, high = span.interval
    if span.integer:
        return trial.suggest_int(key, int(low), int(high), log=span.log)
    exact = trial.suggest_float(key, low, high, log=span.log)
    rounded = (float(f"{exact:.{digits}g}") for digits in range(DIGITS, 18))  # 17 tell any number apart
    return next(value for value in rounded if low <= value <= high)


def present_values(settings: RunSettings, ranges: Mapping[str, SearchRange]) -> dict[str, Any] | None:
    """Return the method's settings before tuning, as a first trial, or None if one of them is outside its range."""
    values = {key: _present(settings, key) for key in ranges}
    return values if all(_contains(ranges[key], value) for key, value in values.items()) else None


def _present(settings: RunSettings, key: str) -> Any:
    """Return the value at a dotted key; an option that the settings leave out has its registered default."""
    held: Any = settings
    for name in key.split("."):
        if isinstance(held, Component):
            option = REGISTRIES[key.partition(".")[0]].options(held.name).get(name)
            held = held.options.get(name, option.default if option else None)
        else:
            held = getattr(held, name, None)
    return held


def _contains(span: SearchRange, value: Any) -> bool:
    if span.choices:
        return value in span.choices
    low, high = span.interval
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


AGAIN = (
    "Run the command again. If the message names a lock, a workflow is running in this folder, or one was killed: when "
    "none is running, `snakemake --unlock`, then the command again."
)


def build_studies(names: Sequence[str], options: Sequence[str] = ()) -> None:
    """Let Snakemake build the experiments `names`, from data to report, one after the other; a second call goes on.

    Raises:
        TuningError: an output could not be made; Snakemake's messages say which.
    """
    incomplete = []
    for name in names:
        if status := _snakemake(options, f"experiments=[{name}]"):
            _check_not_stopped(status)
            incomplete.append(name)
    if incomplete:
        raise TuningError(f"not complete: {', '.join(incomplete)}; Snakemake's messages are above. {AGAIN}")


def train_runs(runs: Sequence[Run], options: Sequence[str] = ()) -> set[str]:
    """Let Snakemake train every run; a run that cannot be trained does not stop the others.

    Args:
        runs: planned runs; runs already trained as planned are not trained again.
        options: further options of `snakemake`, such as `--workflow-profile workflow/profiles/slurm`.

    Returns:
        Names of the runs that are trained as planned.

    Raises:
        TuningError: Snakemake was stopped, or failed before it had started every run.
        SystemExit: no run was started and none failed, because an option or profile asks for a dry run. The next trials
            depend on the results of these runs, so the search stops.
    """
    trained = _trained_as_planned(runs)
    waiting = [run.name for run in runs if run.name not in trained]
    if not waiting:
        return trained
    chosen = ["until=train", "experiments=[]", f"runs={json.dumps(waiting, separators=(',', ':'))}"]
    before = _logs_of(waiting)
    status = _snakemake(options, *chosen)
    _check_not_stopped(status)
    after = _logs_of(waiting)
    if not status and after == before:
        raise SystemExit(0)
    if status and (left := [name for name in waiting if after[name] == before[name]]):
        unstarted = f"{len(left)} of {len(waiting)} runs were not started, such as {left[0]}"
        raise TuningError(f"{unstarted}; Snakemake's message is above. {AGAIN}")
    return _trained_as_planned(runs)


def _trained_as_planned(runs: Sequence[Run]) -> set[str]:
    judge = Judge({run.name: run for run in runs})
    return {run.name for run in runs if judge.verdict(run.name, "train").usable}


def _snakemake(options: Sequence[str], *chosen: str) -> int:
    """Start Snakemake with the user's options and `chosen`, in one `--config`: of several it would read the last."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", "-C", nargs="*", action="extend", default=[])
    of_user, further = parser.parse_known_args(options)
    return call(["snakemake", "--keep-going", *further, "--config", *of_user.config, *chosen])


def _logs_of(names: Sequence[str]) -> dict[str, int]:
    """Return when the log of each run was last written, in nanoseconds; 0 if there is no log."""
    logs = {name: log_file(name) for name in names}
    return {name: log.stat().st_mtime_ns if log.exists() else 0 for name, log in logs.items()}


def _check_not_stopped(status: int) -> None:
    if status < 0 or status == 130:
        raise TuningError("stopped; run the same command again to go on.")
