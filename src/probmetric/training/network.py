"""The network a run trains: an encoder with its loss, new, or with the weights of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probmetric.config import ConfigError, EncoderSettings
from probmetric.io import FileError
from probmetric.losses import Loss, create_loss
from probmetric.models import Encoder, create_encoder
from probmetric.runs.folder import RunFolder, Which
from probmetric.training.seeds import derive_seed
from probmetric.uncertainty import create_uncertainty

Weights = dict[str, Tensor]


def create_network(
    settings: EncoderSettings,
    in_channels: int,
    image_size: int,
    num_classes: int,
    num_images: int,
    device: torch.device,
) -> tuple[Encoder, Loss | None]:
    """Encoder and loss with initial weights drawn from the run's seed, on `device`."""
    torch.manual_seed(derive_seed(settings.seed, "weights"))
    encoder = create_encoder(
        settings.backbone.name,
        dim=settings.dim,
        in_channels=in_channels,
        image_size=image_size,
        pretrained=settings.pretrained,
        **settings.backbone.options,
    )
    encoder.set_batch_norm(settings.training.batch_norm)
    if settings.training.channels_last:
        encoder = encoder.to(memory_format=torch.channels_last)
    encoder = encoder.to(device)
    if settings.loss is None:
        return encoder, None
    loss = create_loss(settings.loss.name, num_classes=num_classes, dim=encoder.dim, **settings.loss.options).to(device)
    if settings.objective is None:
        return encoder, loss
    shaping = create_uncertainty(settings.objective.name, **settings.objective.options)
    objective = shaping.objective(encoder, loss, num_images=num_images)
    if objective is None:
        raise ConfigError(
            f"uncertainty {settings.objective.name!r} has no objective to train with; remove `objective`."
        )
    return encoder, objective.to(device)


def weights_of(encoder: Encoder, loss: Loss | None) -> Weights:
    """Copies of all parameters and buffers, on the CPU, named `encoder.*` and `loss.*`."""
    return {
        f"{part}.{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for part, module in (("encoder", encoder), ("loss", loss))
        if module is not None
        for name, tensor in module.state_dict().items()
    }


def load_encoder(
    run_folder: str | Path, device: torch.device | str = "cpu", which: Which = "selected"
) -> tuple[Encoder, Loss | None, EncoderSettings]:
    """Encoder and loss of a finished run, in evaluation mode, with its settings.

    Args:
        run_folder: folder `train_run` wrote.
        device: where to put them.
        which: weights selected on the validation split, or those of the last epoch.

    Raises:
        FileError: a file is missing, damaged or does not fit its record.
    """
    run = RunFolder(run_folder)
    misfit = f"{run.weights_file(which)} does not fit {run.encoder_file}; delete both and train again."
    try:
        settings = EncoderSettings(**run.encoder["settings"])
        encoder, loss = assembled(settings, run.encoder["encoder"], run.weights(which), misfit)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run.encoder_file} was changed ({error!r}); delete it and train again.") from error
    return encoder.to(device), loss if loss is None else loss.to(device), settings


def assembled(
    settings: EncoderSettings, facts: Mapping[str, Any], tensors: Weights, misfit: str
) -> tuple[Encoder, Loss | None]:
    """Encoder and loss with the weights `tensors`, in evaluation mode, on the CPU.

    Args:
        settings: how they were trained.
        facts: in_channels, image_size, num_classes and num_images, as `encoder.yaml` has them.
        tensors: weights named encoder.* and loss.*.
        misfit: what to say where the weights do not fit the settings.

    Raises:
        FileError: they do not fit.
        KeyError: a fact is missing.
    """
    sizes = facts["in_channels"], facts["image_size"], facts["num_classes"], facts.get("num_images", 1)
    blank = settings.model_copy(update={"pretrained": None})
    with torch.random.fork_rng(devices=[]):
        encoder, loss = create_network(blank, *sizes, torch.device("cpu"))
    try:
        encoder.load_state_dict(_part(tensors, "encoder."))
        if loss is not None:
            loss.load_state_dict(_part(tensors, "loss."))
    except RuntimeError as error:
        raise FileError(f"{misfit} {error}") from error
    return encoder.eval(), loss if loss is None else loss.eval()


def _part(tensors: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
