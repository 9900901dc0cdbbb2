"""`probmetric.fit`: train any network on a dataset of one's own and get a `Model`, without the workflow.

    model = probmetric.fit(train_set, network, loss="proxy_anchor", uncertainty="laplace", dim=64, epochs=10)

The training loop, the uncertainties and the metrics are the workflow's.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probmetric.config import Component, ConfigError, Training, parse
from probmetric.errors import ServingError
from probmetric.io import digest_of, tensors_digest
from probmetric.losses import REGISTRY as LOSSES
from probmetric.losses import Loss, create_loss
from probmetric.models import REGISTRY as BACKBONES
from probmetric.models import Encoder, create_encoder
from probmetric.serving._fit_data import SetData, set_data
from probmetric.serving.model import Model, Reference
from probmetric.training.backend import backend
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.device import claim_device
from probmetric.training.loop import Conduct, Trainer
from probmetric.training.network import weights_of
from probmetric.training.passes import TrainingPass, ValidationPass
from probmetric.training.seeds import derive_seed
from probmetric.uncertainty import REGISTRY as UNCERTAINTIES
from probmetric.uncertainty import Posterior, Predictor, create_uncertainty

Choice = str | Mapping[str, Any]
DIM = 64


def fit(
    dataset: Any,
    encoder: nn.Module | Choice,
    *,
    loss: Choice = "proxy_anchor",
    uncertainty: Choice = "norm",
    objective: Choice | None = None,
    validation: Any = None,
    dim: int | None = None,
    view: Choice = "photos",
    seed: int = 0,
    device: str = "auto",
    progress: bool | None = None,
    state: str | Path | None = None,
    **training: Any,
) -> Model:
    """Train an encoder, fit an uncertainty, and return the model.

    Args:
        dataset: `torch.utils.data.Dataset` with a length, of (image, label). Tensors are the network's input as they
            are, with the augmentation the dataset makes; PIL images, arrays and paths are seen through `view`.
            Labels are whole numbers or names. It is read by several threads.
        encoder: any module, inputs (B, ...) -> (B, D), which is trained in place; or a backbone by name
            (`probmetric list backbones`).
        loss: by name, or {"name": ..., option: value} (`probmetric list losses`).
        uncertainty: likewise (`probmetric list uncertainties`).
        objective: an uncertainty that shapes training, such as "laplace_online".
        validation: such a dataset: the best epoch is chosen on it, and later images are compared with it. None keeps
            the last epoch.
        dim: M, size of the embedding: a linear layer (D -> M) is added. None takes the network's output for the
            embedding; the last `nn.Linear` of an `nn.Sequential` is then the layer that `laplace` looks at. A backbone
            by name has 64 dimensions unless told otherwise.
        view: how images that are no tensors become input, such as {"name": "photos", "size": 128}.
        seed: of initial weights, batches and draws.
        device: "auto", "cpu", "cuda" or "cuda:1".
        progress: show a progress bar; None shows it on a terminal only.
        state: folder for checkpoints: the same call then goes on after an interruption.
        training: settings of `training` in params.yaml: epochs (0 trains nothing), batch_size, learning_rate, ...

    Raises:
        ConfigError: an unknown name or setting.
        DataError: images or labels that cannot be trained on.
        ServingError: no dataset, a network that gives no embeddings, or an uncertainty that cannot be fitted to it.
    """
    job = _Job(parse(Training, training, "fit"), _chosen(loss), _chosen(uncertainty), _chosen(objective), seed)
    job.check()
    backbone: Any = None if isinstance(encoder, nn.Module) else _chosen(encoder)
    with _place(device, job) as (place, scratch):
        data = set_data(
            dataset, validation, job.settings, backbone=backbone, view=_chosen(view), seed=seed, device=place
        )
        network = _encoder(encoder if isinstance(encoder, nn.Module) else backbone, dim, data)
        job.check_parts(network, data)
        return job.model(network, data, Checkpoints(state or scratch), progress)


def _chosen(choice: Choice | None) -> Any:
    """A component by name or as a mapping, None for None."""
    if choice is None:
        return None
    return parse(Component, {"name": choice} if isinstance(choice, str) else choice, "fit")


@contextlib.contextmanager
def _place(device: str, job: _Job) -> Iterator[tuple[torch.device, str]]:
    """Device and temporary folder of a training whose random numbers are its own."""
    with (
        claim_device(device) as chosen,
        torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []),
        backend(deterministic=job.settings.deterministic),
        tempfile.TemporaryDirectory() as scratch,
    ):
        torch.manual_seed(derive_seed(job.seed, "weights"))
        yield chosen, scratch


@dataclass(frozen=True)
class OwnRecord:
    """What is known of a model made by `fit`.

    Attributes:
        name: loss and uncertainty.
        uncertainty: name and options.
        classes: names of the training classes, in the order of `probabilities`.
        digest: SHA-256 of weights, posterior and uncertainty.
    """

    name: str
    uncertainty: Component
    classes: tuple[str, ...]
    digest: str


@dataclass(frozen=True)
class _Job:
    """What is to be trained, and how."""

    settings: Training
    loss: Component
    uncertainty: Component
    objective: Component | None
    seed: int

    def check(self) -> None:
        """Refuse what cannot be done before anything is read."""
        made = create_uncertainty(self.uncertainty.name, **self.uncertainty.options)
        if made.members > 1:
            raise ConfigError("an ensemble is trained by the workflow; `fit` trains one encoder.")
        if self.settings.selection != "validation":
            raise ConfigError(f"selection is {self.settings.selection!r}; `fit` knows 'validation' only.")
        if self._needs("needs_classifier") and not LOSSES.holds(self.loss.name, "is_classifier", self.loss.options):
            raise ConfigError(
                f"uncertainty {self.uncertainty.name!r} needs class probabilities; loss {self.loss.name!r} is no "
                "classifier. Use arcface, cosine or another one that is."
            )

    def check_parts(self, encoder: Encoder, data: SetData) -> None:
        """Refuse before training what the network or the data cannot give the uncertainty.

        Raises:
            ServingError: says what is missing.
        """
        wanting = self.objective or (self.uncertainty if self._needs("needs_head") else None)
        if wanting is not None and not isinstance(encoder.head, nn.Linear):
            raise ServingError(
                f"{wanting.name!r} needs a last linear layer, which this network does not show. Give `dim`: such a "
                "layer is added and trained; or pass an nn.Sequential that ends in an nn.Linear."
            )
        if self._needs("closed_set") and not (data.has_validation and data.closed_set):
            raise ServingError(
                f"uncertainty {self.uncertainty.name!r} is fitted on validation images of the training classes; give "
                "them as `validation`."
            )

    def _needs(self, flag: str) -> bool:
        return UNCERTAINTIES.holds(self.uncertainty.name, flag, self.uncertainty.options)

    def model(self, encoder: Encoder, data: SetData, checkpoints: Checkpoints, progress: bool | None) -> Model:
        """Train, fit the uncertainty, put together."""
        loss = self._loss(encoder, data)
        if self.settings.epochs:
            self._train(encoder, loss, data, checkpoints, progress)
        posterior = self._posterior(encoder.eval(), loss.eval(), data)
        made = create_uncertainty(self.uncertainty.name, **self.uncertainty.options)
        predictor = made.bind(encoder, loss=loss, posterior=posterior, seed=self.seed)
        name = f"{self.loss.name} with {self.uncertainty.name}"
        digest = self._digest(encoder, loss, posterior or {})
        record = OwnRecord(name, self.uncertainty, data.classes, digest)
        return Model(record, predictor, data.eye, _reference(predictor, data))

    def _loss(self, encoder: Encoder, data: SetData) -> Loss:
        made: Loss = create_loss(self.loss.name, num_classes=data.num_classes, dim=encoder.dim, **self.loss.options)
        if self.objective is not None:
            shaping = create_uncertainty(self.objective.name, **self.objective.options)
            shaped = shaping.objective(encoder, made, num_images=len(data.labels))
            if shaped is None:
                raise ConfigError(f"uncertainty {self.objective.name!r} has no objective to train with; leave it out.")
            made = shaped
        return made.to(data.device)

    def _train(self, encoder: Encoder, loss: Loss, data: SetData, checkpoints: Checkpoints, bar: bool | None) -> None:
        identity = digest_of([self._digest(encoder, loss, {}), data.settings.model_dump(mode="json"), data.digest])
        trainer = Trainer(encoder, loss, data, Conduct(checkpoints, identity, progress_bar=bar))
        trainer.fit()
        for part, module in (("encoder.", encoder), ("loss.", loss)):
            best = {name.removeprefix(part): value for name, value in trainer.best.items() if name.startswith(part)}
            module.load_state_dict(best)
        checkpoints.remove()

    def _posterior(self, encoder: Encoder, loss: Loss, data: SetData) -> Posterior | None:
        made = create_uncertainty(self.uncertainty.name, **self.uncertainty.options)
        if not made.fits:
            return None
        try:
            return made.fit(
                encoder,
                TrainingPass(data),
                loss=loss,
                generator=torch.Generator(device=data.device).manual_seed(self.seed),
                device=data.device,
                validation=ValidationPass(data) if data.has_validation else None,
            )
        except ValueError as error:
            raise ServingError(f"uncertainty {self.uncertainty.name!r} cannot be fitted: {error}") from error

    def _digest(self, encoder: Encoder, loss: Loss, posterior: Posterior) -> str:
        fitted = {name: tensor.cpu().contiguous() for name, tensor in posterior.items()}
        made = [tensors_digest(weights_of(encoder, loss)), tensors_digest(fitted)]
        return digest_of([*made, self.uncertainty.model_dump(mode="json"), self.seed])


def _reference(predictor: Predictor, data: SetData) -> Reference | None:
    if not data.has_validation:
        return None
    return Reference(np.sort(predictor(data.reader("val").batches()).uncertainty.numpy()))


class Own(Encoder):
    """Somebody's network as an encoder; its parameters count as pretrained where a head is added."""

    def __init__(self, network: nn.Module, width: int, dim: int | None) -> None:
        super().__init__()
        last = network[-1] if isinstance(network, nn.Sequential) and len(network) > 1 else None
        if dim is not None:
            self.network = network
            self._attach_head(width, dim)
            self._loaded_names = frozenset(f"network.{name}" for name, _ in network.named_parameters())
        elif isinstance(network, nn.Sequential) and isinstance(last, nn.Linear):
            self.network, self.head = network[:-1], last
            self.num_features, self.dim = last.in_features, last.out_features
        else:
            self.network, self.num_features, self.dim = network, width, width

    def features(self, images: Tensor) -> Tensor:
        """Inputs (B, ...) -> (B, D)."""
        found: Tensor = self.network(images)
        return found


def _encoder(chosen: nn.Module | Component, dim: int | None, data: SetData) -> Encoder:
    """The encoder, on the data's device."""
    if isinstance(chosen, Component):
        BACKBONES.check_options(chosen.name, chosen.options)
        sizes: dict[str, Any] = {"in_channels": data.in_channels, "image_size": data.image_size, "dim": dim or DIM}
        encoder = create_encoder(chosen.name, **sizes, **chosen.options)
    elif isinstance(chosen, Encoder):
        if dim not in (None, chosen.dim):
            raise ConfigError(f"dim is {dim}, but the encoder has one of its own, {chosen.dim}; leave dim out.")
        encoder = chosen
    else:
        encoder = Own(chosen, _width(chosen, data), dim)
    encoder.set_batch_norm(data.settings.batch_norm)
    layout = torch.channels_last if data.settings.channels_last else torch.contiguous_format
    return encoder.to(data.device).to(memory_format=layout)


def _width(network: nn.Module, data: SetData) -> int:
    """D: how many numbers the network gives for the first two images."""
    images, _ = data.batch(torch.arange(2), epoch=0)
    network.to(data.device)
    was_training = network.training
    try:
        with torch.no_grad():
            found = network.eval()(images)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ServingError(
            f"{type(network).__name__} cannot take inputs of shape {tuple(images.shape)}: {error}"
        ) from error
    finally:
        network.train(was_training)
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2 or not found.is_floating_point():
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ServingError(
            f"{type(network).__name__} gives {shape} for inputs of shape {tuple(images.shape)}; an encoder gives one "
            "row of numbers per input, (B, D). Pool and flatten its output."
        )
    return found.shape[1]
