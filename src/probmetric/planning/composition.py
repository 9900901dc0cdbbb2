"""Compose the settings of a method from its definition: inheritance, changes per dataset, presets and overrides.

They are applied in this order; later ones replace earlier ones:

    defaults of params.yaml, the method, its `change` and `per_dataset` (from the root of `like` down), the preset,
    the overrides of the run's name, and last the fidelity, which is passed to every component that has this option

Settings are addressed by dotted keys: `dim`, `training.epochs`, `loss` (another loss), `loss.scale` (its option).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from probmetric import models
from probmetric.config import (
    ELSEWHERE,
    OWN_VIEW,
    Component,
    ConfigError,
    Method,
    NamedView,
    Params,
    Preset,
    Training,
    deeper,
    naming,
    parse,
    with_tag,
)
from probmetric.data import views
from probmetric.data.sources import list_datasets
from probmetric.data.views import source_view
from probmetric.errors import nearest
from probmetric.planning.declared import dataset_names
from probmetric.registry import UnknownNameError, When
from probmetric.runs.folder import flatten
from probmetric.runs.identity import REGISTRIES

DEFAULTS = flatten({"training": Training().model_dump()})
VALUES, GROUPS = ("fidelity", "dim", "pretrained"), ("training", "evaluation")
_BORROWED = ("uncertainty", "fidelity", "evaluation")
# Settings that only the steps of a training read; the milestones have a sentence of their own.
_OF_STEPS = {
    "optimizer",
    "learning_rate",
    "learning_rates",
    "layer_decay",
    "weight_decay",
    "weight_decay_on",
    "momentum",
    "nesterov",
    "schedule",
    "gamma",
    "plateau_patience",
    "proxy_init",
    "ema",
    "gradient_cache",
    "warmup_epochs",
    "patience",
    "gradient_clip",
    "validate_every",
    "checkpoint_every",
}


class Reading(NamedTuple):
    """Hold a setting, `key`, that is read only where `reads` is true of the setting `decider`.

    `named` says in words for which values of the decider that is.
    """

    key: str
    decider: str
    reads: Callable[[Any], bool]
    named: str

    def advice(self, value: Any) -> str:
        """Return what to do about the setting, which has no effect with this `value` of the decider."""
        return f"{self.decider} {value!r}; leave it out, or set {self.decider} to {self.named}."


READ_WITH = [
    Reading(f"training.{name}", f"training.{decider}", values.__contains__, " or ".join(values))
    for name, field in Training.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, When)
    for decider, values in mark.options.items()
]
READINGS = [
    *READ_WITH,
    *(
        Reading(key, "training.epochs", lambda epochs: epochs != 0, "1 or more")
        for key in DEFAULTS
        if key.split(".")[1] in _OF_STEPS
    ),
]


@dataclass
class Draft:
    """Settings of a run while they are put together; they are checked when `RunSettings` are made of them.

    Attributes:
        base: the method whose encoder is borrowed, if any.
        label: name of the method in reports.
        settings: the fields of `RunSettings` that a method decides: components, those of `REGISTRIES`; the settings of
            `GROUPS` by name; plain values.
    """

    base: str | None
    label: str
    settings: dict[str, Any]

    def set(self, key: str, value: Any) -> None:
        """Set a dotted key; a mapping keeps the settings of a group that it does not name, null resets the group.

        Raises:
            ConfigError: the key names nothing that an override may change.
        """
        part, _, name = key.partition(".")
        if part in GROUPS and isinstance(value, Mapping):
            for entry, each in value.items():
                self.set(f"{key}.{entry}", each)
            return
        held = self.settings.get(part)
        if name and part == "view":
            held = held or Component(name=OWN_VIEW)
        if name and isinstance(held, Component):
            self.settings[part] = held.changed(**{name: value})
        elif name and part in GROUPS:
            self.settings[part] = _with(self.settings[part], name, value)
        elif key in REGISTRIES:
            self.settings[key] = _component(key, value)
        elif key in GROUPS and value is None:
            self.settings[key] = {}
        elif key in self.settings and key not in GROUPS:
            self.settings[key] = value
        else:
            parts = [part for part in (*GROUPS, *REGISTRIES) if part == "view" or self.settings[part]]
            allowed = [*(f"{part}.<key>" for part in parts), *VALUES, *REGISTRIES]
            meant = ELSEWHERE.get(key.rpartition(".")[2]) or deeper(Method, key) or nearest(key, allowed)
            raise ConfigError(f"override {key!r} changes no setting. {meant[:1].upper()}{meant[1:]}")

    def taken_of(self, preset: Preset) -> dict[str, Any]:
        """Return the settings of a preset, by dotted key, that apply here: components may lack some options.

        Raises:
            ConfigError: no component of its kind has an option.
        """
        taken = {}
        for key, value in preset.set.items():
            part, _, option = key.partition(".")
            if not option or part not in REGISTRIES or part == "view" or self._takes(part, option):
                taken[key] = value
                continue
            registry = REGISTRIES[part]
            options = {each for name in registry.names() for each in registry.options(name)}
            if option not in options:
                raise ConfigError(f"no {registry.kind} has the option of {key!r}: {nearest(option, options)}")
        return taken

    def _takes(self, part: str, option: str) -> bool:
        component = self.settings[part]
        return component is not None and option in REGISTRIES[part].options(component.name)

    def tell_fidelity(self, part: str, fidelity: str) -> None:
        """Set the fidelity of component `part`, if it has this option and does not set it itself."""
        component = self.settings[part]
        if component and fidelity != "corrected" and self._takes(part, "fidelity"):
            self.settings[part] = component.changed(**{"fidelity": fidelity} | component.options)

    def resolve_view(self, source: str) -> None:
        """Choose the view of the run: the one it sets, or the one that `source` declares for `training.augment`.

        The source's options for this view are used where the run does not set them. If neither names a view, it is None
        and the shape of the prepared images decides later.

        Raises:
            ConfigError: options without a name, and the source declares no view or one without such an option.
        """
        view = self.settings["view"]
        declared = source_view(source, self.settings["training"].get("augment", "standard"))
        if view is not None and view.name not in (OWN_VIEW, declared and declared["name"]):
            return
        if view is None:
            self.settings["view"] = parse(NamedView, declared, "view", checked=True) if declared else None
        elif declared is None:
            raise ConfigError(f"view: source {source!r} declares none; name one: {', '.join(views.list_views())}.")
        else:
            self.settings["view"] = Component(name=declared["name"], options=declared["options"] | view.options)

    @property
    def _headless(self) -> bool:
        backbone = self.settings["backbone"]
        return backbone is not None and not models.REGISTRY.holds(backbone.name, "has_head", backbone.options)

    def check_dim(self, dim: Any, where: str) -> None:
        """Raise `ConfigError` for a `dim` that is set although the features are the embedding."""
        if self._headless and dim not in (None, "features"):
            raise ConfigError(
                f"{where}: dim is {dim}, but backbone {self.settings['backbone'].name!r} has no head with these "
                "options, so that its features are the embedding; remove dim, or the option head: none"
            )

    def check_read(self, written: Mapping[str, Any], readings: Iterable[Reading] = READ_WITH) -> None:
        """Raise `ConfigError` for a setting in `written` that has no effect with the others; defaults may have none.

        Args:
            written: settings that people wrote, by dotted key or nested; with `training.epochs` the milestones count
                as written, too.
            readings: what reads settings of training.
        """
        training = Training().model_dump() | self.settings["training"]
        reasons = dict(self._unread(training)) | {
            reading.key: reading.advice(value)
            for reading in readings
            if not reading.reads(value := training[reading.decider.partition(".")[2]])
        }
        flat = flatten(written)
        if flat.get("training.epochs"):
            flat.setdefault("training.milestones", training["milestones"])
        for key, value in flat.items():
            if key in reasons and value != DEFAULTS.get(key):
                raise ConfigError(f"{key} does nothing with {reasons[key]}")

    def _unread(self, training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the settings without effect, by dotted key, and the setting that causes this, with the fix."""
        loss, objective, view = (self.settings[part] for part in ("loss", "objective", "view"))
        epochs = training["epochs"]
        if _ends_early(epochs, training["milestones"]):
            yield "training.milestones", f"training.epochs {epochs}; name epochs below it, counted from 0."
        flags = ("has_proxies", "is_classifier", "starts_at_random")
        declares = [bool(loss and REGISTRIES["loss"].holds(loss.name, flag, loss.options)) for flag in flags]
        if loss and (declares[2] or not any(declares)):
            yield "training.proxy_init", f"loss {loss.name!r}, which has no proxies or class weights; leave it out."
        if not self.settings["pretrained"]:
            yield "training.warmup_epochs", "a network that nothing pretrained; leave it out, or set pretrained."
        if self._headless:
            yield "training.learning_rates.head", "a backbone without head; leave one of the two out."
        if loss and objective and REGISTRIES["objective"].holds(objective.name, "replaces_loss", objective.options):
            for option in REGISTRIES["loss"].changed_options(loss.name, loss.options):
                yield f"loss.{option}", f"objective {objective.name!r}, which takes the loss's place; leave it out."
        if view and view.options.get("crop") is False:
            for option in {"scale", "ratio"} & view.options.keys():
                yield f"view.{option}", "view.crop False; leave one of the two out."

    def fields(self) -> dict[str, Any]:
        """Return the fields of `RunSettings` that a method decides."""
        dim = {"dim": "features"} if self._headless else {}
        return self.settings | dim | {"base": self.base, "label": self.label}


def _ends_early(epochs: Any, milestones: Any) -> bool:
    """Say whether a milestone lies behind the last epoch; values of a wrong type are refused later, by name."""
    try:
        return any(milestone >= epochs for milestone in milestones)
    except TypeError:
        return False


def _with(settings: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the settings with the one named `key` changed: `epochs`, or an entry of it, `learning_rates.trunk`."""
    name, _, entry = key.partition(".")
    held = settings.get(name)
    return {**settings, name: {**(held if isinstance(held, Mapping) else {}), entry: value} if entry else value}


def _component(key: str, value: Any) -> Component | None:
    if value is None:
        return None
    named = {"name": OWN_VIEW} | value if key == "view" and isinstance(value, dict) else value
    named = with_tag(value) if key == "backbone" else named
    try:
        component = Component.model_validate(named)
        if component.name != OWN_VIEW:
            REGISTRIES[key].check(component.name)
    except ValidationError:
        raise ConfigError(f"override {key!r} is {value!r}; write a name, or a name with options.") from None
    except UnknownNameError as error:
        raise ConfigError(f"override {key}: {error}") from None
    return component


def lineage(methods: Mapping[str, Method], name: str) -> list[Method]:
    """Return the method and the methods it is `like`, the origin first.

    Raises:
        ConfigError: a method is unknown, or they form a circle.
    """
    chain: list[Method] = []
    wanted: str | None = name
    while wanted:
        if wanted not in methods:
            raise ConfigError(f"unknown method {wanted!r}: {nearest(wanted, methods)}")
        if methods[wanted] in chain:
            raise ConfigError(f"methods.{name}: `like` leads in a circle to {wanted!r}; write one of them without it.")
        chain.append(methods[wanted])
        wanted = methods[wanted].like
    return chain[::-1]


def composed(
    params: Params,
    methods: Mapping[str, Method],
    name: str,
    dataset: str,
    evaluation: Mapping[str, Any] | None = None,
) -> Draft:
    """Return the settings of method `name` on `dataset`; with `base`, only its uncertainty, fidelity and evaluation.

    Args:
        params: params.yaml.
        methods: all methods by name.
        name: the method.
        dataset: the dataset, for which `per_dataset` may change settings.
        evaluation: settings of the base's evaluation, if known; the method's own replace them.

    Raises:
        ConfigError: the method is unknown, a change names nothing, or `dim` is set without a head.
    """
    chain = lineage(methods, name)
    draft = _draft(params, chain[0], chain[-1].label or name)
    draft.settings["evaluation"] |= evaluation or {}
    datasets = {*dataset_names(params), *list_datasets()}
    for method in chain:
        places = dict.fromkeys(method.per_dataset, "per_dataset") | {method.tuned_on: "tuned_on"}
        for place in places.keys() - {"", *datasets}:
            raise ConfigError(f"methods.{name}.{places[place]}: {place!r} is no dataset: {nearest(place, datasets)}")
        changes = method.change | method.per_dataset.get(dataset, {})
        for key, value in changes.items():
            if draft.base and key.split(".")[0] not in _BORROWED:
                raise ConfigError(
                    f"methods.{name}: {key!r} belongs to the encoder, which is that of its base {draft.base!r}; "
                    f"only {', '.join(_BORROWED)} can be changed here."
                )
            with naming(f"methods.{name}"):
                draft.set(key, value)
        draft.check_dim(changes.get("dim", method.dim), f"methods.{name}")
    with naming(f"methods.{name}"):
        options = {part: component.options for part in ("loss", "view") if (component := getattr(method, part))}
        draft.check_read(options | {"training": method.training} | changes, READINGS)
        if not draft.base and not draft.settings["loss"] and draft.settings["training"].get("epochs", 1):
            raise ConfigError(
                "without a loss nothing is trained; set `loss`, or `training: {epochs: 0}` for the network as it is."
            )
    return draft


def _draft(params: Params, method: Method, label: str) -> Draft:
    defaults = params.defaults
    settings = {
        "fidelity": method.fidelity,
        "dim": method.dim or defaults.dim,
        "pretrained": defaults.pretrained if method.pretrained is None else method.pretrained,
        "loss": method.loss,
        "objective": method.objective,
        "uncertainty": method.uncertainty,
        "backbone": method.backbone or defaults.backbone,
        "view": method.view or defaults.view,
        "training": defaults.training.model_dump(mode="json"),
        "evaluation": params.evaluation.model_dump(mode="json"),
    }
    draft = Draft(method.base, label, settings)
    draft.set("training", method.training)
    return draft
