"""Define the files that a user writes: `params.yaml`, experiments, methods and hyper-parameter searches."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from probmetric.config.components import (
    BackboneChoice,
    Fidelity,
    LossChoice,
    ObjectiveChoice,
    PartOf,
    Rate,
    Seed,
    Strict,
    UncertaintyChoice,
    ViewChoice,
)
from probmetric.config.settings import DEFAULT_BACKBONE, DEFAULT_UNCERTAINTY, Dim, Evaluation, Training
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.errors import holds_secret, nearest
from probmetric.io import FileError
from probmetric.io.folders import check_apart
from probmetric.registry import load_plugins
from probmetric.runs.folder import Step
from probmetric.runs.names import RESULTS, LabelNoise

Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+(-[a-z0-9_]+)*$")]


class DataSource(Strict):
    """The source and options of a dataset; in YAML `{source: cub, protocol: vmf}`.

    Datasets with the same source share its archives and differ in options, such as the protocol.
    """

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    source: str = Field(description="name of a source: a file in src/probmetric/data/sources, or of a plugin")
    raw: str | None = Field(
        None, description="folder with the archives, if it is not `data.raw`; `~` and `$NAME` are expanded"
    )
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat_form(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "options" in value:
            return value
        place = {key: entry for key, entry in value.items() if key in ("source", "raw")}
        return place | {"options": {key: entry for key, entry in value.items() if key not in place}}

    @model_validator(mode="after")
    def _exists(self) -> DataSource:
        DATASETS.check_options(DATASETS.check(self.source), self.options)
        if self.raw is None and DATASETS.constant(self.source, "needs_raw", False):
            raise ValueError(
                f"source {self.source!r} reads your own folder; name it: {{source: {self.source}, raw: ...}}"
            )
        return self


class DataFolders(Strict):
    """The folders of data, relative to the repository, and the datasets read from the user's archives."""

    raw: str = "data/raw"
    prepared: str = "data/prepared"
    seed: Seed = 0
    options: dict[str, dict[str, Any]] = Field(
        {}, description="name in `datasets` -> options of its source, such as {glyphs: {per_class: 24}}"
    )
    on_request: dict[Name, DataSource] = Field(
        {}, description="name -> source and its options; prepared when an experiment names it, not by `dvc repro`"
    )

    @field_validator("prepared")
    @classmethod
    def _prepared_is_plain(cls, value: str) -> str:
        if set(value) & set("~${}"):
            raise ValueError(f"{value!r} has one of ~ $ {{ }}, which are not expanded here; write the path out")
        return value

    @model_validator(mode="after")
    def _apart(self) -> DataFolders:
        made: dict[str, str | Path] = {"data.prepared": self.prepared, "results": RESULTS, "state": "state"}
        raw = {self.raw_of(entry): f"data.on_request.{name}.raw" for name, entry in self.on_request.items()}
        raw[Path(self.raw)] = "data.raw"
        try:
            check_apart(made)
            for place, name in raw.items():
                check_apart({name: place, **made})
        except FileError as error:
            raise ValueError(str(error)) from None
        return self

    def raw_of(self, source: DataSource) -> Path:
        """Return the place of the raw files of `source`, with `~`, `~user` and `$NAME` expanded."""
        return Path(os.path.expanduser(os.path.expandvars(source.raw or self.raw)))  # noqa: PTH111 - never raises

    @field_validator("options")
    @classmethod
    def _options_exist(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, options in value.items():
            DATASETS.check_options(DATASETS.check(name), options)
        return value


class Noise(Strict):
    """Label noise of datasets: `dvc repro` makes `datasets` x `variants`; the others are made on request.

    A variant is written like the end of its folder's name: `noise0.2` (uniform), `nearest0.2` (one of the most similar
    classes), `nearest0.2s1` (drawn with seed 1 instead of 0).
    """

    datasets: tuple[str, ...] = ()
    on_request: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    @field_validator("variants")
    @classmethod
    def _variants_are_noise(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                LabelNoise.parse(text)
            except FileError as error:
                raise ValueError(str(error)) from None
        return value


def check_store(address: str) -> str:
    """Return the address of an MLflow store.

    Raises:
        ValueError: the address holds a password or token, which plans, logs and messages would repeat.
    """
    if holds_secret(address):
        raise ValueError(
            "the address of the MLflow store or of its artifacts holds a password; leave it out and set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN), for PostgreSQL "
            "PGPASSWORD."
        )
    return address


class Tracking(Strict):
    """The MLflow view of the results."""

    store: Annotated[str, AfterValidator(check_store)] = "sqlite:///mlflow.db"
    artifacts: Annotated[str, AfterValidator(check_store)] = "mlartifacts"


class Defaults(Strict):
    """Settings every method starts from."""

    backbone: BackboneChoice = DEFAULT_BACKBONE
    dim: Dim = 64
    pretrained: str | bool | None = None
    view: ViewChoice | None = Field(
        None, description="how images become the network's input; unset: the dataset's own view"
    )
    training: Training = Training()


MOST_WHOLE = 1000  # most numbers that an integer range may have


class SearchRange(Strict):
    """The values that a search tries for one setting: an interval, or a list of choices."""

    low: float | None = None
    high: float | None = None
    log: bool = Field(False, description="search the logarithm; for rates, scales and weights")
    integer: bool = False
    choices: tuple[float | int | str | bool, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> SearchRange:
        if (self.low is not None and self.high is not None) == bool(self.choices):
            raise ValueError("give either `low` and `high`, or `choices`")
        if self.choices:
            return self
        low, high = self.interval
        if not low < high:
            raise ValueError(f"low {low:g} must be below high {high:g}")
        if self.integer and not (low % 1 == 0 == high % 1 and high - low < MOST_WHOLE):
            raise ValueError(
                f"an integer range from {low:g} to {high:g}; expected whole numbers, at most {MOST_WHOLE:,} of them, "
                "since each is checked. Give `choices` of many"
            )
        if self.log and low <= 0:
            raise ValueError(f"a logarithmic range starts above 0, not at {low:g}")
        return self

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high) of a range that is an interval."""
        if self.low is None or self.high is None:
            raise ValueError("a list of choices has no interval")
        return self.low, self.high

    @property
    def checked(self) -> Sequence[float | int | str | bool]:
        """Values to check before a search: all choices, all whole numbers; else both ends and a fraction between."""
        if self.choices:
            return self.choices
        low, high = self.interval
        return range(int(low), int(high) + 1) if self.integer else (low, low + (high - low) / math.e, high)


class Method(Strict):
    """A named composition: loss x uncertainty x backbone, and settings that differ from the defaults.

    With `base`, no encoder is trained: the encoder of method `base` (same dataset, noise and seed) gets another
    uncertainty. With `objective`, an uncertainty shapes training around the loss. With `like`, the method is another
    one with some settings changed.
    """

    label: str = Field("", pattern=r"^[^\x00-\x1f\x7f]*$", description="what reports call it; one line")
    like: str | None = Field(None, description="the method this one is, apart from `change` and `per_dataset`")
    base: str | None = None
    loss: LossChoice | None = None
    objective: ObjectiveChoice | None = None
    uncertainty: UncertaintyChoice = DEFAULT_UNCERTAINTY
    backbone: BackboneChoice | None = None
    dim: Dim | None = None
    pretrained: str | bool | None = Field(
        None, description="a weight file, or true for the weights the backbone publishes itself"
    )
    view: ViewChoice | None = Field(
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
        written = [key for key in described if getattr(self, key) not in (None, {})]
        if self.base and written:
            raise ValueError(f"`base: {self.base}` brings that method's encoder; remove {', '.join(written)}")
        written += [key for key in ("base", "uncertainty", "fidelity") if key in self.model_fields_set]
        if self.like and written:
            raise ValueError(f"`like: {self.like}` copies that method; under `change` write {', '.join(written)}")
        if self.objective and not self.loss:
            raise ValueError(f"objective {self.objective.name!r} wraps the method's loss; set `loss` too")
        return self


class Methods(Strict):
    """A file of workflow/methods, with its methods by name at the top level."""

    methods: dict[str, Method] = Field(default_factory=dict)


class Preset(Strict):
    """Settings that make any experiment small enough for a laptop; the name of a run contains its preset."""

    description: str = ""
    seeds: int = Field(1, ge=1, description="of each block of runs, at most the first so many seeds")
    set: dict[str, Any] = Field(
        min_length=1,
        description="settings by dotted key; options of components (uncertainty.samples) where the component has them",
    )


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _seed_list(value: Any) -> Any:
    """Refuse a single number, which could be a seed or the number of seeds."""
    if isinstance(value, int) and not isinstance(value, bool):
        several = ", ".join(map(str, range(min(max(value, 1), 10))))
        raise ValueError(f"{value} is no list of seeds; write [{value}] for seed {value}, or [{several}] for so many")
    return value


Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_seed_list)]


class Grid(Strict):
    """A block of runs: the product of its lists."""

    datasets: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    noise: tuple[Rate, ...] = Field((0.0,), min_length=1)
    splits: int = Field(
        1,
        ge=1,
        le=100,
        description="into how many different training and test classes the classes are split, each with every seed",
    )
    seeds: Seeds = Field((0, 1, 2), min_length=1)
    set: dict[str, Annotated[tuple[Any, ...], Field(min_length=1), BeforeValidator(_as_list)]] = Field(
        {}, description="overrides by dotted key (training.epochs, loss.scale, dim): each value or list of values"
    )


class Experiment(Strict):
    """One table or figure of a paper, or a study: its runs, and what its report shows."""

    title: str
    description: str = ""
    runs: tuple[Grid, ...] = Field(min_length=1)
    methods: dict[str, Method] = Field(default_factory=dict)
    metrics: tuple[str, ...] = Field(("retrieval/recall_at_1", "retrieval/map_at_r"), min_length=1)
    figures: tuple[str, ...] = ("metric_per_method", "learning_curves")
    plan: str = Field(
        "",
        pattern="^([0-9a-f]{12})?$",
        description="digest of the plan as it was committed before any test result existed: reports print it and say "
        "whether it is still the plan; write twelve zeros, and `snakemake -n` says what it is",
    )


class Params(Strict):
    """`params.yaml`: the single configuration, read by DVC and by Snakemake."""

    plugins: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = Field(
        (), description="modules or packages, of this folder or installed, whose components can be named: my_package"
    )
    experiments: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ("demo",)
    runs: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = Field(
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
        """Load the plugins, in the first field, so that their components are known when the others are checked."""
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
            if dataset in others:
                raise ValueError(f"ood.{dataset} names {dataset!r} itself; name other datasets")
        for name, method in self.methods.items():
            if method.base:
                _require([method.base], self.methods, f"methods.{name}.base")
        return self


def _require(names: Iterable[str], declared: Iterable[str], where: str) -> None:
    for name in names:
        if name not in declared:
            raise ValueError(f"{where}: {name!r} is not declared. {nearest(name, declared)}")


class Tuning(Strict):
    """A search that gives every method the same number of training runs, judged on validation data only."""

    title: str
    description: str = ""
    dataset: str
    noise: Rate = 0.0
    methods: tuple[str, ...] = Field(min_length=1)
    trials: int = Field(16, ge=1, description="settings tried per method; every method has the same budget")
    startup_trials: int = Field(6, ge=1, description="trials drawn at random before the search learns from results")
    batch: int = Field(4, ge=1, description="trials of a method chosen, and trained, at once")
    seeds: tuple[Seed, ...] = Field((0,), min_length=1, description="runs per trial; their mean is the objective")
    folds: int = Field(
        1,
        ge=1,
        le=20,
        description="choices of validation classes: the runs of a trial take them in turn, seed k the k-th "
        "(cross-validation over classes); where there are more folds than seeds, seeds come again",
    )
    search_seed: Seed = 0
    set: dict[str, Any] = Field(default_factory=dict, description="overrides all trials share, such as training.epochs")
    ranges: dict[str, SearchRange] = Field(
        default_factory=dict, description="settings searched for every method, besides the method's own `search`"
    )
    spaces: dict[str, dict[str, SearchRange]] = Field(
        default_factory=dict, description="settings searched for one of the methods: method -> setting -> range"
    )
    named: str = Field("{method}-tuned-{search}", description="names of the tuned methods")
    posteriors: tuple[str, ...] = Field(
        (), description="methods without training of their own whose `base` is tuned: each gets a tuned one too"
    )
    studies: dict[str, Annotated[dict[str, Any], PartOf(Experiment)]] = Field(
        default_factory=dict,
        description="experiments that are written and built when the search is done, by their names, which "
        "begin with `tuned-`; among their "
        "methods `tuned` stands for all tuned ones and `untuned` for the same as they were",
    )

    @model_validator(mode="after")
    def _names(self) -> Tuning:
        name = re.sub(r"\{(method|search)\}", "m", self.named)
        if "{method}" not in self.named or not re.fullmatch(r"\w[\w.-]+", name, re.ASCII):
            raise ValueError(
                f"named: {self.named!r} does not give each method a name of its own; write {{method}}, with letters, "
                "digits and _.- around it (and {search} if you like), such as tuned-{method}"
            )
        for key in ("methods", "posteriors", "seeds"):
            for value, count in Counter(getattr(self, key)).items():
                if count > 1:
                    raise ValueError(f"{key}: {value!r} is there {count} times, so budgets would differ; name it once")
        if strangers := [name for name in self.spaces if name not in self.methods]:
            raise ValueError(f"spaces: {', '.join(strangers)} is not among `methods`")
        if wrong := [name for name in self.studies if not re.fullmatch(r"tuned-[a-z0-9_-]+", name)]:
            raise ValueError(
                f"studies: {wrong[0]!r} is no allowed name; write tuned- and then lower-case letters, digits, _ and -, "
                "so that it replaces no experiment of yours and can be built"
            )
        return self

    @property
    def budget(self) -> int:
        """Count the training runs spent on each method."""
        return self.trials * len(self.runs)

    @property
    def runs(self) -> tuple[tuple[Seed, int], ...]:
        """Pair the seed of each run of a trial with its fold, so that every seed and every fold occurs."""
        count = max(len(self.seeds), self.folds)
        return tuple((self.seeds[k % len(self.seeds)], k % self.folds) for k in range(count))
