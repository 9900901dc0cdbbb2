"""Define the settings that decide one run, fully resolved: how its encoder is trained, and what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from probmetric.config.components import (
    BackboneChoice,
    Fidelity,
    LossChoice,
    ObjectiveChoice,
    Rate,
    Seed,
    Strict,
    UncertaintyChoice,
    ViewChoice,
)
from probmetric.registry import When
from probmetric.runs.names import data_name

Sampler = Literal["balanced", "balanced_with_replacement", "class_random", "episodic", "pairs", "shuffle"]
BY_CLASS = ("balanced", "balanced_with_replacement", "class_random", "episodic")
Epochs = Annotated[int, Field(ge=0, le=10**6)]
Some = Annotated[int, Field(ge=1, le=10**6)]
WIDEST = 2**16


def _in_range(size: Any) -> Any:
    """Refuse an impossible size of an embedding, with one message for both forms of the setting."""
    if isinstance(size, int | float) and not 2 <= size <= WIDEST:
        raise ValueError(f"an embedding has 2 to {WIDEST:,} numbers, not {size}; or write features")
    return size


Dim = Annotated[
    Annotated[int, Field(ge=2, le=WIDEST)] | Literal["features"],
    BeforeValidator(_in_range),
    Field(description="size of the embedding; features: as many as the network has before its head"),
]


class LearningRates(Strict):
    """Learning rates of the parts of an encoder; a part without its own has `training.learning_rate`."""

    trunk: float | None = Field(None, gt=0, le=1e4)
    head: float | None = Field(None, gt=0, le=1e4)


class Training(Strict):
    """How an encoder is trained."""

    epochs: Epochs = Field(15, description="passes over the training set; 0 leaves the network untrained")
    batch_size: int = Field(96, ge=2, le=2**20)
    images_per_class: Annotated[Some, When(sampler=BY_CLASS)] = Field(4, description="K of samplers that draw classes")
    sampler: Sampler = "balanced"
    steps_per_epoch: Some | None = Field(
        None, description="optimiser steps of an epoch, whatever the size of the data; unset: one pass over it"
    )
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    learning_rate: float = Field(1e-3, gt=0, le=1e4)
    learning_rates: LearningRates = LearningRates()
    layer_decay: float | None = Field(
        None, gt=0, le=1, description="factor on the trunk's learning rate from each layer to the one before it"
    )
    weight_decay: float = Field(1e-4, ge=0, le=1e4)
    weight_decay_on: Literal["all", "matrices"] = Field("all", description="matrices: not biases, norms and scales")
    momentum: Annotated[float, When(optimizer=("sgd", "rmsprop"))] = Field(0.9, ge=0, lt=1)
    nesterov: Annotated[bool, When(optimizer="sgd")] = False
    schedule: Literal["constant", "cosine", "multistep", "plateau", "exponential"] = "cosine"
    milestones: tuple[Epochs, ...] = ()
    gamma: Annotated[float, When(schedule=("multistep", "plateau", "exponential"))] = Field(0.1, gt=0, le=1)
    plateau_patience: Annotated[Some, When(schedule="plateau")] = Field(
        15, description="more validations than this without improvement are a plateau"
    )
    head_init: Literal["random", "pca", "whitening", "lda"] = Field(
        "random", description="what the linear head starts from, fitted to the features of the training images"
    )
    proxy_init: Literal["random", "class_means"] = Field(
        "random",
        description="what proxies and class weights start from; class_means: of the embeddings before the first step",
    )
    freeze: Literal["none", "trunk"] = Field("none", description="trunk: only the head and the loss train")
    train_from: str | None = Field(
        None, description="first part of the trunk that trains, such as blocks.5; what comes before it stays as it is"
    )
    lora: int | None = Field(
        None, ge=1, le=2**15, description="rank of what each linear layer of a frozen transformer learns besides"
    )
    ema: float | None = Field(
        None, gt=0, lt=1, description="decay of a moving average of the weights, which is what is chosen and written"
    )
    gradient_cache: Some | None = Field(
        None, description="images whose activations are held at once; the gradient is that of the whole batch"
    )
    warmup_epochs: Epochs = Field(0, description="epochs in which only the new layers and the proxies train")
    patience: Epochs = Field(0, description="validations without improvement before stopping; 0 never stops")
    gradient_clip: float | None = Field(None, gt=0)
    precision: Literal["auto", "float32", "bf16"] = "auto"
    channels_last: bool = True
    compile: bool = Field(False, description="torch.compile the encoder")
    deterministic: bool = Field(False, description="only kernels that give the same bits again; slower on CUDA")
    batch_norm: Literal["train", "frozen"] = "train"
    augment: Literal["none", "standard", "vmf", "lam"] = "standard"
    validate_every: Some = 1
    checkpoint_every: Some = Field(1, description="epochs between checkpoints")
    selection: Literal["validation", "refit", "as_published"] = Field(
        "validation",
        description="validation: train on the training split, choose the epoch on the validation split; refit: then "
        "train again, as many epochs, on both; as_published: train on both and keep the best TEST epoch, which leaks, "
        "as many papers do",
    )
    selection_metric: Literal["recall_at_1", "map_at_r", "accuracy"] = Field(
        "map_at_r",
        description="what chooses the epoch on the validation split, the latest of equals; recall_at_1 saturates",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if (self.freeze == "trunk") + bool(self.train_from) + bool(self.lora) > 1:
            raise ValueError(
                "freeze: trunk trains the head only, train_from a part of the trunk, lora changes of low rank; "
                "give one of them"
            )
        if self.freeze == "trunk" and (self.learning_rates.trunk or self.layer_decay):
            name = "learning_rates.trunk" if self.learning_rates.trunk else "layer_decay"
            raise ValueError(f"with freeze: trunk, {name} has no effect; remove one of the two")
        if (self.schedule == "multistep") != bool(self.milestones):
            raise ValueError("schedule: multistep and milestones belong together; give both, or neither")
        if self.optimizer == "sgd" and self.nesterov and not self.momentum:
            raise ValueError(
                "nesterov: looks ahead along the momentum, which is 0; set momentum, or leave nesterov out"
            )
        return self


def fine_tuning(images: int, batch_size: int | None = None) -> dict[str, Any]:
    """Return the settings of `training` for a whole pretrained network and `images` to train on.

    They were compared on validation classes of birds and cars (docs/guide/training.md). With few images an epoch has up
    to three passes, in batches of `batch_size`, by default that of `Training`.
    """
    once = max(images // (batch_size or Training().batch_size), 1)
    steps = min(LEAST_STEPS, MOST_PASSES * once)
    return FINE_TUNING | ({"steps_per_epoch": steps} if steps > once else {})


class Evaluation(Strict):
    """Measurements on the embeddings."""

    ks: tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...] = (1, 2, 4, 8)
    calibration_bins: int = Field(15, ge=2, le=10**6)
    clustering: bool = True
    proxies: bool = Field(False, description="distances of proxies to training embeddings; one more pass over those")
    training_images: bool = Field(False, description="structure of the training embeddings; one more pass over those")
    seed: int = Field(0, ge=0, le=2**31 - 1)


FINE_TUNING = {
    "head_init": "lda",
    "proxy_init": "class_means",
    "augment": "standard",
    "batch_norm": "frozen",
    "optimizer": "adamw",
    "learning_rate": 2e-4,
    "epochs": 10,
}
LEAST_STEPS, MOST_PASSES = 24, 3  # of an epoch

DEFAULT_BACKBONE = BackboneChoice.model_construct(name="compact", options={})
DEFAULT_UNCERTAINTY = UncertaintyChoice.model_construct(name="norm", options={})


class EncoderSettings(Strict):
    """Everything that decides an encoder's weights, fully resolved."""

    dataset: str
    noise: Rate = 0.0
    method: str
    seed: Seed = 0
    fidelity: Fidelity = "corrected"
    loss: LossChoice | None = None
    objective: ObjectiveChoice | None = None
    backbone: BackboneChoice = DEFAULT_BACKBONE
    dim: Dim = 64
    pretrained: str | bool | None = None
    view: ViewChoice | None = None
    training: Training = Training()
    prepared: str = "data/prepared"

    @property
    def data(self) -> str:
        """Name of the prepared dataset: `glyphs`, `glyphs+noise0.2`."""
        return data_name(self.dataset, self.noise)

    @property
    def learns(self) -> bool:
        """Whether a loss trains the encoder, for one epoch or more."""
        return self.loss is not None and self.training.epochs > 0

    @property
    def data_folder(self) -> Path:
        """Folder of the prepared dataset."""
        return Path(self.prepared) / self.data

    def plain(self) -> dict[str, Any]:
        """Return plain values for YAML and JSON; a call of the class with them gives equal settings."""
        return self.model_dump(mode="json")


class RunSettings(EncoderSettings):
    """Everything that decides a run's results, fully resolved; `run.yaml` holds it.

    With `base`, the encoder settings are those of the method `base`.
    """

    label: str = ""
    base: str | None = None
    uncertainty: UncertaintyChoice = DEFAULT_UNCERTAINTY
    ood: tuple[str, ...] = ()
    evaluation: Evaluation = Evaluation()

    def encoder(self) -> EncoderSettings:
        """Return the settings on which the training step depends."""
        fields = {name: getattr(self, name) for name in EncoderSettings.model_fields}
        return EncoderSettings(**(fields | {"method": self.base or self.method}))
