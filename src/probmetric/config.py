"""Configuration: `params.yaml` and the experiment files, validated before any job exists.

Every model forbids unknown keys, and component names and options are checked against the registries, which read
source text only: a misspelt key or option is found in milliseconds, without loading PyTorch. `ConfigError` states
where, the value, what is allowed and the nearest match.
"""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from probmetric import losses, models, uncertainty
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.errors import ProbMetricError
from probmetric.io import FileError, read_yaml
from probmetric.names import data_name
from probmetric.registry import Registry, nearest

Fidelity = Literal["corrected", "as_published"]
Seed = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]


class ConfigError(ProbMetricError, ValueError):
    """The configuration cannot be run; the message says where and what is allowed."""


class Strict(BaseModel):
    """Base of all settings: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


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
    constant: str | None = None
    lacks: str = ""

    def names(self) -> list[str]:
        """Allowed names: all, or those whose class sets `constant`; others are said to be what `lacks` says."""
        found = self.registry.names()
        return [name for name in found if self.registry.constant(name, self.constant)] if self.constant else found

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, component: Component) -> Component:
        allowed = self.names()
        if self.registry.check(component.name) not in allowed:
            found = f"{self.registry.kind} {component.name!r} {self.lacks}"
            raise ValueError(f"{found}; {nearest(component.name, allowed)}")
        self.registry.check_options(component.name, component.options)
        return component

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        names = {"enum": self.names()}
        long_form = {"type": "object", "properties": {"name": names}, "required": ["name"]}
        text = f"a {self.registry.kind} by name, or with options"
        return {"description": text, "anyOf": [names, long_form]}


Loss = Annotated[Component, RegisteredIn(losses.REGISTRY)]
UncertaintyChoice = Annotated[Component, RegisteredIn(uncertainty.REGISTRY)]
Objective = Annotated[Component, RegisteredIn(uncertainty.REGISTRY, "trains_encoder", "has no objective to train with")]
Backbone = Annotated[Component, RegisteredIn(models.REGISTRY)]


class Training(Strict):
    """How an encoder is trained."""

    epochs: int = Field(15, ge=0, description="passes over the training set; 0 leaves the network untrained")
    batch_size: int = Field(96, ge=2)
    images_per_class: int = Field(4, ge=1, description="K of the class-balanced sampler; 1 with plain shuffling")
    sampler: Literal["balanced", "shuffle"] = "balanced"
    max_steps_per_epoch: int | None = Field(None, ge=1)
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    schedule: Literal["constant", "cosine", "multistep", "plateau", "exponential"] = "cosine"
    milestones: tuple[int, ...] = ()
    gamma: float = Field(0.1, gt=0, le=1)
    warmup_epochs: int = Field(0, ge=0, description="epochs in which only the new layers and the proxies train")
    patience: int = Field(0, ge=0, description="validations without improvement before stopping; 0 never stops")
    gradient_clip: float | None = Field(None, gt=0)
    precision: Literal["auto", "float32", "bf16"] = "auto"
    channels_last: bool = True
    batch_norm: Literal["train", "frozen"] = "train"
    augment: Literal["none", "standard", "vmf", "lam"] = "standard"
    validate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(1, ge=1, description="epochs between checkpoints")
    selection_metric: Literal["recall_at_1", "map_at_r", "accuracy"] = "recall_at_1"


class Evaluation(Strict):
    """What is measured on the embeddings."""

    ks: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2, 4, 8)
    calibration_bins: int = Field(15, ge=2)
    clustering: bool = True
    seed: Seed = 0


class Noise(Strict):
    """Label-noise variants DVC prepares: every dataset x rate."""

    datasets: tuple[str, ...] = ()
    rates: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...] = ()
    kind: Literal["uniform"] = "uniform"
    seed: Seed = 0


class DataFolders(Strict):
    """Where data lies, relative to the repository."""

    raw: str = "data/raw"
    prepared: str = "data/prepared"
    seed: Seed = 0
    options: dict[str, dict[str, Any]] = Field(
        {}, description="dataset -> options of its source, such as {cub: {protocol: vmf, shorter_side: 256}}"
    )

    @field_validator("options")
    @classmethod
    def _options_exist(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, options in value.items():
            DATASETS.check_options(DATASETS.check(name), options)
        return value


class Tracking(Strict):
    """The MLflow view of the results."""

    store: str = "sqlite:///mlflow.db"
    artifacts: str = "mlartifacts"


class Defaults(Strict):
    """Settings every method starts from."""

    backbone: Backbone = Component(name="compact")
    dim: int = Field(64, ge=2)
    pretrained: str | None = None
    training: Training = Training()


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


class Method(Strict):
    """A named composition: loss x uncertainty x backbone, and what deviates from the defaults.

    With `base`, nothing is trained: the encoder of method `base` (same dataset, noise and seed) is given another
    uncertainty. With `objective`, an uncertainty shapes training around the loss.
    """

    label: str = ""
    base: str | None = None
    loss: Loss | None = None
    objective: Objective | None = None
    uncertainty: UncertaintyChoice = Component(name="norm")
    backbone: Backbone | None = None
    dim: int | None = Field(None, ge=2)
    pretrained: str | None = None
    fidelity: Fidelity = "corrected"
    training: Annotated[dict[str, Any], PartOf(Training)] = {}

    @model_validator(mode="after")
    def _base_is_enough(self) -> Method:
        described = ("loss", "objective", "backbone", "dim", "pretrained", "training")
        given = [key for key in described if getattr(self, key)]
        if self.base and given:
            raise ValueError(f"with `base: {self.base}` the encoder is that method's; remove {', '.join(given)}")
        if self.objective and not self.loss:
            raise ValueError(f"objective {self.objective.name!r} wraps the method's loss; set `loss` too")
        return self


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class Grid(Strict):
    """A block of runs: the product of its lists."""

    datasets: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    noise: tuple[Rate, ...] = (0.0,)
    seeds: tuple[Seed, ...] = Field((0, 1, 2), min_length=1)
    set: dict[str, Annotated[tuple[Any, ...], BeforeValidator(_as_list)]] = Field(
        {}, description="overrides by dotted key (training.epochs, loss.scale, dim): each value or list of values"
    )


class Experiment(Strict):
    """One table or figure of a paper, or a study: which runs, and what to show of them."""

    title: str
    description: str = ""
    runs: tuple[Grid, ...] = Field(min_length=1)
    methods: dict[str, Method] = {}
    metrics: tuple[str, ...] = ("retrieval/recall_at_1", "retrieval/map_at_r")
    figures: tuple[str, ...] = ("metric_per_method", "learning_curves")


class Params(Strict):
    """`params.yaml`: the single configuration, read by DVC and by Snakemake."""

    experiments: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ("demo",)
    data: DataFolders = DataFolders()
    datasets: tuple[str, ...] = Field(min_length=1)
    noise: Noise = Noise()
    ood: dict[str, tuple[str, ...]] = {}
    defaults: Defaults = Defaults()
    methods: dict[str, Method] = {}
    evaluation: Evaluation = Evaluation()
    tracking: Tracking = Tracking()

    @field_validator("datasets")
    @classmethod
    def _datasets_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            DATASETS.check(name)
        return value

    @model_validator(mode="after")
    def _references_exist(self) -> Params:
        for where, names in [("noise.datasets", self.noise.datasets), ("ood", tuple(self.ood))]:
            _require(names, self.datasets, where)
        for dataset, others in self.ood.items():
            _require(others, self.datasets, f"ood.{dataset}")
        for name, method in self.methods.items():
            if method.base:
                _require([method.base], self.methods, f"methods.{name}.base")
        return self


def _require(names: typing.Iterable[str], known: typing.Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: {name!r} is not declared. {nearest(name, known)}")


class EncoderSettings(Strict):
    """Everything that decides an encoder's weights, fully resolved."""

    dataset: str
    noise: Rate = 0.0
    method: str
    seed: Seed = 0
    fidelity: Fidelity = "corrected"
    loss: Loss | None = None
    objective: Objective | None = None
    backbone: Backbone = Component(name="compact")
    dim: int = Field(64, ge=2)
    pretrained: str | None = None
    training: Training = Training()
    prepared: str = "data/prepared"

    @property
    def data(self) -> str:
        """Name of the prepared dataset: `glyphs`, `glyphs+noise0.2`."""
        return data_name(self.dataset, self.noise)

    def plain(self) -> dict[str, Any]:
        """Plain values for YAML and JSON; the class called with them gives equal settings.

        A run without an objective is described without that key, as before there were any: it is not repeated.
        """
        values = self.model_dump(mode="json")
        return {key: value for key, value in values.items() if key != "objective" or value is not None}


class RunSettings(EncoderSettings):
    """Everything that decides a run's results, fully resolved; `run.yaml` holds it.

    With `base`, the encoder settings are those of the method named there.
    """

    label: str = ""
    base: str | None = None
    uncertainty: UncertaintyChoice = Component(name="norm")
    ood: tuple[str, ...] = ()
    evaluation: Evaluation = Evaluation()

    def encoder(self) -> EncoderSettings:
        """The part the training step depends on."""
        fields = {name: getattr(self, name) for name in EncoderSettings.model_fields}
        return EncoderSettings(**(fields | {"method": self.base or self.method}))


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
