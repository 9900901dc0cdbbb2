"""Describe components as settings (a registered name with options, checked without an import), and parse settings.

A component is checked once, when the model that contains it is validated; settings then pass the same object on. Files
that planning wrote are read without a check (`parse(..., checked=True)`); `create` checks the component later.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from probmetric import losses, models, uncertainty
from probmetric.data import views
from probmetric.errors import ProbMetricError, nearest, without_secrets
from probmetric.io import read_yaml
from probmetric.registry import Registry

Fidelity = Literal["corrected", "as_published"]
Seed = Annotated[int, Field(ge=0, le=2**63)]


def _as_named(rate: float) -> float:
    """Refuse a rate that a run's name cannot express: `noise0.2` would also be the name for .2000001."""
    if float(f"{rate:g}") != rate:
        raise ValueError(f"the rate {rate!r} stands in the names of runs, with six digits at most; write {rate:g}")
    return abs(rate)


Rate = Annotated[float, Field(ge=0.0, lt=1.0), AfterValidator(_as_named)]  # share of wrong labels in label noise
OWN_VIEW = "own"
_CHECKED = "checked"
_SIZE = "The size of images is `view: {size: 224}`, or `view.size` as an override."
_RATE = "The learning rate is `training: {learning_rate: ...}`, or `training.learning_rate` as an override."
_HEAD = (
    "A network without a new head is `backbone: {name: timm, tag: ..., head: none}`, or `backbone.head` as an override."
)
_RATES = "Rates of single parts are `training: {learning_rates: {trunk: ..., head: ...}}`."
# Name of a setting in other tools -> its name here.
ELSEWHERE = {
    **dict.fromkeys(("image_size", "img_size", "input_size", "resolution"), _SIZE),
    **dict.fromkeys(("lr", "learning_rate"), _RATE),
    "head": _HEAD,
    **dict.fromkeys(("head_lr", "lr_head", "trunk_lr", "backbone_lr", "lr_trunk"), _RATES),
}


class ConfigError(ProbMetricError, ValueError):
    """The configuration cannot be run; the message names the place and the allowed values."""


class Strict(BaseModel):
    """Base of all settings: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_yes_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `yes` and `no` for a number, since pydantic would read them as 1 and 0."""
        if _holds_bool(value) and _takes_numbers(cls, str(info.field_name)):
            raise ValueError(f"found {value!r}, which is yes or no; write a number")
        return value


class Component(Strict):
    """A name with options; in YAML `name` or `{name: ..., option: value}`. Subclasses define the allowed names."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Component):
            value = {"name": value.name, "options": value.options}
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, dict) and "options" not in value:
            options = {key: option for key, option in value.items() if key != "name"}
            value = {"name": value.get("name"), "options": options}
        return value if info.context == _CHECKED or not isinstance(value, dict) else cls._check(value)

    @classmethod
    def _check(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the component in its long form, checked."""
        return value

    def changed(self, **options: Any) -> Component:
        """Return the component with other values of some options, which are checked when settings take it."""
        return Component(name=self.name, options=self.options | options)


class _Registered(Component):
    """A component of one registry, or of its components whose class sets `flag`; the schema lists the names."""

    registry: ClassVar[Registry]
    flag: ClassVar[str] = ""
    lacks: ClassVar[str] = ""

    @classmethod
    def names(cls) -> list[str]:
        """Return the allowed names."""
        return [name for name in cls.registry.names() if cls._allows(name)]

    @classmethod
    def _allows(cls, name: str) -> bool:
        return not cls.flag or bool(cls.registry.constant(name, cls.flag))

    @classmethod
    def _check(cls, value: dict[str, Any]) -> dict[str, Any]:
        name, options = value.get("name"), value["options"]
        if not isinstance(name, str) or not isinstance(options, dict):
            return value
        if not cls._allows(cls.registry.check(name)):
            raise ValueError(f"{cls.registry.kind} {name!r} {cls.lacks}; {nearest(name, cls.names())}")
        for option in ELSEWHERE.keys() & options.keys() - cls.registry.options(name).keys():
            raise ValueError(f"{cls.registry.kind} {name!r} has no option {option!r}. {ELSEWHERE[option]}")
        return value | {"options": cls.registry.check_options(name, options)}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        names = {"enum": cls.names()}
        long_form = {"type": "object", "properties": {"name": names}, "required": ["name"]}
        text = f"a {cls.registry.kind} by name, or with options"
        return {"description": text, "anyOf": [names, long_form]}


class LossChoice(_Registered):
    """A loss."""

    registry = losses.REGISTRY


class UncertaintyChoice(_Registered):
    """An uncertainty."""

    registry = uncertainty.REGISTRY


class ObjectiveChoice(_Registered):
    """An uncertainty that shapes training."""

    registry, flag, lacks = uncertainty.REGISTRY, "trains_encoder", "has no objective to train with"


class BackboneChoice(_Registered):
    """A backbone; a timm tag with its weight set, `resnet50.tv_in1k`, means the backbone timm with that tag."""

    registry = models.REGISTRY

    @model_validator(mode="before")
    @classmethod
    def _with_tag(cls, value: Any) -> Any:
        return with_tag(value)


def _holds_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_holds_bool, value)))


@functools.cache
def _takes_numbers(model: type[BaseModel], name: str) -> bool:
    """Say whether a field takes numbers, but neither yes and no nor values that are checked elsewhere."""
    kinds = set(_kinds(model.model_fields[name].annotation))
    return bool(kinds & {int, float}) and not kinds & {bool, Any}


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation."""
    parts = typing.get_args(annotation)
    yield from itertools.chain.from_iterable(map(_kinds, parts)) if parts else (annotation,)


def with_tag(value: Any) -> Any:
    """Return a backbone's name or mapping, with `name: timm, tag: <name>` in place of a timm tag."""
    fields = {"name": value} if isinstance(value, str) else value
    name = fields.get("name") if isinstance(fields, dict) else None
    if not isinstance(name, str) or "." not in name or name in models.REGISTRY.names():
        return value
    options = {"tag": name} | {key: option for key, option in fields.items() if key != "name"}
    return {"name": "timm", **options}


class NamedView(_Registered):
    """A view by its name."""

    registry = views.REGISTRY


class ViewChoice(NamedView):
    """A view by its name or, without a name, options of the dataset's own view, which planning checks."""

    @model_validator(mode="before")
    @classmethod
    def _with_name(cls, value: Any) -> Any:
        return {"name": OWN_VIEW} | value if isinstance(value, dict) else value

    @classmethod
    def _check(cls, value: dict[str, Any]) -> dict[str, Any]:
        return value if value.get("name") == OWN_VIEW else super()._check(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        names = {"enum": [OWN_VIEW, *cls.names()]}
        text = "a view by name, or options; without a name, of the dataset's own view"
        return {"description": text, "anyOf": [names, {"type": "object", "properties": {"name": names}}]}


@dataclass(frozen=True)
class PartOf:
    """Mark a mapping that holds some of the settings of `model`."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: dict[str, Any]) -> dict[str, Any]:
        self.model(**value)
        return value

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return handler(self.model.__pydantic_core_schema__)


def parse(model: type[BaseModel], value: Any, where: str, *, checked: bool = False) -> Any:
    """Validate `value` as `model`.

    Args:
        model: the settings.
        value: a mapping.
        where: beginning of the message.
        checked: whether its components were checked when it was written; they are then not checked again.

    Raises:
        ConfigError: a value is wrong; the message names the place in `where`, the value and the allowed values.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a mapping of settings, found {type(value).__name__}.")
    try:
        return model.model_validate(dict(value), context=_CHECKED if checked else None)
    except ValidationError as error:
        problems = error.errors()
        places = [each["loc"] for each in problems]
        lines = [
            _explain(model, problem, where)
            for problem in problems  # a tuple with a wrong entry is then reported as too short
            if problem["type"] != "too_short"
            or not any(each[:-1][: len(problem["loc"])] == problem["loc"] for each in places)
        ]
        raise ConfigError("\n".join(lines)) from None


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Put `where` before the message of a `ConfigError` that the block raises, unless it is there already."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def load(model: type[BaseModel], path: str | Path) -> Any:
    """Read and validate a YAML file as `model`; errors as for `parse` and `read_yaml`."""
    return parse(model, read_yaml(path), str(path))


def _explain(model: type[BaseModel], problem: Any, where: str) -> str:
    location = [part for part in problem["loc"] if not str(part).startswith(("function-", "constrained-", "literal["))]
    place = f"{where}: {'.'.join(map(str, location)) or 'top level'}"
    if problem["type"] == "extra_forbidden":
        key = str(location[-1])
        holder = _model_at(model, location[:-1])
        meant = ELSEWHERE.get(key) or deeper(holder, key) or nearest(key, list(holder.model_fields))
        return f"{place}: unknown key. {meant}"
    if problem["type"] == "value_error":
        return f"{place}: {problem['msg'].removeprefix('Value error, ')}"
    shown = problem["input"]
    value = without_secrets(f" (found {shown!r})") if isinstance(shown, str | int | float | bool | list | tuple) else ""
    message = problem["msg"].removeprefix("Input ").removeprefix("Tuple ")
    if problem["type"] == "model_type":
        message = "expected a mapping of settings, or a component's name"
        value = value or f", found {type(shown).__name__}"
    return f"{place}: {message.replace('a valid tuple', 'a list, as in [a, b]')}{value}"


def _model_at(model: type[BaseModel], location: list[Any]) -> type[BaseModel]:
    """Return the settings at `location` inside `model`."""
    for part in location:
        if not isinstance(part, int) and (field := model.model_fields.get(str(part))) is not None:
            model = _part_of(field) or _model_in(field.annotation) or model
    return model


def deeper(model: type[BaseModel], key: str) -> str:
    """Return a sentence that names the part of `model` with the setting `key`, and how to write it; else ""."""
    parts = {name: _part_of(field) for name, field in model.model_fields.items()}
    where = next((name for name, part in parts.items() if part and key in part.model_fields), "")
    return where and f"It is a setting of {where}: `{where}: {{{key}: ...}}`, or `{where}.{key}` as an override."


def _part_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the settings model of a field marked with `PartOf`."""
    return next((mark.model for mark in field.metadata if isinstance(mark, PartOf)), None)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the settings model inside `X | None`, `tuple[X, ...]`, `dict[str, X]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
