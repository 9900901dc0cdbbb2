"""The search: ask the optimiser for settings, have the runs trained, tell it what validation said.

The optimiser is Optuna's tree-structured Parzen estimator: kept by many, ask-and-tell, deterministic from its seed.
Trials are asked for in batches that do not depend on how many machines work, and told in the order they were asked, so
that the outcome depends on the search file only.

With `halving` the optimiser sees brief trainings, each with a schedule of its own length; the first trial and the best
are then trained in full, from the start, and the best of these is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from probmetric.config import ConfigError, Method, Params, SearchRange, Tuning
from probmetric.errors import ProbMetricError
from probmetric.planning.expansion import Point, resolve
from probmetric.planning.experiments import PRESET
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import RESULTS
from probmetric.runs.plan import Run
from probmetric.tuning._space import present_values, suggest

if TYPE_CHECKING:
    import optuna


class TuningError(ProbMetricError, RuntimeError):
    """A search cannot go on; the message says what failed and where to look."""


@dataclass(frozen=True)
class Trial:
    """Settings tried for a method; `objective` is None where training failed, `seconds` is what training took.

    With `halving`, `objective` is of the brief training and `final` of the full one, None where there was none.
    """

    method: str
    number: int
    values: Mapping[str, Any]
    runs: tuple[str, ...]
    objective: float | None
    seconds: float = field(default=0.0, compare=False)
    final: float | None = None

    @property
    def reached(self) -> float | None:
        """The validation metric of the longest training it had."""
        return self.objective if self.final is None else self.final


class Search:
    """Searches of several methods side by side, with equal budgets."""

    def __init__(self, params: Params, methods: Mapping[str, Method], spec: Tuning, *, results: Path = RESULTS) -> None:
        """Plan a search.

        Args:
            params: params.yaml.
            methods: every known method.
            spec: what is searched.
            results: folder of the runs.

        Raises:
            ConfigError: a method is unknown, has nothing to search or trains nothing; a range names no setting; a
                preset is asked for.
        """
        if PRESET in spec.set:
            raise ConfigError("set: a preset is no setting of the tuned methods; write its settings out instead.")
        self.params, self.methods, self.spec, self.results = params, methods, spec, results
        self.ranges = {name: self._ranges_of(name) for name in spec.methods}
        for name in spec.posteriors:
            if methods[name].base not in spec.methods:
                raise ConfigError(
                    f"posteriors: the base of {name!r} is {methods[name].base!r}, which is not tuned here."
                )
        self.trials: dict[str, list[Trial]] = {name: [] for name in spec.methods}
        self._studies: dict[str, optuna.Study] = {}

    def run(self, train: Callable[[Sequence[Run]], None], on_batch: Callable[[Search], object] | None = None) -> None:
        """Search until every method has had its trials.

        Args:
            train: makes `history.csv` of the planned runs, as far as they can be trained.
            on_batch: called after every batch.
        """
        self._studies = {name: self._study(name) for name in self.spec.methods}
        for start in range(0, self.spec.trials, self.spec.batch):
            size = min(self.spec.batch, self.spec.trials - start)
            drawn = [(name, self._studies[name].ask()) for name in self.spec.methods for _ in range(size)]
            planned = [(name, trial, suggest(trial, self.ranges[name])) for name, trial in drawn]
            runs = {
                (name, trial.number): self._runs(name, {**values, **self._brief}) for name, trial, values in planned
            }
            train(_distinct(runs.values()))
            for name, trial, values in planned:
                self._tell(name, trial, values, runs[name, trial.number])
            self._require_some_success(start + size)
            if on_batch:
                on_batch(self)
        if self.spec.halving:
            self._train_in_full(self.spec.halving.keep, train)
            if on_batch:
                on_batch(self)

    def best(self, method: str) -> Trial | None:
        """Return the trial with the best validation metric; the earliest of equals; None if every training failed.

        Where some were trained in full, it is one of these.
        """
        tried = self.trials[method]
        pool = [trial for trial in tried if trial.final is not None] or tried
        return max(
            (trial for trial in pool if trial.reached is not None),
            key=lambda trial: trial.reached or -math.inf,
            default=None,
        )

    def _ranges_of(self, name: str) -> dict[str, SearchRange]:
        settings = self._resolve(name, {}, self.spec.seeds[0]).settings
        method = self.methods[name]
        if method.base or settings.training.epochs == 0:
            raise ConfigError(f"method {name!r} trains nothing, so there is nothing to search.")
        if self.spec.halving and settings.training.epochs <= self.spec.halving.epochs:
            raise ConfigError(
                f"method {name!r}: a full training has {settings.training.epochs} epochs; `halving` needs fewer for a "
                f"trial, not {self.spec.halving.epochs}."
            )
        if settings.training.selection == "as_published":
            raise ConfigError(
                f"method {name!r}: training.selection 'as_published' would let its search see test images."
            )
        ranges = self.spec.ranges | method.search | self.spec.spaces.get(name, {})
        if not ranges:
            raise ConfigError(
                f"method {name!r} declares no `search`, the search file no `ranges` and no `spaces` for it."
            )
        if self.spec.halving and "training.epochs" in ranges:
            raise ConfigError("training.epochs cannot be searched where `halving` sets it.")
        for key, span in ranges.items():
            for value in span.edges:
                self._resolve(name, {key: value}, self.spec.seeds[0])
        return dict(ranges)

    def _resolve(self, name: str, values: Mapping[str, Any], seed: int) -> Run:
        point = Point(
            dataset=self.spec.dataset,
            noise=self.spec.noise,
            method=name,
            seed=seed,
            overrides=dict(self.spec.set) | dict(values),
        )
        return resolve(self.params, self.methods, point)

    @property
    def _brief(self) -> Mapping[str, Any]:
        """What a trial's training has besides its settings."""
        return {"training.epochs": self.spec.halving.epochs} if self.spec.halving else {}

    def _runs(self, name: str, values: Mapping[str, Any]) -> list[Run]:
        return [self._resolve(name, values, seed) for seed in self.spec.seeds]

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

    def _tell(self, name: str, trial: optuna.Trial, values: Mapping[str, Any], runs: Sequence[Run]) -> None:
        import optuna

        names, objective, seconds = self._trained(runs)
        if objective is None:
            self._studies[name].tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._studies[name].tell(trial, objective)
        self.trials[name].append(Trial(name, trial.number, dict(values), names, objective, seconds))

    def _trained(self, runs: Sequence[Run]) -> tuple[tuple[str, ...], float | None, float]:
        """Names of `runs`, the mean of their validation metrics (None unless all have one) and seconds of training."""
        folders = [RunFolder.named(run.name, self.results) for run in runs]
        values = [validation_metric(folder) for folder in folders]
        reached = [value for value in values if value is not None]
        objective = fmean(reached) if len(reached) == len(runs) else None
        return tuple(run.name for run in runs), objective, sum(map(training_seconds, folders))

    def _train_in_full(self, keep: int, train: Callable[[Sequence[Run]], None]) -> None:
        """Train `keep` trials of every method in full: the first and the best of the others."""
        kept: dict[tuple[str, int], list[Run]] = {}
        for name, (first, *others) in self.trials.items():
            others.sort(key=lambda trial: -math.inf if trial.objective is None else trial.objective, reverse=True)
            kept |= {(name, trial.number): self._runs(name, trial.values) for trial in [first, *others[: keep - 1]]}
        train(_distinct(kept.values()))
        for (name, number), runs in kept.items():
            trial = self.trials[name][number]
            names, final, seconds = self._trained(runs)
            self.trials[name][number] = replace(
                trial, runs=trial.runs + names, final=final, seconds=trial.seconds + seconds
            )

    def _require_some_success(self, count: int) -> None:
        if all(trial.objective is None for trials in self.trials.values() for trial in trials):
            run = next(iter(self.trials.values()))[0].runs[0]
            raise TuningError(f"none of the first {count} trial(s) could be trained; see logs/run/{run}.log.")


def _distinct(lists: Iterable[Sequence[Run]]) -> list[Run]:
    """Return the runs of several lists, each once."""
    return list({run.name: run for runs in lists for run in runs}.values())


def training_seconds(run: RunFolder) -> float:
    """Return seconds a run trained, start and validation left out."""
    return sum(row.get("seconds") or 0.0 for row in run.history)


def validation_metric(run: RunFolder) -> float | None:
    """Return the best validation metric in a run's history; None if training did not finish or never validated."""
    values = [value for row in run.history if (value := row.get("val_metric")) is not None]
    return max((value for value in values if math.isfinite(value)), default=None)
