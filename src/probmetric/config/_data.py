"""Where data lies, which datasets are declared, and which label noise is put on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from probmetric.config._components import Seed, Strict
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.io import FileError, check_apart
from probmetric.runs.names import RESULTS, LabelNoise

Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+(-[a-z0-9_]+)*$")]


class DataSource(Strict):
    """What a dataset's name stands for; in YAML `{source: cub, protocol: vmf}`: the source, then its options.

    Datasets with one source share its archives and differ in options, such as the protocol.
    """

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    source: str = Field(description="name of a source: a file in src/probmetric/data/sources, or of a plugin")
    raw: str | None = Field(None, description="folder with the archives, if it is not `data.raw`")
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat_form(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "options" in value:
            return value
        own = {key: entry for key, entry in value.items() if key in ("source", "raw")}
        return own | {"options": {key: entry for key, entry in value.items() if key not in own}}

    @model_validator(mode="after")
    def _exists(self) -> DataSource:
        DATASETS.check_options(DATASETS.check(self.source), self.options)
        if self.raw is None and DATASETS.constant(self.source, "needs_raw", False):
            raise ValueError(
                f"source {self.source!r} reads your own folder; name it: {{source: {self.source}, raw: ...}}"
            )
        return self


class DataFolders(Strict):
    """Where data lies, relative to the repository, and the datasets read from the user's archives."""

    raw: str = "data/raw"
    prepared: str = "data/prepared"
    seed: Seed = 0
    options: dict[str, dict[str, Any]] = Field(
        {}, description="name in `datasets` -> options of its source, such as {glyphs: {per_class: 24}}"
    )
    on_request: dict[Name, DataSource] = Field(
        {}, description="name -> source and its options; prepared when an experiment names it, not by `dvc repro`"
    )

    @model_validator(mode="after")
    def _apart(self) -> DataFolders:
        made: dict[str, str | Path] = {"data.prepared": self.prepared, "results": RESULTS, "state": "state"}
        raw = {"data.raw": self.raw} | {
            f"data.on_request.{name}.raw": entry.raw for name, entry in self.on_request.items() if entry.raw
        }
        try:
            check_apart(made)
            for name, place in raw.items():
                check_apart({name: place, **made})
        except FileError as error:
            raise ValueError(str(error)) from None
        return self

    @field_validator("options")
    @classmethod
    def _options_exist(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, options in value.items():
            DATASETS.check_options(DATASETS.check(name), options)
        return value


class Noise(Strict):
    """Which label noise is put on which datasets: `datasets` x `variants` by `dvc repro`, the others on request.

    A variant is written as its folder's name ends: `noise0.2` (uniform), `nearest0.2` (one of the most similar
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
