"""Everything that decides one run, fully resolved."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from probmetric import losses
from probmetric.config._components import (
    Backbone,
    Component,
    Fidelity,
    Loss,
    Objective,
    Rate,
    Seed,
    Strict,
    UncertaintyChoice,
    View,
)
from probmetric.config._params import Evaluation
from probmetric.config._training import Training
from probmetric.io import digest_of
from probmetric.runs.names import data_name

_NUMBERS = ("learning_rate", "weight_decay", "gradient_clip")


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
    pretrained: str | bool | None = None
    view: View | None = None
    training: Training = Training()
    prepared: str = "data/prepared"

    @property
    def data(self) -> str:
        """Name of the prepared dataset: `glyphs`, `glyphs+noise0.2`."""
        return data_name(self.dataset, self.noise)

    def plain(self) -> dict[str, Any]:
        """Plain values for YAML and JSON; the class called with them gives equal settings.

        A run without an objective or view of its own, that leaves the sharding of its proxies to us, or that is trained
        for itself, is described without that key, as before there were any: it is not repeated.
        """
        values = self.model_dump(mode="json")
        for optional in ("objective", "view"):
            if values[optional] is None:
                del values[optional]
        if values["training"]["shard_proxies"] == "auto":
            del values["training"]["shard_proxies"]
        if values["training"]["stack"] == 1:
            del values["training"]["stack"]
        return values

    @property
    def stackable(self) -> str:
        """Digest of what runs have in common that can be stacked.

        It is everything that decides the encoder but the seed and numbers: options of the loss that are floats, rates,
        weight decay and the clipping of gradients.
        """
        values = {name: value for name, value in self.plain().items() if name not in ("seed", "method")}
        values["training"] = {name: value for name, value in values["training"].items() if name not in _NUMBERS}
        if self.loss:
            known = losses.REGISTRY.options(self.loss.name)
            kept = {name: value for name, value in self.loss.options.items() if "float" not in known[name].types}
            values["loss"] = {"name": self.loss.name, "options": kept}
        return digest_of(values)


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
