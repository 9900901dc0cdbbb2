"""Compute the identity of each step of a run from its settings, data and code; planning and jobs use the same.

    train      loss, objective, backbone and training settings
    fit        the uncertainty and the seed
    embed      the uncertainty, the seed, and the sets out of distribution
    evaluate   the evaluation settings and the code of all metrics

The identity of a step is the digest of its settings that differ from their defaults, its data, the version of the step,
the code that it executes (its own and its components') and the files of the steps before it. Times of files do not
matter. Raise a version in `VERSIONS` when defaults of settings change, since no digest contains defaults.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probmetric import losses, metrics, models, uncertainty
from probmetric.config import Component, EncoderSettings, RunSettings
from probmetric.data import views
from probmetric.io import content_digest, digest_of, sha256_file
from probmetric.registry import Registry
from probmetric.runs.folder import Step
from probmetric.runs.plan import Run
from probmetric.runs.source import is_own, module_digests
from probmetric.trust import scores

VERSIONS: dict[Step, int] = {"train": 1, "fit": 3, "embed": 3, "evaluate": 4}
PRETRAINED = "pretrained"
# The module that drives each step: code that the step executes besides its components.
DRIVERS: dict[Step, str] = {
    "train": "probmetric.training.run",
    "fit": "probmetric.runs.embed",
    "embed": "probmetric.runs.embed",
    "evaluate": "probmetric.runs.evaluate",
}

REGISTRIES: dict[str, Registry] = {
    "loss": losses.REGISTRY,
    "objective": uncertainty.REGISTRY,
    "uncertainty": uncertainty.REGISTRY,
    "backbone": models.REGISTRY,
    "view": views.REGISTRY,
}
# Names and places, and settings that change no result.
_ASIDE = frozenset({"method", "label", "base", "prepared", "training.checkpoint_every"})
# Settings fields that a step reads; for `evaluate` and `embed`, fields of earlier steps count through their output.
_FIELDS: dict[Step, frozenset[str]] = {
    "train": frozenset(EncoderSettings.model_fields),
    "fit": frozenset({"uncertainty", "seed"}),
    "embed": frozenset({"uncertainty", "seed", "ood"}),
    "evaluate": frozenset({"evaluation"}),
}
_COMPONENTS: dict[Step, tuple[str, ...]] = {
    "train": ("loss", "objective", "backbone", "view"),
    "fit": ("uncertainty",),
    "embed": ("loss", "backbone", "uncertainty"),
    "evaluate": (),
}
# If neither the run nor the source names a view, the images' shape decides between these.
_UNDECLARED = {"view": ("small", "photos")}


@dataclass(frozen=True)
class Ingredients:
    """Everything a step's results depend on.

    Attributes:
        step: the step.
        version: version of the step; raised when the step changes in a way that no component's code shows.
        settings: dotted settings that differ from their defaults.
        data: prepared dataset -> digest; those that are not prepared are left out.
        code: module -> digest of its syntax tree.
        upstream: name for the output of a step before -> digest of its content.
    """

    step: Step
    version: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Digest that two runs of the step share only if they compute the same."""
        # Code counts by content, so that a module may be moved or renamed.
        return digest_of(vars(self) | {"code": sorted(set(self.code.values()))})


def ingredients(run: Run, step: Step, upstream: Mapping[str, str] | None = None) -> Ingredients:
    """Return the ingredients from which `step` of `run` would be made now.

    Args:
        run: the planned run.
        step: the step.
        upstream: name of a step before (`steps_before`) -> digest of its output.
    """
    settings = run.settings
    written = dict(upstream or {})
    if step == "train" and isinstance(settings.pretrained, str) and Path(settings.pretrained).is_file():
        written[PRETRAINED] = content_digest(settings.pretrained)
    names = run.data if step in ("embed", "evaluate") else run.data[:1]
    files = {name: Path(settings.prepared) / name / "digest" for name in names}
    return Ingredients(
        step=step,
        version=VERSIONS[step],
        settings=step_settings(settings, step),
        data={name: _file_digest(file, file.stat().st_mtime_ns) for name, file in files.items() if file.exists()},
        code=step_code(settings, step),
        upstream=written,
    )


def steps_before(run: Run, step: Step) -> dict[str, tuple[str, Step]]:
    """Return the steps whose files `step` reads: name -> (run, step); with several encoders one step for each."""
    if step == "train":
        return {PRETRAINED: (run.origin, "train")} if run.origin else {}
    if step == "evaluate":
        return {"embed": (run.name, "embed")}
    encoders: dict[str, tuple[str, Step]] = {
        f"encoder {number}": (name, "train") for number, name in enumerate(run.encoders)
    }
    if step == "embed" and run.fits_posterior:
        encoders["posterior"] = (run.name, "fit")
    return encoders


def planned_steps(run: Run) -> dict[str, str]:
    """Return step -> identity by settings and code alone, which a plan knows before any step is made.

    The training of a borrowed encoder counts too.
    """
    steps: tuple[Step, ...] = ("train", *(step for step in run.steps if step != "train"))
    return {
        step: Ingredients(
            step, VERSIONS[step], step_settings(run.settings, step), code=step_code(run.settings, step)
        ).identity
        for step in steps
    }


@functools.lru_cache(maxsize=4096)
def _file_digest(path: Path, changed: int) -> str:
    """Return the first digits of the SHA-256 of a file last changed at time `changed`; read it once for all runs."""
    return sha256_file(path)[:16]


def step_code(settings: RunSettings | EncoderSettings, step: Step) -> dict[str, str]:
    """Return module -> digest of the code that the step executes: its driver, its components and all their imports."""
    modules = [DRIVERS[step]]
    for part in _COMPONENTS[step]:
        component = getattr(settings, part)
        names = _with_guides(part, component) if component else _UNDECLARED.get(part, ())
        modules += [REGISTRIES[part].module(name) for name in names]
    return code_of(*(modules if step != "evaluate" else [*modules, *_measures()]))


def plugin_modules(settings: RunSettings) -> list[str]:
    """Return the users' modules that define a run's components and metrics."""
    modules = [
        REGISTRIES[part].module(name)
        for part in REGISTRIES
        if (component := getattr(settings, part))
        for name in _with_guides(part, component)
    ]
    return [module for module in (*modules, *_measures()) if not is_own(module)]


def _measures() -> list[str]:
    """Return the modules of all scores and of the metrics that users registered."""
    foreign = [entry.module for entry in metrics.REGISTRY.foreign_entries().values()]
    return foreign + [scores.REGISTRY.module(name) for name in scores.REGISTRY.names()]


@functools.lru_cache(maxsize=4096)
def code_of(*modules: str) -> dict[str, str]:
    """Return module -> digest of `modules` and their imports, read once for all runs that share them."""
    return module_digests(*modules)


def _with_guides(part: str, component: Component) -> list[str]:
    """Return the component's name, and those of other components that its options name (`guidance: proxy_anchor`)."""
    names = REGISTRIES[part].names()
    return [component.name, *(value for value in component.options.values() if value in names)]


def step_settings(settings: RunSettings | EncoderSettings, step: Step) -> dict[str, Any]:
    """Return the dotted settings of a step that differ from their defaults; for a component its name and options."""
    flat: dict[str, Any] = {}
    for key, value in settings.model_dump(mode="json", exclude_defaults=True, include=set(_FIELDS[step])).items():
        if key in REGISTRIES and value is not None:
            flat |= _component(key, value)
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        elif value is not None:
            flat[key] = value
    return {name: value for name, value in flat.items() if name not in _ASIDE}


def _component(part: str, value: Mapping[str, Any]) -> dict[str, Any]:
    changed = REGISTRIES[part].changed_options(value["name"], value.get("options") or {})
    return {part: value["name"]} | {f"{part}.{key}": item for key, item in changed.items()}
