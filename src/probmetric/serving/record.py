"""Describe a model folder (`model.json`); the record is checked before anything is built from it.

    model.json               this record: architecture, transform, uncertainty, classes, provenance, digests
    weights-<k>.safetensors  weights of member k, named encoder.* and loss.*
    uncertainty.safetensors  its posterior, if the uncertainty is fitted
    reference.safetensors    uncertainties of validation images, looks of training images, embeddings of `canary`
    README.md                model card, written from the run

No code from the folder is executed. Components are found by name among the installed ones; a model that needs plugins
names them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from probmetric.config import Component, EncoderSettings, NamedView, Strict, UncertaintyChoice
from probmetric.data.views import REGISTRY as VIEWS
from probmetric.data.views import create_view
from probmetric.data.views._base import RawTensors, View
from probmetric.io import digest_of

RECORD, CARD, POSTERIOR, REFERENCE = "model.json", "README.md", "uncertainty.safetensors", "reference.safetensors"
Count = Annotated[int, Field(ge=1, le=10**7)]
LARGEST_DIM, LARGEST_SIDE = 65_536, 4096


class Facts(Strict):
    """Sizes of a trained encoder."""

    dim: int = Field(ge=1, le=LARGEST_DIM)
    in_channels: int = Field(ge=1, le=LARGEST_DIM)
    image_size: int = Field(ge=1, le=LARGEST_DIM)
    num_classes: Count
    num_images: Annotated[int, Field(ge=0, le=10**10)] = 1
    pretrained_sha256: str | None = None


class Wrapped(Strict):
    """A user's own network: its weights are in the folder, its code is not.

    Attributes:
        kind: name of its class.
        width: length D of its output.
        head: whether a linear layer (D -> M) was added to it.
    """

    kind: Annotated[str, Field(max_length=1000)]
    width: Annotated[int, Field(ge=1, le=LARGEST_DIM)]
    head: bool


class Member(Strict):
    """One trained encoder; `network` replaces the backbone of `settings`."""

    settings: EncoderSettings
    facts: Facts
    network: Wrapped | None = None

    @model_validator(mode="after")
    def _of_a_size_that_can_be_built(self) -> Member:
        channels, side = self.facts.in_channels, self.facts.image_size
        if self.network is None and (channels > LARGEST_SIDE or side > LARGEST_SIDE):
            raise ValueError(f"images of {channels} x {side} x {side}; allowed: up to {LARGEST_SIDE} each.")
        return self


class Transform(Strict):
    """Transform from an image to the network's input: reduce its shorter side as preparation did, then apply the view.

    Inputs that are tensors of the shape `tensor` are not changed; there is no view then.
    """

    view: NamedView | None = None
    shorter_side: Annotated[int, Field(ge=0, le=100_000)] = 0
    tensor: Annotated[tuple[Annotated[int, Field(ge=1, le=LARGEST_DIM)], ...], Field(max_length=8)] = ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Transform:
        if (self.view is None) == (not self.tensor):
            raise ValueError("it names a view, or the shape of tensors; one of both.")
        return self

    @classmethod
    def of(cls, view: View, shorter_side: int = 0) -> Transform:
        """Describe a view: by name and options, or by the shape of tensors."""
        if isinstance(view, RawTensors):
            return cls(tensor=view.shape)
        name = next(name for name in VIEWS.names() if VIEWS.get(name) is type(view))
        options = json.loads(json.dumps(asdict(view)))
        return cls(view=Component(name=name, options=options), shorter_side=shorter_side)

    def created(self) -> View:
        """Create the evaluation view."""
        if self.view is None:
            return RawTensors(shape=self.tensor)
        return create_view(self.view.name, **self.view.options)


class ModelRecord(Strict):
    """Everything about a model except its tensors."""

    format: Literal[1] = 1
    name: Annotated[str, Field(max_length=1000)]
    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=64)]
    transform: Transform
    uncertainty: UncertaintyChoice
    seed: Annotated[int, Field(ge=0, le=2**63)] = 0
    classes: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    license: str = "not stated"
    provenance: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, float | None] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    reference: str = ""  # digest of the reference file, which does not influence embeddings

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides its embeddings."""
        return digest_of(self.model_dump(mode="json", include=_DECISIVE))

    @property
    def shape(self) -> tuple[int, int]:
        """Channels and side of the network's input."""
        return self.members[0].facts.in_channels, self.members[0].facts.image_size


_DECISIVE = {"members", "transform", "uncertainty", "seed", "files"}
