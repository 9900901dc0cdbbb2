"""log C_M(kappa) and A_M(kappa) of the von Mises-Fisher density, exact for every M >= 2 and kappa >= 0.

    log C_M = (M/2 - 1) log kappa - M/2 log 2 pi - log I_{M/2-1}(kappa)
    A_M = I_{M/2} / I_{M/2-1} = -d log C_M / d kappa

`log_normalizer` and `mean_resultant_length` take kappa; `log_normalizer_of_square` and
`scaled_ratio_of_square` take kappa^2 (the pairwise kernels know ||nu_1 + nu_2||^2) and so have finite
derivatives at kappa = 0:

    d log C_M / d kappa^2 = -F / 2,      F = A_M / kappa,      F(0) = 1 / M

Evaluation follows `_series` and `_formulas`: a square root, a reciprocal and one short polynomial per element, the
same code on every device. Backward passes are closed forms written with differentiable operations, so higher
derivatives work; dA/dkappa is not computed as 1 - A^2 - (M-1) A / kappa, which cancels at both ends. Half
precision is computed and returned in float32. The published code uses quadratics fitted on kappa in 10..50
(paper 000) or the mean of two bounds (paper 002) instead.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from . import _formulas
from ._formulas import Formula, evaluate
from ._series import check_dim, log_c0


def log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """Log C_M(kappa), elementwise; `kappa` (...) >= 0, `dim` = M. Returns (...)."""
    return _LogNormalizer.of(_full_precision(kappa), check_dim(dim))


def mean_resultant_length(kappa: Tensor, dim: int) -> Tensor:
    """A_M(kappa) = E[mu^T x] in [0, 1), elementwise; `kappa` (...) >= 0, `dim` = M. Returns (...)."""
    return _MeanResultantLength.of(_full_precision(kappa), check_dim(dim))


def log_normalizer_of_square(square: Tensor, dim: int, *, constant: bool = True) -> Tensor:
    """Log C_M at kappa^2 = `square` (...) >= 0; without the `constant` log C_M(0) it keeps more digits in float32."""
    square = _full_precision(square)
    decay = _LogNormalizerOfSquare.of(square, check_dim(dim))
    return decay + log_c0(dim) if constant else decay


def scaled_ratio_of_square(square: Tensor, dim: int) -> Tensor:
    """A_M(kappa) / kappa at kappa^2 = `square` (...) >= 0; finite (1 / M) at 0. Returns (...)."""
    return _ScaledRatioOfSquare.of(_full_precision(square), check_dim(dim))


def _full_precision(value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"the concentration is {kind}; it must be a floating-point tensor.")
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


class _Elementwise(Function):
    """A function of kappa or kappa^2 in dimension M by its `formula`; subclasses add `forward` and `backward`."""

    formula: ClassVar[Formula]

    @classmethod
    def of(cls, value: Tensor, dim: int) -> Tensor:
        """The function at `value` (...); a node of the graph only where one is needed."""
        result: Tensor = cls.apply(value, dim) if value.requires_grad else evaluate(cls.formula, value, dim)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.dim = inputs[1]


class _MeanResultantLength(_Elementwise):
    formula = _formulas.mean_resultant_length

    @staticmethod
    def forward(kappa: Tensor, dim: int) -> Tensor:
        return evaluate(_formulas.mean_resultant_length, kappa, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return evaluate(_formulas.resultant_slope, ctx.saved_tensors[0], ctx.dim).mul_(grad), None


class _LogNormalizer(_Elementwise):
    formula = _formulas.log_normalizer

    @staticmethod
    def forward(kappa: Tensor, dim: int) -> Tensor:
        return evaluate(_formulas.log_normalizer, kappa, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _MeanResultantLength.apply(ctx.saved_tensors[0], ctx.dim).mul_(grad).neg_(), None


class _ScaledRatioOfSquare(_Elementwise):
    formula = _formulas.scaled_ratio_of_square

    @staticmethod
    def forward(square: Tensor, dim: int) -> Tensor:
        return evaluate(_formulas.scaled_ratio_of_square, square, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return evaluate(_formulas.ratio_slope, ctx.saved_tensors[0], ctx.dim).mul_(grad), None


class _LogNormalizerOfSquare(_Elementwise):
    formula = _formulas.decay_of_square

    @staticmethod
    def forward(square: Tensor, dim: int) -> Tensor:
        return evaluate(_formulas.decay_of_square, square, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _ScaledRatioOfSquare.apply(ctx.saved_tensors[0], ctx.dim).mul_(grad).mul_(-0.5), None
