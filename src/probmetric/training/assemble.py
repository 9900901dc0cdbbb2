"""Make encoder, loss and uncertainty together: new, or with the weights of a file. Only this module does so.

made = assemble(settings, data.sizes, device)            initial weights, drawn from the run's seed
made = restored(settings, sizes, weights, misfit)        weights of a run folder or a model folder
made = load_encoder("results/digits/arcface/seed0")      encoder and loss of a finished run
posterior = data.fit_posterior(made, uncertainty)        of `TrainingData`
predictor = made.predictor(uncertainty, posterior, seed)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from probmetric.config import ConfigError, EncoderSettings
from probmetric.io import FileError
from probmetric.losses import Loss, create_loss
from probmetric.models import Encoder, create_encoder
from probmetric.runs.folder import RunFolder, Which
from probmetric.training.low_rank import merged
from probmetric.training.seeds import derive_seed
from probmetric.uncertainty import Posterior, Predictor, create_uncertainty
from probmetric.uncertainty.ensemble import EncoderEnsemble

if TYPE_CHECKING:
    from probmetric.config import Component

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the data that decide the size of a network.

    Attributes:
        in_channels: channels of the input.
        image_size: side of the input.
        num_classes: training classes C.
        num_images: training images.
    """

    in_channels: int
    image_size: int
    num_classes: int
    num_images: int = 1

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Sizes:
        """Return the sizes in the record of a trained encoder.

        Raises:
            KeyError: one is missing.
        """
        return cls(facts["in_channels"], facts["image_size"], facts["num_classes"], facts.get("num_images", 1))


class Assembly(NamedTuple):
    """An encoder with its loss.

    Attributes:
        encoder: the encoder, or several as one.
        loss: the loss, or the objective that replaces it; None where nothing is trained.
        settings: the settings that both were made from.
    """

    encoder: Encoder
    loss: Loss | None
    settings: EncoderSettings

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights named `encoder.*` and `loss.*`.

        Raises:
            RuntimeError: they do not fit.
        """
        for part, module in (("encoder.", self.encoder), ("loss.", self.loss)):
            if module is not None:
                named = {name.removeprefix(part): value for name, value in weights.items() if name.startswith(part)}
                module.load_state_dict(named)

    def to(self, device: torch.device | str) -> Assembly:
        """Move both to `device`."""
        return self._replace(encoder=self.encoder.to(device), loss=None if self.loss is None else self.loss.to(device))

    def predictor(self, uncertainty: Component, posterior: Posterior | None, seed: int) -> Predictor:
        """Bind an uncertainty: images in, directional distributions out.

        Raises:
            ValueError: the posterior lacks a tensor.
        """
        made = create_uncertainty(uncertainty.name, **uncertainty.options)
        return made.bind(self.encoder, loss=self.loss, posterior=posterior, seed=seed)


def assemble(
    settings: EncoderSettings, sizes: Sizes, device: torch.device | str = "cpu", *, encoder: Encoder | None = None
) -> Assembly:
    """Make encoder and loss with initial weights drawn from the run's seed.

    Args:
        settings: what to make.
        sizes: sizes of the data.
        device: where to put both.
        encoder: your own network in place of the backbone that `settings` names.

    Raises:
        ConfigError: the uncertainty named as `objective` has no objective.
    """
    if encoder is None:
        torch.manual_seed(derive_seed(settings.seed, "weights"))
        encoder = create_encoder(
            settings.backbone.name,
            dim=settings.dim,
            in_channels=sizes.in_channels,
            image_size=sizes.image_size,
            pretrained=settings.pretrained,
            **settings.backbone.options,
        )
    encoder.set_batch_norm(settings.training.batch_norm)
    encoder.hold_still()
    if settings.training.freeze == "trunk" or settings.training.train_from:
        encoder.freeze_trunk(settings.training.train_from)
    if settings.training.channels_last:
        encoder = encoder.to(memory_format=torch.channels_last)
    encoder = encoder.to(device)
    if settings.loss is None:
        return Assembly(encoder, None, settings)
    name, options = settings.loss.name, settings.loss.options
    loss = create_loss(name, num_classes=sizes.num_classes, dim=encoder.dim, **options).to(device)
    if settings.objective is None:
        return Assembly(encoder, loss, settings)
    shaping = create_uncertainty(settings.objective.name, **settings.objective.options)
    objective = shaping.objective(encoder, loss, num_images=sizes.num_images)
    if objective is None:
        raise ConfigError(
            f"uncertainty {settings.objective.name!r} has no objective to train with; remove `objective`."
        )
    return Assembly(encoder, objective.to(device), settings)


def restored(
    settings: EncoderSettings,
    sizes: Sizes,
    weights: Mapping[str, Tensor],
    misfit: str,
    *,
    encoder: Encoder | None = None,
) -> Assembly:
    """Make encoder and loss with the given weights, in evaluation mode, on the CPU.

    Args:
        settings: how they were trained.
        sizes: sizes of the data they were trained on.
        weights: named `encoder.*` and `loss.*`.
        misfit: beginning of the message if the weights do not fit the settings.
        encoder: your own network in place of the backbone that `settings` names.

    Raises:
        FileError: the weights do not fit.
    """
    blank = settings.model_copy(update={"pretrained": None})
    with torch.random.fork_rng(devices=[]):
        made = assemble(blank, sizes, encoder=encoder)
    try:
        made.load(weights)
    except RuntimeError as error:
        raise FileError(f"{misfit} {error}") from error
    return Assembly(made.encoder.eval(), None if made.loss is None else made.loss.eval(), settings)


def load_encoder(run_folder: str | Path, device: torch.device | str = "cpu", which: Which = "selected") -> Assembly:
    """Return encoder and loss of a finished run, in evaluation mode, with its settings.

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
        made = restored(settings, Sizes.of(run.encoder["encoder"]), run.weights(which), misfit)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run.encoder_file} was changed ({error!r}); delete it and train again.") from error
    return made.to(device)


def combined(members: Sequence[Assembly]) -> Assembly:
    """Return several encoders as one, with the loss and settings of the first; a single one is returned as it is."""
    if len(members) == 1:
        return members[0]
    return members[0]._replace(encoder=cast("Encoder", EncoderEnsemble([member.encoder for member in members])))


def weights_of(encoder: Encoder, loss: Loss | None) -> Weights:
    """Copy all parameters and buffers to the CPU, named `encoder.*` and `loss.*`."""
    return {
        f"{part}.{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for part, module in (("encoder", encoder), ("loss", loss))
        if module is not None
        for name, tensor in merged(module).items()
    }
