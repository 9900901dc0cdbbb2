"""What the steps of a run are made from, so far as settings and code say it: the same for planning and for the jobs.

    train           loss, objective, backbone and training settings
    fit_posterior   the uncertainty and the seed
    embed           the same, and the sets out of distribution
    evaluate        the evaluation settings and the code of all metrics

Data and what the steps before wrote are added where they are known (`ingredients`). Raise a version in `VERSIONS` when
a step itself, and not one of its components, computes something else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probmetric import losses, metrics, models, uncertainty
from probmetric.config import Component, EncoderSettings, RunSettings
from probmetric.data import views
from probmetric.io import content_digest, sha256_file
from probmetric.registry import Registry
from probmetric.runs.folder import Step
from probmetric.runs.made import Ingredients, Made
from probmetric.runs.source import module_digests
from probmetric.trust import scores

VERSIONS: dict[Step, int] = {"train": 1, "fit_posterior": 1, "embed": 3, "evaluate": 3}
PRETRAINED = "pretrained"
EVALUATION = "probmetric.runs.evaluate"

REGISTRIES: dict[str, Registry] = {
    "loss": losses.REGISTRY,
    "objective": uncertainty.REGISTRY,
    "uncertainty": uncertainty.REGISTRY,
    "backbone": models.REGISTRY,
    "view": views.REGISTRY,
}
# Names and places, and what changes no result.
_ASIDE = frozenset({"method", "label", "base", "prepared", "training.checkpoint_every"})
_OF_POSTERIOR = ("uncertainty", "seed")
# Without a view of the run's or the source's, the images' shape decides between these.
_UNDECLARED = {"view": ("small", "photos")}


def ingredients(
    settings: RunSettings | EncoderSettings,
    step: Step,
    *,
    data: Mapping[str, str],
    upstream: Mapping[str, Made] | None = None,
) -> Ingredients:
    """What `step` of a run with `settings` is made from.

    Args:
        settings: the run's settings.
        step: the step.
        data: prepared dataset -> digest (`data_digests`).
        upstream: the finished steps before it, by name.
    """
    before = dict(upstream or {})
    written = {name: made.output for name, made in before.items()}
    if step == "train" and isinstance(settings.pretrained, str) and Path(settings.pretrained).is_file():
        written[PRETRAINED] = content_digest(settings.pretrained)
    return Ingredients(
        step=step,
        version=VERSIONS[step],
        settings=_STEP_SETTINGS[step](settings),
        data=dict(data),
        code=step_code(settings, step),
        upstream=written,
        cohorts=tuple(sorted({made.ingredients.cohort for made in before.values()})),
    )


def data_digests(prepared: str | Path, names: Iterable[str]) -> dict[str, str]:
    """Prepared dataset -> first digits of its digest file's SHA-256; those that are not prepared are left out."""
    paths = {name: Path(prepared) / name / "digest" for name in names}
    return {name: _file_digest(path, path.stat().st_mtime_ns) for name, path in paths.items() if path.exists()}


@functools.lru_cache(maxsize=4096)
def _file_digest(path: Path, changed: int) -> str:
    """Digest of a file last changed at time `changed`: read once, however many runs use the dataset."""
    return sha256_file(path)[:16]


def step_code(settings: RunSettings | EncoderSettings, step: Step) -> dict[str, str]:
    """Module -> digest of the code the step's components are made of."""
    parts = {"train": ("loss", "objective", "backbone", "view"), "fit_posterior": ("uncertainty",), "evaluate": ()}
    found: dict[str, str] = {}
    for part in parts.get(step, ("loss", "backbone", "uncertainty")):
        component = getattr(settings, part)
        names = _with_guides(part, component) if component else _UNDECLARED.get(part, ())
        for name in names:
            found |= component_code(part, name)
    return found | (_evaluation_code() if step == "evaluate" else {})


def _evaluation_code() -> dict[str, str]:
    """Module -> digest of the evaluation, of all scores and of the metrics users registered."""
    found = module_digests(EVALUATION)
    for entry in metrics.REGISTRY.foreign_entries().values():
        found |= module_digests(entry.module)
    for name in scores.REGISTRY.names():
        found |= module_digests(scores.REGISTRY.module(name))
    return found


@functools.cache
def component_code(part: str, name: str) -> dict[str, str]:
    """Module -> digest of a component: the loss, objective, uncertainty or backbone `name`."""
    return module_digests(REGISTRIES[part].module(name))


def _with_guides(part: str, component: Component) -> list[str]:
    """The component's name, and those of others it is told to use (`guidance: proxy_anchor`)."""
    known = REGISTRIES[part].names()
    return [component.name, *(value for value in component.options.values() if value in known)]


def _of_training(settings: RunSettings | EncoderSettings) -> dict[str, Any]:
    fields = set(EncoderSettings.model_fields)
    return _flat(settings.model_dump(mode="json", exclude_defaults=True, include=fields), tuple(REGISTRIES))


def _of_posterior(settings: RunSettings | EncoderSettings) -> dict[str, Any]:
    return _flat(settings.model_dump(mode="json", exclude_defaults=True, include=set(_OF_POSTERIOR)), ("uncertainty",))


def _of_embedding(settings: RunSettings | EncoderSettings) -> dict[str, Any]:
    include = {*_OF_POSTERIOR, "ood"}
    return _flat(settings.model_dump(mode="json", exclude_defaults=True, include=include), ("uncertainty",))


def _of_evaluation(settings: RunSettings | EncoderSettings) -> dict[str, Any]:
    return _flat(settings.model_dump(mode="json", exclude_defaults=True, include={"evaluation"}), ())


_STEP_SETTINGS = {
    "train": _of_training,
    "fit_posterior": _of_posterior,
    "embed": _of_embedding,
    "evaluate": _of_evaluation,
}


def _flat(values: Mapping[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    """Dotted settings; of a component its name and the options that differ from those it declares."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in parts and value is not None:
            flat |= _component(key, value)
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        elif value is not None:
            flat[key] = value
    return {name: value for name, value in flat.items() if name not in _ASIDE}


def _component(part: str, value: Mapping[str, Any]) -> dict[str, Any]:
    declared = REGISTRIES[part].options(value["name"])
    options = value.get("options") or {}
    changed = {key: item for key, item in options.items() if key not in declared or item != declared[key].default}
    return {part: value["name"]} | {f"{part}.{key}": item for key, item in changed.items()}
