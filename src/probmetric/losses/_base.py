"""What every loss is, and the few operations they share.

A loss receives the encoder's raw output and decides itself what a norm means: proxy losses divide it away,
probabilistic losses read it as a concentration. All arithmetic runs outside autocast in float32 (float64 if the
loss was moved to float64), because exponentials of scaled cosines and Bessel functions do not survive bfloat16.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from probmetric.errors import ProbMetricError
from probmetric.registry import Flag, OptionValueError, Range

ChordLength = Annotated[float, Range(above=0, below=2)]
"""A distance between two unit vectors."""


class LossError(ProbMetricError, TypeError):
    """A loss does not keep its contract; the message says how."""


class Loss(nn.Module):
    """Base of all losses.

    Subclasses implement `compute`. `num_classes` is C, the number of training classes (labels are 0..C-1), and
    `dim` is M, the embedding's dimension.
    """

    has_proxies: ClassVar[Flag] = False
    """Whether `class_proxies` gives proxies; planning asks before a run measures them."""
    is_classifier: ClassVar[Flag] = False
    """Whether `probabilities` gives class probabilities; planning asks where something needs them."""
    least_dim: ClassVar[int] = 1
    """Smallest number of dimensions of the embeddings."""
    wants_groups: int = 1
    """Images per class a batch should hold."""
    wants_warm_start: bool = False
    """Whether `warm_start` should be called once before training."""
    wants_features: bool = False
    """Whether training should call `from_features` instead of the loss itself."""
    vectorises: ClassVar[bool] = False
    """Whether `compute` depends on its arguments and the parameters alone, by operations that `torch.vmap` knows: it
    draws nothing, notes nothing and decides nothing by values. Seeds then share one call (`training.stack`)."""

    def __init__(self, *, num_classes: int, dim: int) -> None:
        super().__init__()
        for name, number, least in (("num_classes", num_classes, 1), ("dim", dim, self.least_dim)):
            if number < least:
                raise OptionValueError(f"{name}={number}; allowed: at least {least}.")
        self.num_classes, self.dim = num_classes, dim

    def forward(
        self,
        embeddings: Tensor,  # (B, M) raw encoder output
        labels: Tensor,  # (B,) integers in 0..C-1
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:  # ()
        """Loss of one batch; `generator` drives the losses that draw samples.

        It is NaN where an embedding is not finite, also for losses that would pass such an image over.

        Raises:
            ValueError: shapes or labels that do not fit.
            LossError: `compute` returned something else than a scalar tensor.
        """
        self._check(embeddings, labels)
        return self.value(embeddings, labels, generator=generator)

    def value(self, embeddings: Tensor, labels: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The loss of embeddings (B, M) and labels (B,) that are known to fit, a scalar tensor.

        Raises:
            LossError: `compute` returned something else than a scalar tensor.
        """
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
        """Loss of one batch, of the features and the last layer z = Wh + b that turns them into embeddings."""
        return self(head(features), labels, generator=generator)

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """The loss itself: `embeddings` (B, M) in working precision, `labels` (B,), to a scalar."""
        raise NotImplementedError

    def logits(self, embeddings: Tensor) -> Tensor | None:
        """Class logits (B, C) of `embeddings` (B, M), or None where the loss defines no classifier."""
        return None

    def probabilities(
        self,
        embeddings: Tensor,  # (B, M)
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor | None:  # (B, C)
        """Class probabilities over the training classes, or None where the loss defines no classifier."""
        with torch.autocast(embeddings.device.type, enabled=False):
            logits = self.logits(embeddings.to(self.working_dtype(embeddings)))
            return None if logits is None else logits.softmax(dim=1)

    def class_proxies(self) -> tuple[Tensor, Tensor] | None:
        """Unit proxies (P, M) and the class (P,) of each, or None where the loss has none."""
        return None

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Optimiser groups of the loss's own parameters; none if it has none.

        `lr_multiplier` is relative to the run's base learning rate, `lr` is absolute and stands in its place.
        """
        parameters = list(self.parameters())
        return [{"params": parameters, "lr_multiplier": 1.0, "weight_decay": 0.0}] if parameters else []

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> float | None:
        """Initialise from the training set's `embeddings` (N, M) and `labels` (N,), once, before training.

        The embeddings are those of the network in training mode: batch normalisation that trains has its batches'
        statistics. In evaluation mode an untrained network has statistics of nothing, and other norms.
        """
        return None

    def set_epoch(self, epoch: int) -> None:
        """Tell the loss which epoch (from 0) begins."""

    def diagnostics(self) -> dict[str, float]:
        """Numbers worth a column in the training history."""
        return {}

    def working_dtype(self, embeddings: Tensor) -> torch.dtype:
        """Precision of the arithmetic: the parameters', or at least float32 where there are none."""
        parameter = next(self.parameters(), None)
        return torch.promote_types(embeddings.dtype, torch.float32) if parameter is None else parameter.dtype

    def _scalar(self, value: Tensor) -> Tensor:
        if isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point():
            return value
        found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise LossError(
            f"loss {type(self).__name__!r} returned {found}; a loss must return a scalar tensor of floats, such as the "
            "mean over the batch: values.mean()."
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


def inverse_norm(vectors: Tensor) -> Tensor:
    """1/|v| of the rows of `vectors` (..., M) as (..., 1); zero, with zero gradient, where |v| is zero."""
    inverse: Tensor = _InverseNorm.apply(vectors)
    return inverse


def unit(vectors: Tensor) -> Tensor:
    """Rows of `vectors` (..., M) scaled to norm 1; a zero row stays zero and receives no gradient."""
    return vectors * inverse_norm(vectors)


def cosine_similarities(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Cosines (B, P) of every row of `embeddings` (B, M) with every row of `proxies` (P, M).

    The proxies' norms divide the product, not the proxies: no normalised copy of a large proxy matrix is made,
    forward or backward.
    """
    cosine: Tensor = _Cosines.apply(unit(embeddings), proxies)[0]
    return cosine


class _InverseNorm(torch.autograd.Function):
    """d(1/|v|) = -v . dv / |v|^3 in one pass over the vectors."""

    @staticmethod
    def forward(vectors: Tensor) -> Tensor:
        return _inverse_norm(vectors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def vmap(_info: Any, in_dims: tuple[int], vectors: Tensor) -> tuple[Tensor, int]:
        return inverse_norm(vectors.movedim(in_dims[0], 0)), 0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        vectors, inverse = ctx.saved_tensors
        return vectors * (-gradients[0] * inverse**3)


class _Cosines(torch.autograd.Function):
    """s_ip = u_i . w_p / |w_p| for unit embeddings u (B, M) and proxies w (P, M).

    dL/dw_p = sum_i g_ip u_i / |w_p| - w_p / |w_p|^2 sum_i g_ip s_ip, one pass over the proxies beside the product.
    """

    @staticmethod
    def forward(directions: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor]:
        inverse = _inverse_norm(proxies).T
        return (directions @ proxies.T).mul_(inverse), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        cosine, inverse = output
        ctx.mark_non_differentiable(inverse)
        ctx.save_for_backward(*inputs, inverse, cosine)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], directions: Tensor, proxies: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        directions, proxies = (
            in_front(t, place, info) for t, place in zip((directions, proxies), in_dims, strict=True)
        )
        inverse = inverse_norm(proxies).mT
        return ((directions @ proxies.mT) * inverse, inverse), (0, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        directions, proxies, inverse, cosine = ctx.saved_tensors
        scaled = gradients[0] * inverse
        for_proxies = None
        if ctx.needs_input_grad[1]:
            along = (scaled * cosine).sum(dim=0) * inverse[0]
            for_proxies = (scaled.T @ directions).addcmul_(proxies, along[:, None], value=-1.0)
        return scaled @ proxies if ctx.needs_input_grad[0] else None, for_proxies


def in_front(tensor: Tensor, place: int | None, info: Any) -> Tensor:
    """`tensor` with the dimension that `torch.vmap` adds at `place` (None: nowhere) in front."""
    return tensor.expand(info.batch_size, *tensor.shape) if place is None else tensor.movedim(place, 0)


def _inverse_norm(vectors: Tensor) -> Tensor:
    """Norms whose inverse cube, which the gradient needs, would overflow count as zero."""
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    tiny = torch.finfo(norm.dtype).tiny ** (1.0 / 3.0)
    return torch.where(norm > tiny, 1.0 / norm.clamp_min(tiny), 0.0)


def squared_distances(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Squared Euclidean distances (B, P) on the unit sphere: 2 - 2 cos, never negative."""
    return (2.0 - 2.0 * cosine_similarities(embeddings, proxies)).clamp_min(0.0)


def pairwise_distances(embeddings: Tensor) -> Tensor:
    """Euclidean distances (B, B) between the unit vectors of `embeddings` (B, M); zero, without gradient, for twins."""
    directions = unit(embeddings)
    return safe_sqrt((2.0 - 2.0 * directions @ directions.T).clamp_min(0.0))


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root that treats values within rounding of zero as zero, with zero gradient there."""
    tolerance = 8.0 * torch.finfo(squared.dtype).eps
    return torch.where(squared > tolerance, squared.clamp_min(tolerance).sqrt(), 0.0)


def log_one_plus_sum_exp(logits: Tensor, keep: Tensor, dim: int) -> Tensor:
    """log(1 + sum exp(logits)) along `dim` over the entries where `keep` is true; 0 where none is kept."""
    return log_one_plus_exp(logits.masked_fill(~keep, excluded(logits)).logsumexp(dim=dim))


def log_one_plus_exp(exponent: Tensor) -> Tensor:
    """log(1 + e^x) to working precision everywhere (`softplus` switches to x at 20)."""
    return torch.logaddexp(exponent, exponent.new_zeros(()))


def excluded(logits: Tensor) -> float:
    """Logit of an entry left out of a sum of exponentials: finite, so that no inf - inf arises."""
    return torch.finfo(logits.dtype).min / 2


def without_target(logits: Tensor, labels: Tensor) -> Tensor:
    """`logits` (B, C) with each row's own class `labels` (B,) excluded from any sum of exponentials."""
    return logits.scatter(1, labels[:, None], excluded(logits))
