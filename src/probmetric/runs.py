"""Runs: how experiments expand into run folders.

A run's folder name says what it is and does not depend on the experiment that asks for it, so experiments share
runs (`names`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmetric import losses, uncertainty
from probmetric.config import (
    Component,
    ConfigError,
    Experiment,
    Grid,
    Method,
    Params,
    RunSettings,
    load,
    parse,
)
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.io import FileError
from probmetric.declared import data_source, dataset_names
from probmetric.names import RunKey, data_name, split_data_name
from probmetric.registry import Registry, nearest

EXPERIMENTS = Path("workflow/experiments")
_POSTERIOR_KEYS = ("uncertainty",)


@dataclass(frozen=True)
class Run:
    """One run: its name (folder below `results/`), resolved settings, and whose encoder it uses."""

    name: str
    encoder: str
    settings: RunSettings

    @property
    def trains(self) -> bool:
        """Whether the encoder is the run's own (no `base`)."""
        return self.name == self.encoder

    @property
    def encoders(self) -> tuple[str, ...]:
        """Runs whose encoders it uses: `encoder` and, for an ensemble, those of the seeds that follow."""
        return encoder_runs(self.encoder, self.settings.uncertainty)

    @property
    def fits_posterior(self) -> bool:
        """Whether the uncertainty has parameters fitted after training."""
        return bool(uncertainty.REGISTRY.constant(self.settings.uncertainty.name, "fits", False))

    @property
    def data(self) -> tuple[str, ...]:
        """Prepared datasets the run reads: its own, then its OOD sets."""
        return (self.settings.data, *self.settings.ood)


def encoder_runs(encoder: str, chosen: Component) -> tuple[str, ...]:
    """Runs that train the K encoders uncertainty `chosen` combines: seeds k to k+K-1, starting from run `encoder`.

    K is the uncertainty's option `members`; without such an option it is 1.
    """
    option = uncertainty.REGISTRY.options(chosen.name).get("members")
    members = 1 if option is None else int(chosen.options.get("members", option.default))
    stem, _, seed = encoder.rpartition("/seed")
    return tuple(f"{stem}/seed{int(seed) + member}" for member in range(members))


def experiment_names(folder: Path = EXPERIMENTS) -> list[str]:
    """Names of the experiment files: `demo`, `pfml/table2`."""
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def load_experiment(name: str, folder: Path = EXPERIMENTS) -> Experiment:
    """Read and validate experiment `name`; an unknown name is answered with the nearest."""
    known = experiment_names(folder)
    if name not in known:
        raise ConfigError(f"experiments: unknown experiment {name!r}: {nearest(name, known)}")
    return load(Experiment, folder / f"{name}.yaml")


def expand(params: Params, experiment: Experiment) -> list[Run]:
    """Runs of an experiment, in the order written, each once."""
    methods = _merged_methods(params, experiment)
    runs = (run for grid in experiment.runs for run in _expand_grid(params, methods, grid))
    return list({run.name: run for run in runs}.values())


def _merged_methods(params: Params, experiment: Experiment) -> dict[str, Method]:
    for name, method in experiment.methods.items():
        if name in params.methods and params.methods[name] != method:
            raise ConfigError(
                f"methods.{name}: defined differently in params.yaml; give the experiment's another name."
            )
    return params.methods | experiment.methods


def _expand_grid(params: Params, methods: Mapping[str, Method], grid: Grid) -> Iterator[Run]:
    overrides = [dict(zip(grid.set, values, strict=True)) for values in itertools.product(*grid.set.values())]
    for dataset, noise, method, seed in itertools.product(grid.datasets, grid.noise, grid.methods, grid.seeds):
        for chosen in overrides:
            yield resolve(params, methods, dataset=dataset, noise=noise, method=method, seed=seed, overrides=chosen)


def resolve(
    params: Params,
    methods: Mapping[str, Method],
    *,
    dataset: str,
    method: str,
    noise: float = 0.0,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> Run:
    """Resolve one run: defaults, then the method, then the overrides, validated.

    Raises:
        ConfigError: an unknown dataset, method or key, or a noise rate nobody prepares.
    """
    overrides = dict(overrides or {})
    _check_data(params, dataset, noise)
    _check_declared("method", method, methods)
    base = methods[method].base or method
    _check_declared("method", base, methods)
    settings = _settings(params, methods[base]) | {
        "dataset": dataset,
        "noise": noise,
        "method": method,
        "seed": seed,
        "label": methods[method].label or method,
        "base": methods[method].base,
        "uncertainty": _component(methods[method].uncertainty, methods[method], uncertainty.REGISTRY),
        "ood": _out_of_distribution(params, dataset),
        "evaluation": params.evaluation.model_dump(mode="json"),
        "prepared": params.data.prepared,
    }
    for key, value in overrides.items():
        _override(settings, key, value)
    where = f"run {_name(dataset, noise, method, overrides, seed)}"
    encoder_overrides = {key: value for key, value in overrides.items() if key.split(".")[0] not in _POSTERIOR_KEYS}
    run = Run(
        name=_name(dataset, noise, method, overrides, seed),
        encoder=_name(dataset, noise, base, encoder_overrides if base != method else overrides, seed),
        settings=parse(RunSettings, settings, where),
    )
    _check_uncertainty(run, where)
    return run


def _check_uncertainty(run: Run, where: str) -> None:
    """Raise `ConfigError` where the uncertainty needs more than one trained encoder can give."""
    settings, registry = run.settings, uncertainty.REGISTRY
    name, objective = settings.uncertainty.name, settings.objective
    learnt = registry.constant(name, "trains_encoder", False) and registry.constant(name, "fits", False)
    if learnt and (objective is None or objective.name != name):
        raise ConfigError(
            f"{where}: uncertainty {name!r} is learnt while training; set `objective: {name}` for method "
            f"{settings.base or settings.method!r}."
        )
    if len(run.encoders) > 1 and settings.base is None:
        raise ConfigError(
            f"{where}: uncertainty {name!r} combines the encoders of {len(run.encoders)} seeds of another method; "
            "name that method as `base`."
        )


def _settings(params: Params, method: Method) -> dict[str, Any]:
    defaults = params.defaults
    return {
        "fidelity": method.fidelity,
        "loss": _component(method.loss, method, losses.REGISTRY) if method.loss else None,
        "objective": _component(method.objective, method, uncertainty.REGISTRY) if method.objective else None,
        "backbone": (method.backbone or defaults.backbone).model_dump(),
        "dim": method.dim or defaults.dim,
        "pretrained": method.pretrained or defaults.pretrained,
        "training": defaults.training.model_dump(mode="json") | method.training,
    }


def _component(component: Any, method: Method, registry: Registry) -> dict[str, Any]:
    """Plain form of a component, told the method's fidelity where it has that switch."""
    plain = component.model_dump()
    if method.fidelity != "corrected" and "fidelity" in registry.options(component.name):
        plain["options"] = {"fidelity": method.fidelity} | plain["options"]
    return plain


def _check_data(params: Params, dataset: str, noise: float) -> None:
    name = data_name(dataset, noise)
    clean, label_noise = split_data_name(name)
    if clean not in dataset_names(params):
        known = DATASETS.names()
        hint = "add it to data.on_request." if clean in known else nearest(clean, dataset_names(params))
        raise ConfigError(f"dataset {clean!r} is not declared in params.yaml: {hint}")
    if "+" in dataset and RunKey.parse(f"{dataset}/method/seed0").noise:
        raise ConfigError(f"datasets: write {dataset!r} as dataset {clean!r} with `noise: [{label_noise[5:]}]`.")
    noisy = (*params.noise.datasets, *params.noise.on_request)
    if label_noise and (clean not in noisy or label_noise not in params.noise.variants):
        where = "noise.datasets" if clean in params.datasets else "noise.on_request"
        raise ConfigError(
            f"dataset {name!r} is not declared in params.yaml: add {clean!r} to {where} and {label_noise!r} to "
            f"noise.variants (now {', '.join(noisy)} x {', '.join(params.noise.variants)})."
        )


def _out_of_distribution(params: Params, dataset: str) -> tuple[str, ...]:
    """OOD sets of a dataset; one that has none of its own has those of its source."""
    clean = split_data_name(dataset)[0]
    return params.ood.get(clean, params.ood.get(data_source(params, clean).source, ()))


def _check_declared(kind: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ConfigError(f"unknown {kind} {name!r}: {nearest(name, known)}")


def _override(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; component options are reached as `loss.scale`, `uncertainty.samples`."""
    parent, _, leaf = key.rpartition(".")
    target = settings.get(parent) if parent else settings
    allowed = [name for name, entry in settings.items() if isinstance(entry, dict)]
    if not isinstance(target, dict) or (not parent and leaf not in settings):
        known = [f"{name}.<key>" for name in allowed] + ["dim", "pretrained"]
        raise ConfigError(f"override {key!r} reaches nothing; {nearest(key, known)}")
    target = target.get("options", target)
    target[leaf] = value


def _name(dataset: str, noise: float, method: str, overrides: Mapping[str, Any], seed: int) -> str:
    changed = "+".join(f"{key}={_short(value)}" for key, value in sorted(overrides.items()))
    return RunKey(dataset, noise, method, changed, seed).run


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ConfigError(f"override value {value!r} cannot stand in a folder name; use letters, digits and _.- only.")
    return text


def every_method(params: Params) -> dict[str, Method]:
    """Methods by name: those of params.yaml and of all experiment files."""
    methods = dict(params.methods)
    for experiment in experiment_names():
        methods = load_experiment(experiment).methods | methods
    return methods


def find_run(params: Params, name: str) -> Run:
    """Resolve a run by its name, as in `results/<name>`; overrides are read from the name."""
    try:
        key = RunKey.parse(name)
    except FileError as error:
        raise ConfigError(str(error)) from None
    pairs = [part.partition("=") for part in key.overrides.split("+") if part]
    overrides = {name: _value(text) for name, _, text in pairs}
    return resolve(
        params,
        every_method(params),
        dataset=key.dataset,
        noise=key.noise,
        method=key.method,
        seed=key.seed,
        overrides=overrides,
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
