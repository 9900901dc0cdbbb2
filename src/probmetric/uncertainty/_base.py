"""`DirectionalBatch`, the record that every method returns, and the interface of the methods.

An uncertainty turns an encoder and images into a directional distribution per image: a mean direction on the
unit sphere, a scalar that grows with doubt and, where the method has them, a concentration, samples and class
probabilities. Fitting (`fit`) is separate from embedding (`bind`), so that a posterior is fitted once, stored and
reused. Randomness enters through `generator` (fitting) and `seed` (embedding) only: batches that share a seed share
their draws, at any batch size.

With an `Objective` an uncertainty shapes training. An objective wraps the run's loss and receives the features h (B, D)
and the head (z = Wh + b) instead of z, so that it can perturb the last layer or attach its own heads to h. It is a
`Loss`: the trainer optimises, checkpoints and restores it like one, and evaluation asks it for class probabilities. The
only difference is that the trainer calls `from_features`, because `wants_features` is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from probmetric.errors import ProbMetricError
from probmetric.lazy import uncompiled
from probmetric.losses import Loss
from probmetric.losses._base import WrappingLoss
from probmetric.metrics.arrays import UNIT_TOLERANCE
from probmetric.registry import Flag

if TYPE_CHECKING:
    from probmetric.models import Encoder

Batches = Iterable[tuple[Tensor, Tensor]]
Posterior = dict[str, Tensor]
Network = TypeVar("Network", bound=nn.Module)

_ROWS = 1024
LEAST_SURE = 1 / torch.finfo(torch.float32).eps
"""The doubt about an embedding without a direction (a row of zeros): the largest possible doubt."""


class UncertaintyError(ProbMetricError, ValueError):
    """An uncertainty does not keep its contract; the message says how."""


@dataclass
class DirectionalBatch:
    """Directional distributions of B images in M dimensions.

    `variance` is that of the embedding's coordinates, in units of its squared length: before the projection onto the
    sphere, the method describes the embedding by N(mean, variance). `probabilities` are the mean of the classifier's
    probabilities over the distribution.
    """

    mean: Tensor  # (B, M) unit rows, zeros where the embedding has no direction
    uncertainty: Tensor  # (B,) higher = less sure
    concentration: Tensor | None = None  # (B,)
    variance: Tensor | None = None  # (B, M)
    samples: Tensor | None = None  # (B, S, M) unit rows
    probabilities: Tensor | None = None  # (B, C)

    def __len__(self) -> int:
        return self.mean.shape[0]

    @classmethod
    def of_lengths(cls, vectors: Tensor, probabilities: Tensor | None = None) -> DirectionalBatch:
        """Return directions of `vectors` (B, M) whose lengths are concentrations; the doubt is 1 / length."""
        mean, length = polar(vectors)
        kappa = length.clamp(1 / LEAST_SURE, torch.finfo(length.dtype).max)
        return cls(mean, kappa.reciprocal(), kappa, probabilities=probabilities)

    def settled(self) -> DirectionalBatch:
        """Give images without a direction the doubt `LEAST_SURE`, and limit every doubt and variance to it."""
        lost = (self.mean == 0).all(dim=1)
        self.uncertainty = self.uncertainty.clamp_max(LEAST_SURE).masked_fill(lost, LEAST_SURE)
        if self.concentration is not None:
            self.concentration = self.concentration.masked_fill(lost, 1 / LEAST_SURE)
        if self.variance is not None:
            self.variance = self.variance.clamp_max(LEAST_SURE)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are present, by name, as they are written to disk."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def to(self, device: torch.device | str) -> DirectionalBatch:
        """Return the same record on `device`."""
        return DirectionalBatch(**{name: value.to(device) for name, value in self.tensors().items()})

    @classmethod
    def concatenate(cls, batches: Sequence[DirectionalBatch]) -> DirectionalBatch:
        """Return one record for all images of `batches`, in order."""
        if not batches:
            raise ValueError("no batches to concatenate: the image source is empty.")
        parts = [batch.tensors() for batch in batches]
        return cls(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


Part = Tensor | DirectionalBatch


@dataclass(frozen=True)
class Fitting:
    """The encoder, data and loss that an uncertainty is fitted to."""

    encoder: Encoder
    batches: Batches  # of the training split: images (B, ...) and labels (B,)
    loss: Loss | None
    generator: torch.Generator
    validation: Batches | None

    @property
    def device(self) -> torch.device:
        """Return the encoder's device."""
        return device_of(self.encoder, torch.empty(0))


@dataclass(frozen=True)
class Predictor:
    """An uncertainty with the encoder, loss, posterior and seed it uses: images in, directional distributions out.

    Embeddings are always computed in float32, whatever precision the training steps had. An uncertainty needs digits
    that bfloat16 does not have, and numbers measured on one device then hold on another.
    """

    uncertainty: Uncertainty
    encoder: Encoder
    loss: Loss | None
    posterior: Posterior
    seed: int
    classifies: bool = True

    def __call__(self, images: Tensor | Iterable[Tensor]) -> DirectionalBatch:
        """Return directional distributions, on the CPU, of images (B, ...) or of a pass of batches of them.

        All batches of a pass, and all passes, share their draws, at any batch size.
        """
        return self.describe(self.represent([images] if isinstance(images, Tensor) else images))

    def represent(self, batches: Iterable[Tensor]) -> list[Part]:
        """Begin a call: return what the uncertainty keeps of each batch. Several processes can share this half."""
        with evaluating(self.encoder, self.loss):
            return [self._part(inputs_for(self.encoder, images)) for images in batches]

    def describe(self, parts: Sequence[Part]) -> DirectionalBatch:
        """Finish a call: describe what `represent` kept of the batches of a whole pass, in order, as one record."""
        if not parts:
            raise ValueError("no batches to embed: the image source is empty.")
        records = [part for part in parts if isinstance(part, DirectionalBatch)]
        if records:
            return DirectionalBatch.concatenate(records)
        rows = torch.cat([part for part in parts if isinstance(part, Tensor)])
        with evaluating(self.encoder, self.loss):
            return self._settled(self.uncertainty.describe(rows.to(device_of(self.encoder, rows)), self))

    def natural_parameters(self, embeddings: Tensor) -> Tensor:
        """Return natural parameters kappa mu (N, M) of embeddings (N, M), at the scale that the loss reads."""
        return embeddings if self.loss is None else self.loss.natural_parameters(embeddings)

    def probabilities(self, embeddings: Tensor) -> Tensor | None:
        """Return class probabilities (N, C) of embeddings (N, M) where the loss trained a classifier, else None.

        An uncertainty that draws calls this once per draw and takes the mean. A predictor with `classifies` false, for
        images of other classes than the training classes, returns None too; an uncertainty made of class probabilities
        (such as `softmax`) reads the loss itself and has them still.
        """
        if not self.classifies:
            return None
        return class_probabilities(self.loss, embeddings, self.seed)

    def _part(self, images: Tensor) -> Part:
        try:
            part = self.uncertainty.represent(images, self)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            shape, name = tuple(images.shape), type(self.encoder).__name__
            raise ValueError(f"{name} cannot read images of shape {shape}: {error}") from error
        return self._settled(part) if isinstance(part, DirectionalBatch) else part

    def _settled(self, record: DirectionalBatch) -> DirectionalBatch:
        """Return the uncertainty's record of N images, checked, settled and on the CPU.

        Raises:
            UncertaintyError: a tensor has another shape, a number is not finite, or a mean is no unit row.
        """
        if torch.compiler.is_compiling():  # sizes and numbers are symbols
            return record.settled().to("cpu")
        count, who = len(record), f"uncertainty {type(self.uncertainty).__name__!r}"
        each, rows = (count,), (count, record.mean.shape[-1])
        shapes = {"mean": rows, "uncertainty": each, "concentration": each, "variance": rows}
        for part, values in record.tensors().items():
            shape = shapes.get(part, (count, *values.shape[1:]))
            if values.shape != shape:
                raise UncertaintyError(f"{who} gave {part} of shape {tuple(values.shape)}; expected {shape}.")
        record = record.settled().to("cpu")
        for part, values in record.tensors().items():
            if len(bad := (~values.isfinite()).nonzero()):
                raise UncertaintyError(f"{who} gave NaN or infinity as {part} of image {int(bad[0, 0])}.")
        length = record.mean.norm(dim=1)
        if len(bad := length[(length > 0) & ((length - 1).abs() > UNIT_TOLERANCE)]):
            raise UncertaintyError(
                f"{who} gave a mean of length {bad[0]:.4g}; means are unit vectors: "
                "torch.nn.functional.normalize(rows, dim=1)."
            )
        return record


class Uncertainty:
    """Base of all uncertainties.

    A subclass turns images into distributions in one of two ways:

    - `represent` keeps rows of a batch, by default the raw embeddings. `describe` then describes the rows of a whole
      pass together, so that expensive draws are made once.
    - `represent` itself describes a batch, because the method needs the images, and there is no `describe`.
    """

    fits: bool = False
    """Whether it needs a posterior from `fit`."""
    trains_encoder: bool = False
    """Whether it has an `objective`, so that a method may name it as its objective."""
    replaces_loss: bool = False
    """Whether its objective replaces the run's loss, whose classifier then learns nothing."""
    reads_images: bool = False
    """Whether it reads the images themselves, not only their embeddings."""
    fits_each_image: bool = False
    """Whether `fit` reads every training image once as it is, instead of the sampler's augmented batches."""
    closed_set: bool = False
    """Whether it needs validation images of the training classes; planning then refuses an open-set dataset."""
    needs_head: ClassVar[Flag] = False
    """Whether it needs the encoder's last linear layer; planning then refuses a backbone without one."""
    needs_classifier: ClassVar[Flag] = False
    """Whether it needs class probabilities; planning then refuses a loss that gives none."""
    members: int = 1
    """Number of encoders it combines; several are passed as one `EncoderEnsemble`."""
    needs: tuple[str, ...] = ()
    """Tensors its posterior must hold."""

    def objective(self, encoder: Encoder, loss: Loss, *, num_images: int) -> Objective | None:
        """Return the loss to train `encoder` with instead of `loss`, for methods that shape training; else None.

        `num_images` is the size of the training set. The objective is trained, stored and restored like any loss,
        and is then what `fit` and `bind` receive as `loss`.
        """
        return None

    def check(self, encoder: Encoder, images: Tensor) -> None:
        """Raise a ValueError if `encoder` cannot have this uncertainty for images (B, ...); asked before training."""

    def fit(
        self,
        encoder: Encoder,
        batches: Batches,
        *,
        loss: Loss | None = None,
        generator: torch.Generator,
        validation: Batches | None = None,
    ) -> Posterior:
        """Fit on training batches of (images (B, ...), labels (B,)) and return the posterior's tensors."""
        held_out = None if validation is None else _Inputs(encoder, validation)
        with torch.autocast(device_of(encoder, torch.empty(0)).type, enabled=False):
            inputs = _Inputs(encoder, batches, may_be_empty=self.trains_encoder)
            return self.fitted(Fitting(encoder, inputs, loss, generator, held_out))

    def bind(
        self, encoder: Encoder, *, loss: Loss | None = None, posterior: Posterior | None = None, seed: int
    ) -> Predictor:
        """Return a callable on images; its draws depend on `seed` only.

        Raises:
            ValueError: the posterior lacks a tensor; says which and how to get it.
        """
        missing = [key for key in self.needs if key not in (posterior or {})]
        if missing:
            have = "there is none" if posterior is None else f"this one has {sorted(posterior)}"
            raise ValueError(f"{type(self).__name__} needs a posterior with {missing}; {have}. Run fit first.")
        return Predictor(self, encoder, loss, posterior or {}, seed)

    def fitted(self, fitting: Fitting) -> Posterior:
        """Return the posterior's tensors; a subclass with `fits` defines this."""
        raise TypeError(f"{type(self).__name__} fits nothing (fits = False); call bind directly.")

    def represent(self, images: Tensor, predictor: Predictor) -> Part:
        """Return rows (B, ...) to keep of images (B, ...) until the pass is complete, or their finished record."""
        embeddings: Tensor = predictor.encoder(images)
        return embeddings

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of the rows (N, ...) that `represent` made of a whole pass."""
        raise NotImplementedError


class Objective(WrappingLoss):
    """A loss on features and head, around the run's own loss `inner`; a subclass defines `from_features`."""

    wants_features = True

    def forward(self, embeddings: Tensor, labels: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the inner loss of embeddings (B, M), for reports that have no features."""
        return self.inner(embeddings, labels, generator=generator)


@contextlib.contextmanager
def evaluating(*modules: nn.Module | None) -> Iterator[None]:
    """Set evaluation mode without gradients or autocast for the block; training flags are restored afterwards."""
    flags = [(part, part.training) for module in modules if module is not None for part in module.modules()]
    devices = (parameter.device.type for part, _ in flags for parameter in part.parameters(recurse=False))
    try:
        for part, _ in flags:
            part.training = False
        with torch.no_grad(), torch.autocast(next(devices, "cpu"), enabled=False):
            yield
    finally:
        for part, training in flags:
            part.training = training


def polar(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return directions (..., M), zeros where a vector is zero, and lengths (...) of `vectors` (..., M).

    A length whose square would over- or underflow is measured in units of the largest entry.
    """
    largest, length = vectors.abs().amax(dim=-1, keepdim=True), vectors.norm(dim=-1, keepdim=True)
    extreme = (largest > 0) & ((length < 1e-12) | (length > 1e18))
    unit = torch.where(extreme, largest, 1.0)
    scaled = vectors / unit
    length = scaled.norm(dim=-1, keepdim=True)
    return scaled / length.clamp_min(torch.finfo(length.dtype).tiny), (length * unit).squeeze(-1)


def device_of(encoder: nn.Module, images: Tensor) -> torch.device:
    """Return the encoder's device; for an encoder without parameters, the device of the images."""
    parameter = next(encoder.parameters(), None)
    return images.device if parameter is None else parameter.device


def inputs_for(encoder: nn.Module, images: Tensor) -> Tensor:
    """Return images (B, ...) on the encoder's device, in its precision.

    Raises:
        TypeError: they are no floating-point tensor, or the encoder is of half precision.
        ValueError: they are a single image, or hold a value that is no number; names the image.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = getattr(images, "dtype", type(images).__name__)
        raise TypeError(
            f"images are {kind}; a network reads normalised floating-point tensors: those of the view it was trained "
            "with, or hand the pictures to `Model.embed`."
        )
    if images.ndim < 2:
        raise ValueError(f"images have shape {tuple(images.shape)}; the first axis is that of the batch.")
    bad = (~images.isfinite()).flatten(1).any(dim=1).nonzero()
    if len(bad):
        raise ValueError(f"image {int(bad[0])} of the batch holds a value that is no finite number.")
    parameter = next((part for part in encoder.parameters() if part.is_floating_point()), images.float())
    if parameter.dtype.itemsize < torch.float32.itemsize:
        raise TypeError(
            f"{type(encoder).__name__} computes in {parameter.dtype}; embeddings are measured in float32 or float64. "
            "Call encoder.float(); images may be of any precision."
        )
    return images.to(parameter.device, parameter.dtype)


class _Inputs:
    """Batches of (images, labels) with the images as `inputs_for` returns them; you can read them several times.

    Raises:
        ValueError: the batches hold no image, and `may_be_empty` is false.
    """

    def __init__(self, encoder: nn.Module, batches: Batches, *, may_be_empty: bool = False) -> None:
        self.encoder, self.batches, self.may_be_empty = encoder, batches, may_be_empty

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        some = self.may_be_empty
        for images, labels in self.batches:
            if len(images):
                some = True
                yield inputs_for(self.encoder, images), labels
        if not some:
            raise ValueError("fit got no images: the set it is fitted to is empty.")


def linear_head(encoder: Encoder) -> nn.Linear:
    """Return the encoder's final linear layer, or an error for an encoder without one."""
    head = getattr(encoder, "head", None)
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"{type(encoder).__name__}.head is {type(head).__name__}; "
            "the last-layer Laplace approximation needs a torch.nn.Linear."
        )
    return head


def embedded(encoder: Encoder, features: Tensor) -> Tensor:
    """Return raw embeddings (B, M) of features (B, D): the features themselves for an encoder without a head."""
    return features if encoder.head is None else encoder.head(features)


def trained(
    network: Callable[[], Network],
    loss: Callable[..., Tensor],
    batches: Sequence[tuple[Tensor, ...]],  # features (B, D) and what the loss compares the output with
    fitting: Fitting,
    *,
    epochs: int,
    learning_rate: float,
) -> Network:
    """Make a small network of features and train it by Adam, with the batches shuffled in every epoch."""
    shuffle = torch.Generator().manual_seed(seed_from(fitting.generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shuffle.initial_seed())
        made = network().to(fitting.device)
    optimizer = uncompiled(torch.optim.Adam)(made.parameters(), lr=learning_rate)
    for _ in range(epochs):
        for index in torch.randperm(len(batches), generator=shuffle).tolist():
            features, *targets = batches[index]
            optimizer.zero_grad()
            loss(made(features), *targets).backward()
            optimizer.step()
    return made


def seed_from(generator: torch.Generator) -> int:
    """Return a seed drawn from `generator`, which may be on any device."""
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


def class_probabilities(loss: Loss | None, embeddings: Tensor, seed: int) -> Tensor | None:
    """Return probabilities (N, C) of a loss that defines a classifier for `embeddings` (N, M), else None.

    A loss that draws samples gets one seeded generator for all rows and a bounded number of rows at a time.
    """
    if loss is None:
        return None
    generator = torch.Generator(device=embeddings.device).manual_seed(seed)
    parts = []
    for rows in embeddings.split(_ROWS):
        part = loss.probabilities(rows, generator=generator)
        if part is None:
            return None
        parts.append(part)
    return torch.cat(parts)
