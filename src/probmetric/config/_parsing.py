"""YAML -> models, and messages that say where, the value, what is allowed and the nearest match."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from probmetric.config._components import PartOf
from probmetric.errors import ProbMetricError
from probmetric.io import FileError, read_yaml
from probmetric.registry import nearest


class ConfigError(ProbMetricError, ValueError):
    """The configuration cannot be run; the message says where and what is allowed."""


def parse(model: type[BaseModel], value: Any, where: str) -> Any:
    """Validate `value` as `model`; `ConfigError` names the place in `where`, the value and what is allowed."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a mapping of settings, found {type(value).__name__}.")
    try:
        return model(**value)
    except ValidationError as error:
        lines = [_explain(model, problem, where) for problem in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def load(model: type[BaseModel], path: str | Path) -> Any:
    """Read and validate a YAML file as `model`."""
    try:
        return parse(model, read_yaml(path), str(path))
    except FileError as error:
        raise ConfigError(str(error)) from None


def _explain(model: type[BaseModel], problem: Any, where: str) -> str:
    location = [part for part in problem["loc"] if not str(part).startswith("function-")]
    place = f"{where}: {'.'.join(map(str, location)) or 'top level'}"
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(model, location[:-1])
        return f"{place}: unknown key. {nearest(str(location[-1]), fields)}"
    if problem["type"] == "value_error":
        return f"{place}: {problem['msg'].removeprefix('Value error, ')}"
    shown = problem["input"]
    value = f" (found {shown!r})" if isinstance(shown, str | int | float | bool | list | tuple) else ""
    return f"{place}: {problem['msg'].removeprefix('Input ')}{value}"


def _fields_at(model: type[BaseModel], location: list[Any]) -> list[str]:
    """Names of the settings allowed at `location` inside `model`."""
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(str(part))
        if field is not None:
            parts = (mark.model for mark in field.metadata if isinstance(mark, PartOf))
            model = next(parts, None) or _model_in(field.annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The settings model inside `X | None`, `tuple[X, ...]`, `dict[str, X]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
