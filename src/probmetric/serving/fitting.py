"""Train any network on your own dataset and get a `Model`, without the workflow: `probmetric.fit`.

    model = probmetric.fit(train_set, network, loss="proxy_anchor", uncertainty="laplace", dim=64, epochs=10)
    model.save("my-model")                                   and later
    model = probmetric.load("my-model", network=network)     without `network` where a backbone was named

The training loop, the uncertainties, the metrics and the model folder are those of the workflow.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from probmetric.config import Component, ConfigError, EncoderSettings, RunSettings, fine_tuning, parse
from probmetric.data.choosing import Use
from probmetric.data.images import Eye, ImageSource
from probmetric.data.loose import LooseImages, dataset_images, image_of, is_dataset, item_classes
from probmetric.data.manifest import DataError
from probmetric.data.views import create_view
from probmetric.data.views._base import RawTensors, View
from probmetric.errors import ServingError
from probmetric.io import digest_of, tensors_digest
from probmetric.models import REGISTRY as BACKBONES
from probmetric.models import Encoder, input_statistics
from probmetric.models._wrapped import wrapped
from probmetric.planning.capabilities import reads_validation, training_problems
from probmetric.planning.composition import Draft
from probmetric.registry import registry_of
from probmetric.serving.model import Model
from probmetric.serving.model_folder import MEMBER, Parts
from probmetric.serving.record import POSTERIOR, REFERENCE, Facts, Member, ModelRecord, Transform, Wrapped
from probmetric.training.assemble import Assembly, assemble, weights_of
from probmetric.training.backend import backend
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, TrainingImages
from probmetric.training.device import claim_device
from probmetric.training.features import start_head
from probmetric.training.loop import Conduct, Trainer
from probmetric.training.provenance import versions
from probmetric.training.seeds import derive_seed
from probmetric.uncertainty import REGISTRY as UNCERTAINTIES
from probmetric.uncertainty import Posterior, create_uncertainty

Choice = str | Mapping[str, Any]


def fit(
    dataset: Any,
    encoder: nn.Module | Choice,
    *,
    loss: Choice = "proxy_anchor",
    uncertainty: Choice = "norm",
    objective: Choice | None = None,
    validation: Any = None,
    dim: int | Literal["features"] | None = None,
    pretrained: bool | str = False,
    view: Choice = "photos",
    seed: int = 0,
    device: str = "auto",
    progress: bool | None = None,
    state: str | Path | None = None,
    **training: Any,
) -> Model:
    """Train an encoder, fit an uncertainty, and return the model.

    Args:
        dataset: `torch.utils.data.Dataset` with a length, of (image, label). Tensors go into the network unchanged,
            with the dataset's augmentation; PIL images, arrays and paths are converted by `view`. Labels are whole
            numbers or names. Several threads read the dataset.
        encoder: any module, inputs (B, ...) -> (B, D), which is trained in place; or a backbone by name
            (`probmetric list backbones`). Parameters without gradient (`requires_grad`) are not trained.
        loss: by name, or {"name": ..., option: value} (`probmetric list losses`).
        uncertainty: by name, or {"name": ..., option: value} (`probmetric list uncertainties`).
        objective: an uncertainty that shapes training, such as "laplace_online".
        validation: dataset of the same form: the best epoch is chosen on it, and later images are compared with it.
            None keeps the last epoch.
        dim: M, size of the embedding: a linear layer (D -> M) is added. None takes the network's output as the
            embedding; `laplace` then uses the last `nn.Linear` of an `nn.Sequential`. The default for a backbone by
            name is 64 or, with `pretrained`, its number of features.
        pretrained: whether the encoder is trained already: a backbone by name gets its published weights (or those
            of a file), your own network keeps its own. The defaults are then those of `probmetric init`: the linear
            layer starts from LDA, all layers train at 2e-4, batch normalisation is frozen, ten epochs.
        view: how images that are no tensors become input, such as {"name": "photos", "size": 128}.
        seed: seed of initial weights, batches and draws.
        device: "auto", "cpu", "cuda" or "cuda:1".
        progress: show a progress bar; None shows it on a terminal only.
        state: folder for checkpoints: the same call then continues after an interruption. Other settings, labels or
            initial weights start again. Other images with the same labels are not noticed: a dataset may augment.
        training: settings of `training` in params.yaml: epochs (0 trains nothing), batch_size, learning_rate, ...

    Raises:
        ConfigError: a name or setting is unknown.
        DataError: images or labels are not suitable for training.
        ServingError: there is no dataset, the network gives no embeddings, or the uncertainty cannot be fitted to it.
    """
    network = encoder if isinstance(encoder, nn.Module) else None
    if network is not None and not isinstance(pretrained, bool):
        raise ConfigError("pretrained names weights, but the network is your own; load them into it and give True.")
    if pretrained and dim is None and not isinstance(encoder, Encoder):
        dim = "features"
    choices: dict[str, Any] = {"loss": loss, "objective": objective, "uncertainty": uncertainty, "view": view}
    choices["dim"] = dim
    if network is None:
        choices |= {"backbone": encoder, "pretrained": pretrained or None}
    values: dict[str, Any] = {"dataset": "yours", "method": "fit", "seed": seed, "training": training}
    values |= {name: each for name, each in choices.items() if each is not None}
    run = parse(RunSettings, values, "fit")
    if pretrained:
        usual = fine_tuning(len(dataset) if is_dataset(dataset) else 0, run.training.batch_size)
        if not _has_linear_head(network, run.backbone):
            del usual["head_init"]
        run = parse(RunSettings, values | {"training": usual | training}, "fit")
    _check(run, validates=validation is not None)
    whole = dict(run) | {"training": run.training.model_dump(), "pretrained": pretrained or network is not None}
    options = {name: each for name, each in choices.items() if isinstance(each, Mapping)}
    Draft(None, "", whole).check_read(options | {"training": training})
    settings, chosen = run.encoder(), run.uncertainty
    with (
        claim_device(device) as place,
        torch.random.fork_rng(devices=[place] if place.type == "cuda" else []),
        backend(deterministic=settings.training.deterministic),
        tempfile.TemporaryDirectory() as scratch,
        _wishes_kept(network),
    ):
        images = _images(dataset, validation, settings, by_name=network is None)
        settings = _in_batches(settings, len(images.sources["train"]))
        data = TrainingData(images, settings.training, seed=seed, device=place)
        _check_validation(chosen, data)
        wrapping = None if network is None else _measured(network, dim, data)
        made = _assembled(settings, chosen, data, network, wrapping)
        _check_uncertainty(made, chosen, data)
        start_head(made.encoder, data)
        checkpoints = Checkpoints(state or scratch)
        if settings.training.epochs:
            _train(made, data, chosen, checkpoints, progress)
        model = _model(made, data, chosen, wrapping)
        checkpoints.remove()
        return model


@contextlib.contextmanager
def _wishes_kept(network: nn.Module | None) -> Iterator[None]:
    """Restore `requires_grad` of the user's parameters after the block."""
    wishes = [(parameter, parameter.requires_grad) for parameter in (() if network is None else network.parameters())]
    try:
        yield
    finally:
        for parameter, wants in wishes:
            parameter.requires_grad_(wants)


def _check(settings: RunSettings, *, validates: bool) -> None:
    """Refuse impossible arguments before any image is read."""
    uncertainty, training = settings.uncertainty, settings.training
    if create_uncertainty(uncertainty.name, **uncertainty.options).members > 1:
        raise ConfigError("an ensemble is trained by the workflow; `fit` trains one encoder.")
    if training.selection != "validation":
        raise ConfigError(f"selection is {training.selection!r}; `fit` knows 'validation' only.")
    if not validates and (training.patience or training.schedule == "plateau"):
        waits = "patience" if training.patience else "schedule 'plateau'"
        raise ConfigError(f"{waits} waits for the metric on validation images; give them as `validation`.")
    if training.augment in ("vmf", "lam"):
        raise ConfigError(
            f"augment is {training.augment!r}, a paper's view of its own dataset; `fit` knows 'standard' and "
            "'none', and `view` says the rest."
        )
    for problem in training_problems(settings):
        raise ConfigError(problem)


def _needs(uncertainty: Component, flag: str) -> bool:
    return UNCERTAINTIES.holds(uncertainty.name, flag, uncertainty.options)


def _check_validation(uncertainty: Component, data: TrainingData) -> None:
    """Refuse, before training, an uncertainty that needs validation images if there are none."""
    closed = _needs(uncertainty, "closed_set")
    if reads_validation(uncertainty) and not (data.has_validation and (data.closed_set or not closed)):
        images = "validation images" + closed * " of the training classes"
        raise ServingError(f"uncertainty {uncertainty.name!r} is fitted on {images}; give them as `validation`.")


# ---- images --------------------------------------------------------------------------------------------------------


def _images(dataset: Any, validation: Any, settings: EncoderSettings, *, by_name: bool) -> TrainingImages:
    """Return the datasets for training, read by the kind of the first image; `by_name`: the backbone is one of ours."""
    names = [_class_names(each) for each in ((dataset,) if validation is None else (dataset, validation))]
    classes = tuple(np.unique(np.concatenate(names)).tolist())
    view = _view(image_of(dataset[0]), settings, by_name=by_name)
    eye = Eye(view.evaluation(), (3, view.side or 0))
    parts = [
        LooseImages(
            dataset_images(each), [f"{use} image {n}" for n in range(len(part))], part, eye=eye, classes=classes
        )
        for each, part, use in zip((dataset, validation), names, ("training", "validation"), strict=False)
    ]
    none = LooseImages([], eye=eye, classes=classes)
    sources: dict[Use, ImageSource] = {"train": parts[0], "val": parts[1] if len(parts) > 1 else none}
    return TrainingImages(sources, view, digest_of(names))


def _class_names(dataset: Any) -> list[str]:
    if not is_dataset(dataset) or not len(dataset):
        raise ServingError(
            f"{type(dataset).__name__} is no dataset to train on; expected a torch.utils.data.Dataset with a length, "
            "of one (image, label) or more."
        )
    names = item_classes(dataset)
    if "" in names:
        raise ServingError("the dataset's items have no label; each must be (image, label).")
    return names


def _view(first: Any, settings: EncoderSettings, *, by_name: bool) -> View:
    """Return the training view of images like the `first`."""
    backbone = settings.backbone
    if isinstance(first, Tensor):
        shape = tuple(first.shape)
        if not shape:
            raise DataError("the dataset's images are single numbers; expected tensors (C, H, W), or vectors (D,).")
        if by_name and (len(shape) != 3 or shape[1] != shape[2]):
            raise DataError(
                f"the dataset's images are tensors of shape {shape}; backbone {backbone.name!r} takes square images "
                "(C, S, S). Crop or resize them, or hand over a network of your own."
            )
        return RawTensors(shape=shape)
    statistics = input_statistics(backbone.name, **backbone.options) if by_name else None
    chosen = settings.view or Component(name="photos")
    view = create_view(chosen.name, **chosen.options).for_backbone(statistics)
    if view.side is None:
        raise ServingError(f"view {chosen.name!r} has no size of its own; use 'photos' for images of any size.")
    return view.evaluation() if settings.training.augment == "none" else view


def _in_batches(settings: EncoderSettings, count: int) -> EncoderSettings:
    """Return the settings with the batch size or, with fewer images, the largest batch size that they allow."""
    training = settings.training
    if count >= training.batch_size:
        return settings
    whole = {"pairs": 2, "shuffle": 1}.get(training.sampler, training.images_per_class)
    largest = max(whole, count // whole * whole)
    return settings.model_copy(update={"training": training.model_copy(update={"batch_size": largest})})


# ---- network -------------------------------------------------------------------------------------------------------


def _has_linear_head(network: nn.Module | None, backbone: Component) -> bool:
    """Tell whether the encoder (your own `network` or a backbone by name) will have a head that LDA can initialise."""
    if isinstance(network, Encoder):
        return isinstance(network.head, nn.Linear) and network.head.bias is not None
    return network is not None or BACKBONES.holds(backbone.name, "has_head", backbone.options)


def _assembled(
    settings: EncoderSettings,
    uncertainty: Component,
    data: TrainingData,
    network: nn.Module | None,
    wrapping: Wrapped | None,
) -> Assembly:
    """Put encoder and loss together; an error if they or the uncertainty need a last linear layer that is missing."""
    encoder, has_head = None, BACKBONES.holds(settings.backbone.name, "has_head", settings.backbone.options)
    if network is not None and wrapping is not None:
        torch.manual_seed(derive_seed(settings.seed, "weights"))
        encoder = wrapped(network, wrapping.width, settings.dim if wrapping.head else None)
        settings, has_head = settings.model_copy(update={"dim": encoder.dim}), isinstance(encoder.head, nn.Linear)
    wanting = settings.objective or (uncertainty if _needs(uncertainty, "needs_head") else None)
    if wanting is not None and not has_head:
        raise ServingError(
            f"{wanting.name!r} needs a last linear layer, which this network does not show. Give `dim`: such a "
            "layer is added and trained; or pass an nn.Sequential that ends in an nn.Linear."
        )
    return assemble(settings, data.sizes, data.device, encoder=encoder)


def _check_uncertainty(made: Assembly, uncertainty: Component, data: TrainingData) -> None:
    """Refuse, before training, an uncertainty that this network cannot have."""
    images, _ = data.batch(torch.arange(1), epoch=0)
    try:
        create_uncertainty(uncertainty.name, **uncertainty.options).check(made.encoder, images)
    except ValueError as error:
        raise ServingError(f"uncertainty {uncertainty.name!r} cannot be had: {error}") from error


def _measured(network: nn.Module, dim: int | Literal["features"] | None, data: TrainingData) -> Wrapped:
    """Describe the user's network by its output for the first two images."""
    kind = type(network).__name__
    if isinstance(network, Encoder):
        if dim not in (None, network.dim):
            raise ConfigError(f"dim is {dim}, but the encoder has one of its own, {network.dim}; leave dim out.")
        return Wrapped(kind=kind, width=network.num_features, head=False)
    images, _ = data.batch(torch.arange(2), epoch=0)
    network.to(data.device)
    was_training = network.training
    try:
        with torch.no_grad():
            features = network.eval()(images)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ServingError(f"{kind} cannot take inputs of shape {tuple(images.shape)}: {error}") from error
    finally:
        network.train(was_training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2 or not features.is_floating_point():
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ServingError(
            f"{kind} gives {shape} for inputs of shape {tuple(images.shape)}; an encoder gives one "
            "row of numbers per input, (B, D). Pool and flatten its output."
        )
    if dim in (None, "features") and features.shape[1] < 2:
        raise ServingError(f"{kind} gives 1 number per input; an embedding has at least 2. Give `dim`, or a wider one.")
    return Wrapped(kind=kind, width=features.shape[1], head=dim is not None)


# ---- training, and the model ---------------------------------------------------------------------------------------


def _train(
    made: Assembly, data: TrainingData, uncertainty: Component, checkpoints: Checkpoints, bar: bool | None
) -> None:
    """Train to the end, and load the selected weights."""
    encoder, loss, settings = made
    if loss is None:
        return
    decisive = settings.model_dump(mode="json", exclude={"prepared"}), uncertainty.model_dump(mode="json")
    identity = digest_of([tensors_digest(weights_of(encoder, loss)), *decisive, data.digest])
    trainer = Trainer(encoder, loss, data, Conduct(checkpoints, identity, progress_bar=bar))
    trainer.fit()
    made.load(trainer.best)


def _model(made: Assembly, data: TrainingData, uncertainty: Component, wrapping: Wrapped | None) -> Model:
    """Fit the uncertainty, and make the model's record."""
    made.encoder.eval()
    if made.loss is not None:
        made.loss.eval()
    seed, epochs = made.settings.seed, made.settings.training.epochs
    posterior = _posterior(made, data, uncertainty)
    predictor = made.predictor(uncertainty, posterior, seed)
    seen = predictor(data.plain_batches("val")).uncertainty if data.has_validation else torch.empty(0)
    tensors = {MEMBER.format(0): weights_of(made.encoder, made.loss)}
    if posterior is not None:
        tensors[POSTERIOR] = {name: tensor.cpu().contiguous() for name, tensor in posterior.items()}
    reference = {"uncertainty": seen}
    train = cast("LooseImages", data.sources["train"])
    facts = Facts(dim=made.encoder.dim, **vars(data.sizes), pretrained_sha256=made.encoder.pretrained_digest)
    member = Member(settings=made.settings.model_copy(update={"pretrained": None}), facts=facts, network=wrapping)
    record = ModelRecord(
        name=f"{made.settings.loss.name if made.settings.loss and epochs else 'untrained'} with {uncertainty.name}",
        members=(member,),
        transform=Transform.of(data.eye.view),
        uncertainty=uncertainty,
        seed=seed,
        classes=tuple(train.classes[number] for number in np.unique(train.labels)),
        plugins=_plugins(made.settings, uncertainty),
        provenance={
            "data": {"description": f"{len(train)} images"},
            "data_digest": data.digest,
            "versions": versions(),
        },
        files={name: tensors_digest(part) for name, part in tensors.items()},
        reference=tensors_digest(reference),
    )
    images = train.images if epochs else ()
    return Model(Parts(record, tensors | {REFERENCE: reference}, lambda: images), made, data.device)


def _posterior(made: Assembly, data: TrainingData, uncertainty: Component) -> Posterior | None:
    if not create_uncertainty(uncertainty.name, **uncertainty.options).fits:
        return None
    try:
        return data.fit_posterior(made, uncertainty)
    except ValueError as error:
        raise ServingError(f"uncertainty {uncertainty.name!r} cannot be fitted: {error}") from error


def _plugins(settings: EncoderSettings, uncertainty: Component) -> tuple[str, ...]:
    """Name the modules of components that are not the package's."""
    parts = {"loss": settings.loss, "backbone": settings.backbone, "view": settings.view, "uncertainty": uncertainty}
    modules = [registry_of(kind).module(part.name) for kind, part in parts.items() if part is not None]
    modules += [UNCERTAINTIES.module(settings.objective.name)] if settings.objective else []
    return tuple(module for module in modules if not module.startswith("probmetric."))
