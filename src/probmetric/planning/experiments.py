"""Read the definition files: experiments, methods, and experiments with their datasets replaced.

    workflow/experiments/<paper>/<table>.yaml   runs, and what their report shows (may define methods too)
    workflow/methods/<paper>.yaml               methods by name, shared by all experiments
    pfml/table2@glyphs[+<preset>]               that experiment on other data, made small by a preset of params.yaml
    pfml/table1+refit[+as_published]            that experiment with its runs repeated, their epochs chosen in that way

All methods share one namespace, because they name the folders of runs, which experiments share.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from probmetric.config import ConfigError, Experiment, Grid, Method, Methods, Params, load, parse
from probmetric.errors import nearest
from probmetric.io import read_yaml

EXPERIMENTS = Path("workflow/experiments")
METHODS = Path("workflow/methods")
PRESET = "preset"
SELECTION = "training.selection"
SELECTIONS = ("refit", "as_published")
_SUBSTITUTED = re.compile(r"(?P<source>[^@+]+)@(?P<dataset>[^@+]+)(?:\+(?P<preset>[^@+]+))?")
NAME = r"[a-z0-9_-]+(/[a-z0-9_-]+)?([@+][a-z0-9_-]+)*"  # names of experiments that rules of the workflow build
_OOD_SET = re.compile(r"(?<=ood/)[^/]+/")


@dataclass(frozen=True)
class Substitution:
    """`<source>@<dataset>[+<preset>]`: experiment `source` with every dataset replaced and made small."""

    source: str
    dataset: str
    preset: str = "small"

    @classmethod
    def parse(cls, name: str) -> Substitution | None:
        """Read the substitution from an experiment's name; None for a plain name."""
        if "@" not in name:
            return None
        parts = _SUBSTITUTED.fullmatch(name)
        if parts is None:
            raise ConfigError(f"experiments: {name!r} is no name; write <experiment>@<dataset> or ...+<preset>.")
        fields = {key: value for key, value in parts.groupdict().items() if value}
        return cls(**fields)

    def apply(self, params: Params, spec: Experiment) -> Experiment:
        """Return the experiment on the other dataset, which its title and description mention.

        Raises:
            ConfigError: the preset is not declared in params.yaml.
        """
        if self.preset not in params.presets:
            raise ConfigError(f"experiments: unknown preset {self.preset!r}: {nearest(self.preset, params.presets)}")
        original = list(dict.fromkeys(dataset for grid in spec.runs for dataset in grid.datasets))
        notice = (
            f"SUBSTITUTION: {self.dataset} in place of {', '.join(original)}, and the preset {self.preset} "
            f"({params.presets[self.preset].description.rstrip('.') or 'see params.yaml'}) in place of the paper's "
            "backbone and training. This shows that the experiment runs, from data to report; nothing on this page "
            "may be compared with a published number."
        )
        return spec.model_copy(
            update={
                "title": f"{spec.title} [on {self.dataset}, not the paper's data]",
                "description": f"{notice} The original: {spec.description}",
                "runs": tuple(self._grid(params, grid) for grid in spec.runs),
                "metrics": tuple(dict.fromkeys(_OOD_SET.sub("", metric) for metric in spec.metrics)),
            }
        )

    def _grid(self, params: Params, grid: Grid) -> Grid:
        preset = params.presets[self.preset]
        parts = {f"{key}.{part}" for key, value in preset.set.items() if isinstance(value, Mapping) for part in value}
        kept = {key: values for key, values in grid.set.items() if key not in {PRESET, *preset.set, *parts}}
        variants = (name.partition("+") for name in grid.datasets)
        changes = {
            "datasets": tuple(dict.fromkeys(f"{self.dataset}{plus}{variant}" for _, plus, variant in variants)),
            "seeds": grid.seeds[: preset.seeds],
            "set": {PRESET: (self.preset,)} | kept,
        }
        return grid.model_copy(update=changes)


def selections_of(name: str) -> tuple[str, ...]:
    """Return the ways of choosing epochs that an experiment's name adds: `pfml/table1+refit+as_published`.

    Raises:
        ConfigError: a way is unknown.
    """
    added = () if "@" in name else tuple(name.split("+")[1:])
    for each in added:
        if each not in SELECTIONS:
            raise ConfigError(f"experiments: {name!r} adds {each!r}: {nearest(each, SELECTIONS)}")
    return added


def with_selections(spec: Experiment, selections: Iterable[str]) -> Experiment:
    """Repeat the blocks of an experiment for every selection, unless they set `training.selection` themselves."""
    plain = [grid for grid in spec.runs if SELECTION not in grid.set]
    added = [
        grid.model_copy(update={"set": dict(grid.set) | {SELECTION: (each,)}}) for each in selections for grid in plain
    ]
    return spec.model_copy(update={"runs": (*spec.runs, *added)})


def experiment_names(folder: Path = EXPERIMENTS) -> list[str]:
    """Return the names of the experiment files: `demo`, `pfml/table2`."""
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def check_name(name: str) -> None:
    """Raise `ConfigError` for an experiment's name that no rule of the workflow can build."""
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            f"experiments: {name!r} cannot be built. Names of experiments, datasets and presets may hold lower-case "
            "letters, digits, - and _ only; an experiment may lie in one folder, as in pfml/table2. Rename its file, "
            "or the preset."
        )


def load_experiment(name: str, folder: Path = EXPERIMENTS) -> Experiment:
    """Read and validate the experiment file `name`; the error for an unknown name suggests the nearest."""
    names = experiment_names(folder)
    if name not in names:
        there = nearest(name, names) if names else f"{folder} has none; `probmetric init photos/` writes one."
        raise ConfigError(f"experiments: unknown experiment {name!r}: {there}")
    return load(Experiment, folder / f"{name}.yaml")


def shared_methods(params: Params, folder: Path = METHODS) -> dict[str, Method]:
    """Return the methods of params.yaml and of the files in workflow/methods."""
    return _merged(_shared(params, folder))


def methods_with(params: Params, experiments: Mapping[str, Experiment], folder: Path = METHODS) -> dict[str, Method]:
    """Return the shared methods and those that `experiments` (by the name of their file) define.

    Raises:
        ConfigError: a name has two different definitions; the message names both files.
    """
    defined = ((f"{EXPERIMENTS}/{name}.yaml", spec.methods) for name, spec in experiments.items())
    return _merged([*_shared(params, folder), *defined])


def every_method(params: Params) -> dict[str, Method]:
    """Return methods by name: those of params.yaml, of workflow/methods and of all experiment files."""
    return methods_with(params, {name: load_experiment(name) for name in experiment_names()})


def _shared(params: Params, folder: Path) -> list[tuple[str, Mapping[str, Method]]]:
    files = [(str(path), _load_methods(path, path.stat().st_mtime_ns)) for path in sorted(folder.glob("*.yaml"))]
    return [("params.yaml", params.methods), *files]


@functools.lru_cache
def _load_methods(path: Path, changed: int) -> Mapping[str, Method]:
    """Read the methods of a file last changed at time `changed`, once for all experiments."""
    methods: Methods = parse(Methods, {"methods": read_yaml(path) or {}}, str(path))
    return methods.methods


def _merged(sources: Iterable[tuple[str, Mapping[str, Method]]]) -> dict[str, Method]:
    merged: dict[str, tuple[Method, str]] = {}
    for where, methods in sources:
        for name, method in methods.items():
            defined, first = merged.setdefault(name, (method, where))
            if defined != method:
                raise ConfigError(
                    f"methods.{name}: defined differently in {first} and in {where}; give one of them another name."
                )
    return {name: method for name, (method, _) in merged.items()}
