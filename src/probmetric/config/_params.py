"""`params.yaml` and the experiment files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from probmetric.config._components import (
    Backbone,
    Component,
    Fidelity,
    Loss,
    Objective,
    PartOf,
    Rate,
    Seed,
    Strict,
    UncertaintyChoice,
    View,
    as_list,
)
from probmetric.config._data import DataFolders, Noise
from probmetric.config._training import Training
from probmetric.config._tuning import SearchRange
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.registry import load_plugins, nearest
from probmetric.runs.folder import Step


class Evaluation(Strict):
    """What is measured on the embeddings."""

    ks: tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...] = (1, 2, 4, 8)
    calibration_bins: int = Field(15, ge=2, le=10**6)
    clustering: bool = True
    proxies: bool = Field(False, description="distances of proxies to training embeddings; one more pass over those")
    training_images: bool = Field(False, description="structure of the training embeddings; one more pass over those")
    seed: int = Field(0, ge=0, le=2**31 - 1)


class Tracking(Strict):
    """The MLflow view of the results."""

    store: str = "sqlite:///mlflow.db"
    artifacts: str = "mlartifacts"


class Defaults(Strict):
    """Settings every method starts from."""

    backbone: Backbone = Component(name="compact")
    dim: int = Field(64, ge=2)
    pretrained: str | bool | None = None
    view: View | None = Field(None, description="how images become the network's input; unset: the dataset's own view")
    training: Training = Training()


class Method(Strict):
    """A named composition: loss x uncertainty x backbone, and what deviates from the defaults.

    With `base`, nothing is trained: the encoder of method `base` (same dataset, noise and seed) is given another
    uncertainty. With `objective`, an uncertainty shapes training around the loss. With `like`, the method is that one
    with some settings changed.
    """

    label: str = Field("", pattern=r"^[^\x00-\x1f\x7f]*$", description="what reports call it; one line")
    like: str | None = Field(None, description="the method this one is, apart from `change` and `per_dataset`")
    base: str | None = None
    loss: Loss | None = None
    objective: Objective | None = None
    uncertainty: UncertaintyChoice = Component(name="norm")
    backbone: Backbone | None = None
    dim: int | None = Field(None, ge=2)
    pretrained: str | bool | None = Field(
        None, description="a weight file, or true for the weights the backbone publishes itself"
    )
    view: View | None = Field(
        None, description="size, crop, normalisation and augmentation; without a name, of the dataset's own view"
    )
    fidelity: Fidelity = "corrected"
    training: Annotated[dict[str, Any], PartOf(Training)] = Field(default_factory=dict)
    change: dict[str, Any] = Field(
        default_factory=dict, description="settings by dotted key (loss.scale, training.epochs, fidelity, dim)"
    )
    per_dataset: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="dataset -> settings by dotted key that hold on that dataset only"
    )
    search: dict[str, SearchRange] = Field(
        default_factory=dict, description="settings `probmetric tune` searches: dotted key (loss.scale) -> range"
    )
    budget: int = Field(0, ge=0, description="training runs spent on choosing these settings; tables show it")
    tuned_on: str = Field("", description="dataset these settings were chosen on; claims tested on another one say so")

    @model_validator(mode="after")
    def _one_origin(self) -> Method:
        described = ("loss", "objective", "backbone", "dim", "pretrained", "view", "training")
        given = [key for key in described if getattr(self, key)]
        if self.base and given:
            raise ValueError(f"with `base: {self.base}` the encoder is that method's; remove {', '.join(given)}")
        given += [key for key in ("base", "uncertainty", "fidelity") if key in self.model_fields_set]
        if self.like and given:
            raise ValueError(f"with `like: {self.like}` write what differs into `change`, not as {', '.join(given)}")
        if self.objective and not self.loss:
            raise ValueError(f"objective {self.objective.name!r} wraps the method's loss; set `loss` too")
        return self


class Methods(Strict):
    """A file of workflow/methods: its methods by name, which the file holds at its top level."""

    methods: dict[str, Method] = Field(default_factory=dict)


class Preset(Strict):
    """Settings that make any experiment small enough for a laptop; a run that has one says so in its name."""

    description: str = ""
    seeds: int = Field(1, ge=1, description="of each block of runs, at most the first so many seeds")
    set: dict[str, Any] = Field(
        min_length=1,
        description="settings by dotted key; options of components (uncertainty.samples) where the component has them",
    )


def _listed(value: Any) -> Any:
    """Seeds as a list; one number could be a seed or how many."""
    if isinstance(value, int) and not isinstance(value, bool):
        several = ", ".join(map(str, range(min(max(value, 1), 10))))
        raise ValueError(f"{value} is no list of seeds; write [{value}] for seed {value}, or [{several}] for so many")
    return value


Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_listed)]


class Grid(Strict):
    """A block of runs: the product of its lists."""

    datasets: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    noise: tuple[Rate, ...] = (0.0,)
    seeds: Seeds = Field((0, 1, 2), min_length=1)
    set: dict[str, Annotated[tuple[Any, ...], BeforeValidator(as_list)]] = Field(
        {}, description="overrides by dotted key (training.epochs, loss.scale, dim): each value or list of values"
    )


class Experiment(Strict):
    """One table or figure of a paper, or a study: which runs, and what to show of them."""

    title: str
    description: str = ""
    runs: tuple[Grid, ...] = Field(min_length=1)
    methods: dict[str, Method] = Field(default_factory=dict)
    metrics: tuple[str, ...] = ("retrieval/recall_at_1", "retrieval/map_at_r")
    figures: tuple[str, ...] = ("metric_per_method", "learning_curves")


class Params(Strict):
    """`params.yaml`: the single configuration, read by DVC and by Snakemake."""

    plugins: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        (), description="modules or packages, of this folder or installed, whose components can be named: my_package"
    )
    experiments: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ("demo",)
    runs: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        (), description="further runs to make, by name, as below results/"
    )
    data: DataFolders = DataFolders()
    datasets: tuple[str, ...] = Field(min_length=1)
    noise: Noise = Noise()
    ood: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    defaults: Defaults = Defaults()
    methods: dict[str, Method] = Field(default_factory=dict)
    presets: dict[str, Preset] = Field(
        default_factory=dict, description="for `snakemake --config experiments=<name>@<dataset>[+<preset>]`"
    )
    evaluation: Evaluation = Evaluation()
    tracking: Tracking = Tracking()
    until: Step = Field("evaluate", description="the step that runs end with; a search of settings ends with train")

    @field_validator("plugins")
    @classmethod
    def _plugins_are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """The first field: its components are known when the others are checked."""
        load_plugins(value)
        return value

    @field_validator("datasets")
    @classmethod
    def _datasets_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            DATASETS.check(name)
        return value

    @model_validator(mode="after")
    def _references_exist(self) -> Params:
        declared = (*self.datasets, *self.data.on_request)
        for name in self.datasets:
            if name in self.data.on_request:
                raise ValueError(f"{name!r} is in `datasets` and in `data.on_request`; keep one of them")
        _require(self.data.options, self.datasets, "data.options")
        _require(self.noise.datasets, self.datasets, "noise.datasets")
        _require(self.noise.on_request, self.data.on_request, "noise.on_request")
        _require(self.ood, declared, "ood")
        for dataset, others in self.ood.items():
            _require(others, declared, f"ood.{dataset}")
        for name, method in self.methods.items():
            if method.base:
                _require([method.base], self.methods, f"methods.{name}.base")
        return self


def _require(names: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: {name!r} is not declared. {nearest(name, known)}")
