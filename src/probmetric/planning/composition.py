"""From a method's definition to plain settings: inheritance, what holds on one dataset, presets and overrides.

Applied in this order, each over the one before:

    defaults of params.yaml, the method, its `change` and `per_dataset` (from the root of `like` down), the preset,
    the overrides of the run's name, and last the fidelity, which every component that has the switch is told

Settings are addressed by dotted keys: `dim`, `training.epochs`, `loss` (another loss), `loss.scale` (its option).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probmetric.config import OWN_VIEW, Component, ConfigError, Method, Params, Preset
from probmetric.data import views
from probmetric.data.views import source_view
from probmetric.registry import nearest
from probmetric.runs.identity import REGISTRIES

_BORROWED = ("uncertainty", "fidelity", "evaluation")


def lineage(methods: Mapping[str, Method], name: str) -> list[Method]:
    """The method and what it is `like`, the origin first.

    Raises:
        ConfigError: an unknown method, or a circle.
    """
    chain: list[Method] = []
    wanted: str | None = name
    while wanted:
        if wanted not in methods:
            raise ConfigError(f"unknown method {wanted!r}: {nearest(wanted, methods)}")
        if methods[wanted] in chain:
            raise ConfigError(f"methods.{name}: `like` leads back to {wanted!r}; one of them must stand by itself.")
        chain.append(methods[wanted])
        wanted = methods[wanted].like
    return chain[::-1]


def composed(params: Params, methods: Mapping[str, Method], name: str, dataset: str) -> dict[str, Any]:
    """Plain settings of method `name` on `dataset`; with `base`, its own uncertainty, fidelity and evaluation count.

    Raises:
        ConfigError: an unknown method, or a change that reaches nothing.
    """
    chain = lineage(methods, name)
    settings = _settings(params, chain[0])
    for method in chain:
        for key, value in (method.change | method.per_dataset.get(dataset, {})).items():
            if settings["base"] and key.split(".")[0] not in _BORROWED:
                raise ConfigError(
                    f"methods.{name}: {key!r} belongs to the encoder, which is that of its base {settings['base']!r}; "
                    f"only {', '.join(_BORROWED)} can be changed here."
                )
            override(settings, key, value)
    return settings | {"label": chain[-1].label or name}


def _settings(params: Params, method: Method) -> dict[str, Any]:
    defaults = params.defaults
    return {
        "base": method.base,
        "fidelity": method.fidelity,
        "loss": _plain(method.loss),
        "objective": _plain(method.objective),
        "uncertainty": method.uncertainty.model_dump(),
        "backbone": (method.backbone or defaults.backbone).model_dump(),
        "dim": method.dim or defaults.dim,
        "pretrained": method.pretrained or defaults.pretrained,
        "view": _plain(method.view or defaults.view),
        "training": defaults.training.model_dump(mode="json") | method.training,
        "evaluation": params.evaluation.model_dump(mode="json"),
    }


def _plain(component: Component | None) -> dict[str, Any] | None:
    return None if component is None else component.model_dump()


def override(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key.

    Raises:
        ConfigError: the key reaches nothing.
    """
    parent, _, leaf = key.rpartition(".")
    if parent == "view" and settings["view"] is None:
        settings["view"] = {"name": OWN_VIEW, "options": {}}
    target = settings.get(parent) if parent else settings
    if not isinstance(target, dict) or (not parent and leaf not in settings):
        reachable = [name for name, entry in settings.items() if isinstance(entry, dict)]
        known = [f"{name}.<key>" for name in reachable] + ["dim", "pretrained"]
        raise ConfigError(f"override {key!r} reaches nothing; {nearest(key, known)}")
    if not parent and leaf in REGISTRIES and value is not None:
        named = {"name": OWN_VIEW} | value if leaf == "view" and isinstance(value, dict) else value
        value = Component.model_validate(named).model_dump()
    target = target.get("options", target)
    target[leaf] = value


def apply_preset(settings: dict[str, Any], preset: Preset) -> None:
    """Apply a preset; an option of a component counts only where the component has it."""
    for key, value in preset.set.items():
        part, _, option = key.partition(".")
        component = settings.get(part)
        is_option = bool(option) and part in REGISTRIES and part != "view"
        if is_option and (component is None or option not in REGISTRIES[part].options(component["name"])):
            continue
        override(settings, key, value)


def resolved_view(view: dict[str, Any] | None, augment: str, source: str) -> dict[str, Any] | None:
    """The view a run will get, with its name and options: the one it asks for, or that `source` declares for `augment`.

    None where neither says anything: the shape of the prepared images decides then.

    Raises:
        ConfigError: options without a name, and the source declares no view or one without such an option.
    """
    own = source_view(source, augment)
    if view is None:
        return own
    if view["name"] != OWN_VIEW:
        return view
    if own is None:
        raise ConfigError(f"view: source {source!r} declares none; name one: {', '.join(views.list_views())}.")
    try:
        views.REGISTRY.check_options(own["name"], view["options"])
    except ValueError as error:
        raise ConfigError(f"view: {error}") from None
    return {"name": own["name"], "options": own["options"] | view["options"]}


def tell_fidelity(settings: dict[str, Any], part: str, fidelity: str) -> None:
    """Tell component `part` the fidelity, where it has that switch and does not set it itself."""
    component = settings[part]
    if component and fidelity != "corrected" and "fidelity" in REGISTRIES[part].options(component["name"]):
        component["options"] = {"fidelity": fidelity} | component["options"]
