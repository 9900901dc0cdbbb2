"""Components: a registered name with options, checked against its registry without importing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import core_schema

from probmetric import losses, models, uncertainty
from probmetric.data import views
from probmetric.registry import Registry, nearest

Fidelity = Literal["corrected", "as_published"]
Seed = Annotated[int, Field(ge=0, le=2**63)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]


class Strict(BaseModel):
    """Base of all settings: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class Component(Strict):
    """A registered name with options; in YAML `name` or `{name: ..., option: value}`."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "options" not in value:
            rest = {key: option for key, option in value.items() if key != "name"}
            return {"name": value.get("name"), "options": rest}
        return value


@dataclass(frozen=True)
class RegisteredIn:
    """Marks a component that must be one of `registry`, with options it takes; editors learn the names."""

    registry: Registry
    flag: str | None = None
    lacks: str = ""

    def names(self) -> list[str]:
        """Allowed names: all, or those whose class sets `flag`; others are said to be what `lacks` says."""
        return [name for name in self.registry.names() if self._allows(name)]

    def _allows(self, name: str) -> bool:
        return self.flag is None or bool(self.registry.constant(name, self.flag))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, component: Component) -> Component:
        if not self._allows(self.registry.check(component.name)):
            found = f"{self.registry.kind} {component.name!r} {self.lacks}"
            raise ValueError(f"{found}; {nearest(component.name, self.names())}")
        options = self.registry.check_options(component.name, component.options)
        return component.model_copy(update={"options": options})

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        names = {"enum": self.names()}
        long_form = {"type": "object", "properties": {"name": names}, "required": ["name"]}
        text = f"a {self.registry.kind} by name, or with options"
        return {"description": text, "anyOf": [names, long_form]}


Loss = Annotated[Component, RegisteredIn(losses.REGISTRY)]
UncertaintyChoice = Annotated[Component, RegisteredIn(uncertainty.REGISTRY)]
Objective = Annotated[Component, RegisteredIn(uncertainty.REGISTRY, "trains_encoder", "has no objective to train with")]
Backbone = Annotated[Component, RegisteredIn(models.REGISTRY)]
OWN_VIEW = "own"


def _with_name(value: Any) -> Any:
    """Options without a name change the dataset's own view."""
    return {"name": OWN_VIEW} | value if isinstance(value, dict) else value


@dataclass(frozen=True)
class OwnOrRegistered(RegisteredIn):
    """A registered name, or none: the view of the dataset at hand, whose options planning checks."""

    def names(self) -> list[str]:
        """Registered names, and the one that stands for the dataset's own view."""
        return [OWN_VIEW, *super().names()]

    def _check(self, component: Component) -> Component:
        return component if component.name == OWN_VIEW else super()._check(component)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        names = {"enum": self.names()}
        text = "a view by name, or options; without a name, of the dataset's own view"
        return {"description": text, "anyOf": [names, {"type": "object", "properties": {"name": names}}]}


View = Annotated[Component, OwnOrRegistered(views.REGISTRY), BeforeValidator(_with_name)]


@dataclass(frozen=True)
class PartOf:
    """Marks a mapping that holds some of the settings of `model`."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: dict[str, Any]) -> dict[str, Any]:
        self.model(**value)
        return value

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return handler(self.model.__pydantic_core_schema__)


def as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]
