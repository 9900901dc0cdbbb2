"""Expand experiments into runs.

The name of a run's folder describes the run and does not depend on the experiment, so experiments share runs (`names`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from probmetric.config import (
    ConfigError,
    Experiment,
    Grid,
    Method,
    Params,
    RunSettings,
    naming,
    parse,
)
from probmetric.errors import nearest
from probmetric.io import FileError
from probmetric.planning.capabilities import UnsuitableError, check_run, check_strangers
from probmetric.planning.composition import DEFAULTS, READINGS, Draft, composed, lineage
from probmetric.planning.declared import check_declared, data_source, dataset_names, missing_files, strangers
from probmetric.planning.experiments import (
    PRESET,
    Substitution,
    check_name,
    every_method,
    load_experiment,
    methods_with,
    selections_of,
    shared_methods,
    with_selections,
)
from probmetric.runs.names import RunKey, override_items, split_data_name, table_of, with_part, without_split
from probmetric.runs.plan import Run

_POSTERIOR_KEYS = ("uncertainty", "evaluation")


def borrowed(runs: Sequence[Run], find: Callable[[str], Run]) -> dict[str, Run]:
    """Return, by name, the runs that train the encoders which `runs` borrow, and those from which any of them start.

    Args:
        runs: the runs.
        find: name of a run -> the run.

    Raises:
        ConfigError: a run starts from itself.
    """
    names = dict.fromkeys(name for run in runs if not run.trains for name in run.encoders)
    encoders = {name: find(name) for name in names}
    return origins([*runs, *encoders.values()], find) | encoders


def origins(runs: Iterable[Run], find: Callable[[str], Run]) -> dict[str, Run]:
    """Return, by name, the runs from whose weights `runs` start, and the runs from which these start.

    Raises:
        ConfigError: a run starts from itself.
    """
    starts: dict[str, Run] = {}
    for run in runs:
        line = [run.name]
        while origin := starts.get(line[-1], run).origin:
            if origin in line:
                raise ConfigError(
                    f"pretrained: run {origin} would start from its own weights; name another weight file."
                )
            starts[origin] = starts.get(origin) or find(origin)
            line.append(origin)
    return starts


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of an experiment's grid, which decides one run."""

    dataset: str
    method: str
    noise: float = 0.0
    seed: int = 0
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Name of the run."""
        changed = "+".join(f"{key}={_short(key, value)}" for key, value in sorted(self.overrides.items()))
        return RunKey(self.dataset, self.noise, self.method, changed, self.seed).run


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment and its runs.

    Attributes:
        spec: content of the file; with its datasets replaced, if the name asks for that.
        runs: the runs, in the order written, each once.
        encoders: by name, the runs whose encoders `runs` borrow or start from.
        substitution: set if the datasets were replaced.
        left_out: methods that cannot run on the substitute, and why.
        searched: for methods whose settings a search chose: `budgets`, the training runs of that search; `tuned`, the
            method for which they were chosen; `tuned_on`, the dataset, if known.
    """

    spec: Experiment
    runs: tuple[Run, ...]
    encoders: Mapping[str, Run]
    substitution: Substitution | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    searched: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def plan_experiment(params: Params, name: str) -> PlannedExperiment:
    """Load and expand the experiment called `name`.

    `name` is a file's name, alone or with `@<dataset>[+<preset>]` or `+refit[+as_published]` (`planning.experiments`).

    Args:
        params: params.yaml.
        name: the experiment.

    Raises:
        ConfigError: a part of it cannot be run; the message says how to fix it.
    """
    substitution = Substitution.parse(name)
    source = load_experiment(table_of(name))
    check_name(name)
    methods = methods_with(params, {table_of(name): source})
    left_out: dict[str, str] = {}
    selections = selections_of(name)
    spec = substitution.apply(params, source) if substitution else with_selections(source, selections)
    with naming(f"experiment {name}"):
        runs = expand(params, methods, spec, left_out if substitution else None)
    if selections:
        runs = [run for run in runs if _selects(run)]
    if substitution and not runs:
        reasons = "; ".join(f"{method}: {reason}" for method, reason in left_out.items())
        raise ConfigError(f"experiment {name}: none of its methods can run on {substitution.dataset}. {reasons}")
    spec = _described(spec, " ".join(f"Left out: {method} ({reason})" for method, reason in left_out.items()))
    spec = _telling_absent(params, spec, runs)
    encoders = borrowed(runs, functools.partial(_named, params, methods))
    return PlannedExperiment(spec, tuple(runs), encoders, substitution, left_out, _searched(methods, runs))


def _selects(run: Run) -> bool:
    """Return whether the way of choosing epochs matters for a run: a run that fits nothing is not repeated for it."""
    training = run.settings.training
    return run.settings.learns or training.head_init != "random" or training.selection == "validation"


def _described(spec: Experiment, more: str) -> Experiment:
    """Return the experiment with a sentence added to its description."""
    return spec.model_copy(update={"description": f"{spec.description.strip()} {more}".strip()}) if more else spec


def _telling_absent(params: Params, spec: Experiment, runs: Iterable[Run]) -> Experiment:
    """Add to the description the out-of-distribution sets that are not measured, and why."""
    measured: dict[str, list[str]] = defaultdict(list)
    for dataset in dict.fromkeys(run.settings.dataset for run in runs):
        for name in strangers(params, dataset):
            measured[name].append(dataset)
    notes = [
        f"No columns ood/{name} for {', '.join(datasets)}: {name} is not there ({files} not found)."
        for name, datasets in measured.items()
        if (files := missing_files(params, name))
    ]
    return _described(spec, " ".join(notes))


def _searched(methods: Mapping[str, Method], runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """Return `searched` of a planned experiment; settings chosen for a method's base count for the method, too."""
    origins = {run.settings.method: methods[run.settings.base or run.settings.method] for run in runs}
    budgets = {method: origin.budget for method, origin in origins.items() if origin.budget}
    places = {method: origin.tuned_on for method, origin in origins.items() if origin.tuned_on}
    tuned = {name: origin for name in budgets if (origin := _untuned(methods, name))}
    return {"budgets": budgets, "tuned": tuned, "tuned_on": places} if budgets else {}


def _untuned(methods: Mapping[str, Method], name: str) -> str:
    """Return the method that a tuned method was before any search; for a posterior, the one on that base; else ""."""
    method = methods[name]
    if method.base and not method.like:
        wanted = method.model_copy(update={"base": _untuned(methods, method.base) or None, "label": ""})
        same = (other for other, its in methods.items() if its.model_copy(update={"label": ""}) == wanted)
        return next(same, "")
    origin = method.like or ""
    return _untuned(methods, origin) if origin and methods[origin].budget else origin


def expand(
    params: Params,
    methods: Mapping[str, Method],
    experiment: Experiment,
    left_out: dict[str, str] | None = None,
) -> list[Run]:
    """Return the runs of an experiment, in the order written, each once.

    Args:
        params: params.yaml.
        methods: all methods by name.
        experiment: the experiment.
        left_out: receives the methods that are unsuitable for the data, and why; None: they raise an error.

    Raises:
        ConfigError: a part of it cannot be run; the message says how to fix it.
    """
    expanded: dict[str, Run] = {}
    first: dict[str, Run] = {}
    searched = {method: grid.datasets[0] for grid in experiment.runs for method in grid.methods}
    for method, dataset in searched.items():
        _check_search(params, methods, Point(dataset=dataset, method=method))
    for grid in experiment.runs:
        points = list(_points(grid))
        _check_crossed([point.overrides for point in points])
        for point in points:
            kind = replace(point, seed=0).run
            try:
                run = _with_seed(first[kind], point.seed) if kind in first else resolve(params, methods, point)
            except UnsuitableError as error:
                if left_out is None:
                    raise
                left_out[point.method] = error.reason
            else:
                expanded[run.name] = first[kind] = run
    return list(expanded.values())


def _check_crossed(overrides: list[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` if a grid sets a setting and the one it depends on, but never a pair in which it is read."""
    for reading in READINGS:
        key, decider, default = reading.key, reading.decider, DEFAULTS[reading.key]
        both = [each for each in overrides if decider in each and each.get(key, default) != default]
        if both and not any(reading.reads(each[decider]) for each in both):
            raise ConfigError(f"set: {key} does nothing with {reading.advice(both[0][decider])}")


def _check_search(params: Params, methods: Mapping[str, Method], point: Point) -> None:
    """Raise `ConfigError` if the method's `search` names an unknown setting, or a value that it does not take."""
    search = methods[point.method].search if point.method in methods else {}
    for key, span in search.items():
        for value in (span.checked[0], span.checked[-1]):
            where = f"methods.{point.method}.search.{key}"
            with naming(where):
                draft, _ = _composed_on_base(params, methods, replace(point, overrides={key: value}))
                parse(RunSettings, draft.fields() | {"dataset": point.dataset, "method": point.method}, where)


def _with_seed(run: Run, seed: int) -> Run:
    """Return the same run with another seed, without resolving it again, since no other setting depends on the seed."""
    name, encoder = (replace(RunKey.parse(each), seed=seed).run for each in (run.name, run.encoder))
    return Run(name, encoder, run.settings.model_copy(update={"seed": seed}))


def _points(grid: Grid) -> Iterator[Point]:
    """Yield the points of a block."""
    overrides = [_dotted(zip(grid.set, values, strict=True)) for values in itertools.product(*grid.set.values())]
    datasets = [with_part(dataset, "split", split) for dataset in grid.datasets for split in range(grid.splits)]
    for dataset, noise, method, seed in itertools.product(datasets, grid.noise, grid.methods, grid.seeds):
        for chosen in overrides:
            yield Point(dataset=dataset, method=method, noise=noise, seed=seed, overrides=chosen)


def _dotted(chosen: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return overrides with each entry of a mapping, `backbone: {name: timm, tag: a}`, under its own dotted key."""
    overrides: dict[str, Any] = {}
    for key, value in chosen:
        parts = dict(value) if isinstance(value, Mapping) else {"name": value}
        overrides |= {key if part == "name" else f"{key}.{part}": each for part, each in parts.items()}
    return overrides


def resolve(params: Params, methods: Mapping[str, Method], point: Point) -> Run:
    """Resolve one run: defaults, then the method, then the overrides (`preset` first), validated.

    Raises:
        ConfigError: a dataset, method or key is unknown, or the data are not declared.
    """
    dataset, method, where = point.dataset, point.method, f"run {point.run}"
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", method):
        raise ConfigError(
            f"method {method!r} cannot name a folder; use letters, digits and _.- only, not - or . at the start. "
            "Its `label` may say anything."
        )
    check_declared(params, dataset, point.noise)
    draft, fidelity = _composed_on_base(params, methods, point)
    source = data_source(params, split_data_name(dataset)[0])
    draft.resolve_view(source.source)
    for part in ("loss", "objective"):
        draft.tell_fidelity(part, draft.settings["fidelity"])
    draft.tell_fidelity("uncertainty", fidelity or draft.settings["fidelity"])
    settings = draft.fields() | {
        "dataset": dataset,
        "noise": point.noise,
        "method": method,
        "seed": point.seed,
        "ood": tuple(name for name in strangers(params, dataset) if not missing_files(params, name)),
        "prepared": params.data.prepared,
    }
    of_encoder = {key: value for key, value in point.overrides.items() if key.split(".")[0] not in _POSTERIOR_KEYS}
    encoder = replace(point, method=draft.base, overrides=of_encoder) if draft.base else point
    run = Run(name=point.run, encoder=encoder.run, settings=parse(RunSettings, settings, where))
    _check_written(run.settings, point.overrides, where)
    check_run(run.settings, run.encoders, source, dataset_names(params), where)
    check_strangers(source, {name: data_source(params, name) for name in run.settings.ood}, where)
    return run


def _composed_on_base(params: Params, methods: Mapping[str, Method], point: Point) -> tuple[Draft, str]:
    """Return the settings of a run with its overrides, and the fidelity of an uncertainty on a borrowed encoder."""
    dataset = without_split(split_data_name(point.dataset)[0])
    base = lineage(methods, point.method)[0].base
    if base is None:
        draft, fidelity = composed(params, methods, point.method, dataset), ""
    else:
        draft = composed(params, methods, base, dataset)
        if draft.base:
            origin = lineage(methods, draft.base)[0]
            advice = "a method that trains" if origin.base else repr(draft.base)
            raise ConfigError(f"methods.{point.method}: its base {base!r} trains nothing itself; name {advice}.")
        borrowing = composed(params, methods, point.method, dataset, draft.settings["evaluation"])
        draft.base, draft.label, fidelity = base, borrowing.label, borrowing.settings["fidelity"]
        for part in _POSTERIOR_KEYS:
            draft.settings[part] = borrowing.settings[part]
    _change(params, draft, point.overrides)
    return draft, fidelity


def _change(params: Params, draft: Draft, overrides: Mapping[str, Any]) -> None:
    """Apply the preset that the overrides name, then the other overrides."""
    preset = overrides.get(PRESET)
    if preset is not None:
        if preset not in params.presets:
            raise ConfigError(f"unknown preset {preset!r}: {nearest(str(preset), params.presets)}")
        with naming(f"presets.{preset}"):
            for key, value in draft.taken_of(params.presets[preset]).items():
                draft.set(key, value)
    for key, value in overrides.items():
        if key != PRESET:
            draft.set(key, value)
    draft.check_dim(overrides.get("dim"), "override")
    readings = [reading for reading in READINGS if reading.decider not in overrides]
    draft.check_read(overrides, readings)


def _short(key: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # 64.0 and 64 are one run
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=repr)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ConfigError(
            f"override {key}: {value!r} cannot stand in a folder name; use a number, true, false or a text of letters, "
            f"digits and _.- only (a date in quotes), or set it in a method: `change: {{{key}: ...}}`."
        )
    return text


def find_run(params: Params, name: str) -> Run:
    """Resolve a run by its name, as in `results/<name>`; overrides are read from the name.

    Raises:
        ConfigError: the name is no run's, or is not written like the run's folder.
    """
    methods = shared_methods(params)
    try:
        shared = RunKey.parse(name).method in methods
    except FileError as error:
        raise ConfigError(str(error)) from None
    run = _named(params, methods if shared else every_method(params), name)
    if run.name != name:
        raise ConfigError(f"{name!r} is no name of a run; it is written {run.name}.")
    return run


def _named(params: Params, methods: Mapping[str, Method], name: str) -> Run:
    key = RunKey.parse(name)
    pairs = [item.partition("=") for item in override_items(key.overrides)]
    overrides = {name: _value(text) for name, _, text in pairs}
    point = Point(dataset=key.dataset, noise=key.noise, method=key.method, seed=key.seed, overrides=overrides)
    return resolve(params, methods, point)


def _value(text: str) -> Any:
    """Return the value of an override's text: JSON, or a name.

    Raises:
        ConfigError: a number is written in an unusual way (03, 1_0), so that one run would have two names.
    """
    with contextlib.suppress(ValueError):
        return json.loads(text)
    try:
        float(text)
    except ValueError:
        return text
    raise ConfigError(f"override value {text[:40]!r} is a number written in an unusual way; use digits as in 0.001.")


def _check_written(settings: RunSettings, overrides: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` for a value not in its usual form (3.5e-4, yes), with which one run would have two names."""
    for key, value in overrides.items():
        taken: Any = settings
        for part in key.split("."):
            taken = getattr(taken, part, None)
        if isinstance(taken, bool | int | float) and _short(key, taken) != _short(key, value):
            raise ConfigError(f"{where}: override {key} is {value!r}; write {_short(key, taken)}.")
