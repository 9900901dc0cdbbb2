"""Everything that decides one run, fully resolved."""

from __future__ import annotations

from typing import Any

from pydantic import Field

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
from probmetric.run_names import data_name


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

        A run without an objective or view of its own is described without that key.
        """
        values = self.model_dump(mode="json")
        for optional in ("objective", "view"):
            if values[optional] is None:
                del values[optional]
        return values


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
