"""Base classes of the losses, and the operations that losses share.

A loss receives the encoder's raw output and decides itself what a norm means: proxy losses divide by it,
probabilistic losses read it as a concentration. All arithmetic runs outside autocast in float32 (float64 if the
loss was moved to float64), because exponentials of scaled cosines and Bessel functions do not survive bfloat16.

The papers' released code initialises proxies with N(0, 1)/8. It trains them under Adam at a learning rate of 0.02 or
0.04, thousands of times the network's (those of ProxyNCA at 0.0005). Only a proxy's direction matters. Adam turns it by
about 8 lr per step in any dimension M, because the norm of such a proxy is sqrt(M)/8.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probmetric.directional import VonMisesFisher, concentration_from_resultant
from probmetric.errors import ProbMetricError
from probmetric.losses import REGISTRY
from probmetric.losses._released_vmf import released_samples
from probmetric.registry import Flag, OptionValueError, Range

ChordLength = Annotated[float, Range(above=0, below=2)]
"""A distance between two unit vectors."""


INITIAL_STD = 0.125
LARGEST_ENTRY = 1e12

SCALED = WITH_MARGIN = ("proxy_anchor", "proxy_anchor_nca", "soft_triple")
"""Losses that another loss can wrap and that have the options `scale` and `margin`."""


class LossError(ProbMetricError, TypeError):
    """A loss does not keep its contract; the message says how."""


class Loss(nn.Module):
    """Base of all losses.

    Subclasses implement `compute`, or `logits` alone for their cross-entropy. `num_classes` is C, the number of
    training classes (labels are 0..C-1), and `dim` is M, the embedding's dimension.
    """

    has_proxies: ClassVar[Flag] = False
    """Whether `class_proxies` gives proxies; planning reads this before a run measures proxies."""
    is_classifier: ClassVar[Flag] = False
    """Whether `probabilities` gives class probabilities; planning reads this where a method needs them."""
    least_dim: ClassVar[int] = 1
    """Smallest number of dimensions of the embeddings."""
    wants_warm_start: bool = False
    """Whether `warm_start` should be called once before training."""
    wants_features: bool = False
    """Whether training should call `from_features` instead of the loss itself."""

    def __init__(self, *, num_classes: int, dim: int) -> None:
        super().__init__()
        for name, number, least in (("num_classes", num_classes, 1), ("dim", dim, self.least_dim)):
            if not isinstance(number, Integral) or number < least:
                raise OptionValueError(f"{name}={number!r}; allowed: at least {least}, an integer.")
        self.num_classes, self.dim = num_classes, dim

    def forward(
        self,
        embeddings: Tensor,  # (B, M) raw encoder output
        labels: Tensor,  # (B,) integers in 0..C-1; also a list or an array
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:  # ()
        """Return the loss of one batch; `generator` drives the losses that draw samples.

        The loss is NaN if an embedding is not finite, even where its formula would skip that image.

        Raises:
            TypeError: embeddings that are no tensor, or parameters of half precision.
            ValueError: shapes or labels that do not fit.
            LossError: `compute` returned something else than a scalar tensor.
        """
        if not isinstance(embeddings, Tensor):
            raise TypeError(f"embeddings are a {type(embeddings).__name__}; expected a tensor ({self.dim} columns).")
        labels = torch.as_tensor(labels, device=embeddings.device)
        self._check(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            value = self.compute(embeddings.to(self.working_dtype(embeddings)), labels.long(), generator)
            return self._scalar(value) + (embeddings.detach() * 0).sum()

    def from_features(
        self,
        features: Tensor,  # (B, D) input of the encoder's head
        head: nn.Linear,
        labels: Tensor,  # (B,) int64 in 0..C-1
        *,
        generator: torch.Generator,
    ) -> Tensor:  # ()
        """Return the loss of one batch from its features h and the `head`, which makes the embeddings z = Wh + b."""
        return self(head(features), labels, generator=generator)

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the loss () of `embeddings` (B, M), in working precision, and `labels` (B,).

        By default it is the mean cross-entropy of `logits`.
        """
        logits = self.logits(embeddings)
        if logits is None:
            raise NotImplementedError
        return F.cross_entropy(logits, labels)

    def logits(self, embeddings: Tensor) -> Tensor | None:
        """Return class logits (B, C) of `embeddings` (B, M), or None where the loss defines no classifier."""
        return None

    def probabilities(
        self,
        embeddings: Tensor,  # (B, M)
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor | None:  # (B, C)
        """Return class probabilities over the training classes, or None where the loss defines no classifier."""
        with torch.autocast(embeddings.device.type, enabled=False):
            logits = self.logits(embeddings.to(self.working_dtype(embeddings)))
            return None if logits is None else logits.softmax(dim=1)

    def natural_parameters(self, embeddings: Tensor) -> Tensor:
        """Return natural parameters kappa mu (B, M) of `embeddings` (B, M): the embeddings, or a multiple of them."""
        return embeddings

    def class_proxies(self) -> tuple[Tensor, Tensor] | None:
        """Return unit proxies (P, M) and the class (P,) of each, or None where the loss has none."""
        return None

    def class_vectors(self) -> tuple[Tensor, Tensor] | None:
        """Return the rows (P, M) that `point_at_class_means` turns and the class (P,) of each, or None without any."""
        return None

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return optimiser groups of the loss's own parameters; an empty list if it has none.

        `lr_multiplier` multiplies the run's base learning rate; `lr` is absolute and replaces it.
        """
        parameters = list(self.parameters())
        return [{"params": parameters, "lr_multiplier": 1.0, "weight_decay": 0.0}] if parameters else []

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Initialise from the training set's `embeddings` (N, M) and `labels` (N,), once, before training.

        The network makes these embeddings in training mode: trainable batch normalisation uses its batches' statistics.
        In evaluation mode it would use running statistics, which an untrained network has not measured yet.
        """

    def set_epoch(self, epoch: int) -> None:
        """Tell the loss which epoch (from 0) begins."""

    def diagnostics(self) -> dict[str, float]:
        """Return numbers worth a column in the training history."""
        return {}

    def working_dtype(self, embeddings: Tensor) -> torch.dtype:
        """Return the type the loss computes in: its parameters', or the embeddings' (at least float32) without any.

        Raises:
            TypeError: parameters of half precision.
        """
        parameter = next(self.parameters(), None)
        if parameter is None:
            return torch.promote_types(embeddings.dtype, torch.float32)
        if parameter.dtype.itemsize < torch.float32.itemsize:
            raise TypeError(
                f"the parameters of {type(self).__name__} are {parameter.dtype}; allowed: float32, float64. "
                "Exponentials of scaled cosines do not survive half precision: call loss.float(); embeddings may be of "
                "any precision."
            )
        return parameter.dtype

    def _scalar(self, value: Tensor) -> Tensor:
        if isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point():
            return value
        returned = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise LossError(
            f"loss {type(self).__name__!r} returned {returned}; a loss must return a scalar tensor of floats, such as "
            "the mean over the batch: values.mean()."
        )

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dim or embeddings.shape[0] == 0:
            raise ValueError(
                f"embeddings have shape {tuple(embeddings.shape)}; expected (B, {self.dim}) with B >= 1. "
                "Create the loss with the encoder's dim."
            )
        if labels.shape != embeddings.shape[:1]:
            raise ValueError(f"labels have shape {tuple(labels.shape)}; expected ({len(embeddings)},).")
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise ValueError(f"labels are {labels.dtype}; allowed: integers, the numbers of the classes.")
        # On an accelerator reading the extremes would stall every step; indexing checks the range there.
        if labels.device.type == "cpu":
            low, high = (int(bound) for bound in torch.aminmax(labels))
            if low < 0 or high >= self.num_classes:
                raise ValueError(
                    f"labels run from {low} to {high}; allowed: 0 to {self.num_classes - 1}. "
                    "Re-map the training classes to 0..C-1 or create the loss with their number."
                )


class ProxyLoss(Loss):
    """A loss over `proxies` (K C, M), K = `per_class` for each class. Only a proxy's direction matters."""

    has_proxies = True

    def __init__(self, *, num_classes: int, dim: int, proxy_lr: float, per_class: int = 1) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.proxy_lr = proxy_lr
        self.proxies = nn.Parameter(torch.randn(per_class * num_classes, dim) * INITIAL_STD)

    def class_proxies(self) -> tuple[Tensor, Tensor]:
        """Return unit proxies (K C, M) and the class (K C,) of each."""
        proxies, classes = self.class_vectors()
        return unit(proxies), classes

    def class_vectors(self) -> tuple[Tensor, Tensor]:
        """Return proxies (K C, M) and the class (K C,) of each; row k C + c is proxy k of class c."""
        classes = torch.arange(self.num_classes, device=self.proxies.device)
        return self.proxies, classes.repeat(len(self.proxies) // self.num_classes)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return the proxies at their own absolute learning rate and the rest at the base rate, without decay."""
        rest = [parameter for parameter in self.parameters() if parameter is not self.proxies]
        groups = [{"params": [self.proxies], "lr": self.proxy_lr, "weight_decay": 0.0}]
        return groups + ([{"params": rest, "lr_multiplier": 1.0, "weight_decay": 0.0}] if rest else [])


class WeightedLoss(Loss):
    """A classifier with one vector of weights, a row of `weight` (C, M), for each class."""

    is_classifier = True
    weight: nn.Parameter

    def class_vectors(self) -> tuple[Tensor, Tensor]:
        """Return the class weights (C, M) and their classes (C,)."""
        return self.weight, torch.arange(self.num_classes, device=self.weight.device)


class WrappingLoss(Loss):
    """A loss around another one, `inner`, whose classifier, parameters and warm start it takes over."""

    def __init__(self, inner: Loss) -> None:
        super().__init__(num_classes=inner.num_classes, dim=inner.dim)
        self.inner = inner
        self.wants_warm_start = inner.wants_warm_start

    def logits(self, embeddings: Tensor) -> Tensor | None:
        """Return class logits (B, C) of the inner loss."""
        return self.inner.logits(embeddings)

    def probabilities(self, embeddings: Tensor, *, generator: torch.Generator | None = None) -> Tensor | None:
        """Return class probabilities (B, C) of the inner loss."""
        return self.inner.probabilities(embeddings, generator=generator)

    def natural_parameters(self, embeddings: Tensor) -> Tensor:
        """Return natural parameters (B, M) of the inner loss."""
        return self.inner.natural_parameters(embeddings)

    def class_vectors(self) -> tuple[Tensor, Tensor] | None:
        """Return class vectors (P, M) and classes (P,) of the inner loss."""
        return self.inner.class_vectors()

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return the inner loss's groups and one group for the parameters that this loss adds."""
        parameters = [parameter for name, parameter in self.named_parameters() if not name.startswith("inner.")]
        extra = [{"params": parameters, "lr_multiplier": 1.0, "weight_decay": 0.0}] if parameters else []
        return self.inner.optimizer_groups() + extra

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Warm-start the inner loss."""
        self.inner.warm_start(embeddings, labels)

    def set_epoch(self, epoch: int) -> None:
        """Tell the inner loss which epoch begins."""
        self.inner.set_epoch(epoch)

    def diagnostics(self) -> dict[str, float]:
        """Return numbers of the inner loss for the training history."""
        return self.inner.diagnostics()


def inverse_norm(vectors: Tensor) -> Tensor:
    """Return 1/|v| of the rows of `vectors` (..., M) as (..., 1); zero, with zero gradient, where |v| is zero.

    A norm counts as zero if its inverse cube, which the gradient needs, would overflow.
    """
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    tiny = torch.finfo(norm.dtype).tiny ** (1.0 / 3.0)
    return torch.where(norm > tiny, 1.0 / norm.clamp_min(tiny), 0.0)


def unit(vectors: Tensor) -> Tensor:
    """Scale the rows of `vectors` (..., M) to norm 1; a zero row stays zero and receives no gradient."""
    return vectors * inverse_norm(vectors)


def bounded(vectors: Tensor) -> Tensor:
    """Shorten rows of `vectors` (..., M) until no entry is above 1e12 in size, so that squares stay finite."""
    return vectors / (vectors.detach().abs().amax(dim=-1, keepdim=True) / LARGEST_ENTRY).clamp_min(1.0)


def start_concentration(resultant: float, dim: int) -> float:
    """Return the concentration kappa at which A_M(kappa) is `resultant`."""
    return float(concentration_from_resultant(torch.tensor(resultant, dtype=torch.float64), dim))


def vmf_draws(nu: Tensor, kappa: Tensor, count: int, generator: torch.Generator | None, *, published: bool) -> Tensor:
    """Draw (count, B, M) from vMFs around `nu` (B, M) of concentrations `kappa` (B,), if `published` as released."""
    if published:
        return released_samples(unit(nu), kappa, count, generator)
    return VonMisesFisher(unit(nu), kappa, validate_args=False).rsample((count,), generator=generator)


def cosine_similarities(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Return the cosines (B, P) of every row of `embeddings` (B, M) with every row of `proxies` (P, M).

    The proxies' norms divide the product (B, P), which needs less memory than a normalised copy of many proxies.
    """
    return (unit(embeddings) @ proxies.T) * inverse_norm(proxies).T


def squared_distances(embeddings: Tensor) -> Tensor:
    """Return squared distances (B, B) of the unit vectors of `embeddings` (B, M)."""
    directions = unit(embeddings)
    return (2.0 - 2.0 * directions @ directions.T).clamp_min(0.0)


def pairs_of(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return masks (B, B): the pairs of one class, without an image and itself, and the pairs of two classes."""
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same


def safe_sqrt(squared: Tensor) -> Tensor:
    """Return the square root, treating values within rounding of zero as zero, with zero gradient there."""
    tolerance = 8.0 * torch.finfo(squared.dtype).eps
    return torch.where(squared > tolerance, squared.clamp_min(tolerance).sqrt(), 0.0)


def log_one_plus_sum_exp(logits: Tensor, keep: Tensor, dim: int) -> Tensor:
    """Return log(1 + sum exp(logits)) along `dim` over the entries where `keep` is true; 0 where none is kept."""
    return log_one_plus_exp(logits.masked_fill(~keep, excluded(logits)).logsumexp(dim=dim))


def log_one_plus_exp(exponent: Tensor) -> Tensor:
    """Return log(1 + e^x) to working precision everywhere (`softplus` switches to x at 20)."""
    return torch.logaddexp(exponent, exponent.new_zeros(()))


def excluded(logits: Tensor) -> float:
    """Return the logit of an entry left out of a sum of exponentials: finite, so that no inf - inf arises."""
    return torch.finfo(logits.dtype).min / 2


def without_target(logits: Tensor, labels: Tensor) -> Tensor:
    """Return `logits` (B, C) with each row's own class `labels` (B,) excluded from any sum of exponentials."""
    return logits.scatter(1, labels[:, None], excluded(logits))


def class_means(
    embeddings: Tensor,  # (N, M)
    labels: Tensor,  # (N,)
    num_classes: int,
) -> tuple[Tensor, Tensor]:  # (C, M), (C,) bool
    """Return the unit mean direction of every class and whether the class occurs."""
    sums = embeddings.new_zeros(num_classes, embeddings.shape[1]).index_add_(0, labels, embeddings)
    return unit(sums), torch.bincount(labels, minlength=num_classes) > 0


@torch.no_grad()
def point_at_class_means(loss: Loss, embeddings: Tensor, labels: Tensor) -> None:
    """Turn the loss's proxies or class weights, if it has any, towards the mean directions of their classes.

    This is weight imprinting (Qi et al. 2018), done before training. Rows keep their lengths. Where a class has several
    rows, each row also keeps half of its random direction, so that they differ.

    Args:
        loss: the loss.
        embeddings: of the training images (N, M).
        labels: classes 0..C-1 (N,).
    """
    vectors = loss.class_vectors()
    if vectors is None:
        return
    rows, classes = vectors
    means, present = class_means(unit(embeddings.to(rows)), labels, loss.num_classes)
    turned = means[classes] + (0.5 * unit(rows) if len(rows) > loss.num_classes else 0.0)
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    rows.copy_(torch.where(present[classes, None], length * unit(turned), rows))


def options_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `options` that are not None and are options of loss `name`."""
    accepted = REGISTRY.options(name)
    return {option: value for option, value in options.items() if option in accepted and value is not None}
