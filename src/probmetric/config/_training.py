"""How an encoder is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from probmetric.config._components import Strict

Sampler = Literal["balanced", "balanced_with_replacement", "class_random", "episodic", "pairs", "shuffle"]
Epochs = Annotated[int, Field(ge=0, le=10**6)]
Some = Annotated[int, Field(ge=1, le=10**6)]


class Training(Strict):
    """How an encoder is trained."""

    epochs: Epochs = Field(15, description="passes over the training set; 0 leaves the network untrained")
    batch_size: int = Field(96, ge=2, le=2**20)
    images_per_class: Some = Field(4, description="K of the class-balanced sampler; 1 with plain shuffling")
    sampler: Literal["balanced", "balanced_with_replacement", "class_random", "episodic", "pairs", "shuffle"] = (
        "balanced"
    )
    steps_per_epoch: Some | None = Field(
        None, description="optimiser steps of an epoch, whatever the size of the data; unset: one pass over it"
    )
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    learning_rate: float = Field(1e-3, gt=0, le=1e4)
    weight_decay: float = Field(1e-4, ge=0, le=1e4)
    weight_decay_on: Literal["all", "matrices"] = Field("all", description="matrices: not biases, norms and scales")
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    schedule: Literal["constant", "cosine", "multistep", "plateau", "exponential"] = "cosine"
    milestones: tuple[Epochs, ...] = ()
    gamma: float = Field(0.1, gt=0, le=1)
    plateau_patience: Some = Field(15, description="validations without improvement that make a plateau")
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
