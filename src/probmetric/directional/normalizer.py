"""log C_M(kappa) and A_M(kappa) of the von Mises-Fisher density, exact for every M >= 2 and kappa >= 0.

    log C_M = (M/2 - 1) log kappa - M/2 log 2 pi - log I_{M/2-1}(kappa)
    A_M = I_{M/2} / I_{M/2-1} = -d log C_M / d kappa

`log_normalizer` and `mean_resultant_length` take kappa; `log_normalizer_of_square` and
`scaled_ratio_of_square` take kappa^2 (the pairwise kernels know ||nu_1 + nu_2||^2) and so have finite
derivatives at kappa = 0:

    d log C_M / d kappa^2 = -F / 2,      F = A_M / kappa,      F(0) = 1 / M

Evaluation follows `_series`: a square root, a reciprocal and one short polynomial per element, the same code
on every device. Backward passes are closed forms written with differentiable operations, so higher
derivatives work; dA/dkappa is not computed as 1 - A^2 - (M-1) A / kappa, which cancels at both ends. Half
precision is computed and returned in float32. The published code uses quadratics fitted on kappa in 10..50
(paper 000) or the mean of two bounds (paper 002) instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._series import RatioSeries, check_dim, ratio_series

_CACHE_BLOCK = 1 << 18  # bytes per thread


def log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """Log C_M(kappa), elementwise; `kappa` (...) >= 0, `dim` = M. Returns (...)."""
    return _LogNormalizer.apply(_full_precision(kappa), check_dim(dim))


def mean_resultant_length(kappa: Tensor, dim: int) -> Tensor:
    """A_M(kappa) = E[mu^T x] in [0, 1), elementwise; `kappa` (...) >= 0, `dim` = M. Returns (...)."""
    return _MeanResultantLength.apply(_full_precision(kappa), check_dim(dim))


def log_normalizer_of_square(square: Tensor, dim: int, *, constant: bool = True) -> Tensor:
    """Log C_M at kappa^2 = `square` (...) >= 0; without the `constant` log C_M(0) it keeps more digits in float32."""
    square = _full_precision(square)
    decay = _LogNormalizerOfSquare.apply(square, check_dim(dim))
    return decay + _series_for(square, dim).log_c0 if constant else decay


def scaled_ratio_of_square(square: Tensor, dim: int) -> Tensor:
    """A_M(kappa) / kappa at kappa^2 = `square` (...) >= 0; finite (1 / M) at 0. Returns (...)."""
    return _ScaledRatioOfSquare.apply(_full_precision(square), check_dim(dim))


def _full_precision(value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"the concentration is {kind}; it must be a floating-point tensor.")
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


@torch.compiler.assume_constant_result
def _series(dim: int, single: bool) -> RatioSeries:
    return ratio_series(dim, single)


def _series_for(value: Tensor, dim: int) -> RatioSeries:
    return _series(dim, value.dtype == torch.float32)


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """sum_k c_k x^k by Horner's rule; one pass over memory per term where it runs eagerly on CPU."""
    *rest, last = coefficients
    if x.device.type != "cpu" or torch.compiler.is_compiling() or x.requires_grad:
        result = x * last + rest.pop()
        while rest:
            result = result * x + rest.pop()
        return result
    constants = list(torch.tensor(rest, dtype=x.dtype).unbind())
    result = torch.add(constants.pop(), x, alpha=last)
    while constants:
        torch.addcmul(constants.pop(), result, x, out=result)
    return result


def _slopes(square: Tensor, series: RatioSeries) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """s, 1 / (N/2 + s), 1 + q^2 h and q^2 g at kappa^2 = `square`; differentiable."""
    shifted = square + series.shift**2
    root = shifted.sqrt()
    x = 1 / root - 1 / (2 * series.shift)
    correction = 1 + _polynomial(x, series.ratio) / shifted
    return root, 1 / (root + series.half), correction, _polynomial(x, series.slope) / shifted


def _ratio_slope(square: Tensor, series: RatioSeries) -> Tensor:
    """Derivative of F with respect to kappa^2."""
    root, leading, correction, slope = _slopes(square, series)
    return -leading / (2 * root) * (leading * correction + slope / root)


def _resultant_slope(kappa: Tensor, series: RatioSeries) -> Tensor:
    """Derivative of A: F0 (F0 (N/2 + a q) (1 + q^2 h) - (1 - q^2) q^2 g) with F0 = 1 / (N/2 + s)."""
    root, leading, correction, slope = _slopes(kappa * kappa, series)
    stretch = series.half + series.shift**2 / root
    return leading * (leading * stretch * correction - (kappa / root) ** 2 * slope)


def _plus_square(constant: float, kappa: Tensor) -> Tensor:
    """`constant` + kappa^2."""
    if kappa.device.type != "cpu" or torch.compiler.is_compiling():
        return kappa * kappa + constant
    return torch.addcmul(torch.tensor(constant, dtype=kappa.dtype), kappa, kappa)


def _ratio(shifted: Tensor, series: RatioSeries) -> Tensor:
    """F at kappa^2 + a^2 = `shifted`; few passes over memory, not differentiable."""
    root = shifted.sqrt()
    x = root.reciprocal().sub_(1 / (2 * series.shift))
    return _polynomial(x, series.ratio).add_(shifted).div_(root.add_(series.half).mul_(shifted))


def _log_normalizer(kappa: Tensor, series: RatioSeries) -> Tensor:
    """Value of log C_M(kappa), as exact as the constant log C_M(0) allows; not differentiable."""
    root = _plus_square(series.shift**2, kappa).sqrt_()
    x = root.reciprocal().sub_(1 / (2 * series.shift))
    first, *higher = series.decay
    rest = _polynomial(x, (first - series.log_c0, *higher))
    decrease = root.sub_(series.shift)
    growth = decrease.mul(1 / (series.half + series.shift)).add_(1).log_().mul_(series.half)
    return growth.sub_(decrease).sub_(rest)


def _decay(square: Tensor, series: RatioSeries) -> Tensor:
    """Value of log C_M(kappa) - log C_M(0) at kappa^2 = `square`, to its own last digits; not differentiable."""
    root = (square + series.shift**2).sqrt_()
    x = root.reciprocal().sub_(1 / (2 * series.shift))
    decrease = root.add_(series.shift).reciprocal_().mul_(square)
    growth = decrease.mul(1 / (series.half + series.shift)).log1p_().mul_(series.half)
    return growth.sub_(decrease).sub_(_polynomial(x, series.decay))


def _blockwise(function: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """`function(value)`; on CPU, where no graph is recorded, a large tensor goes in pieces that stay in cache."""
    if torch.compiler.is_compiling() or value.device.type != "cpu" or torch.is_grad_enabled():
        return function(value)
    block = _CACHE_BLOCK // value.element_size() * torch.get_num_threads()
    if value.numel() < 2 * block:
        return function(value)
    result = torch.empty_like(value, memory_format=torch.contiguous_format)
    for piece, out in zip(value.reshape(-1).split(block), result.view(-1).split(block), strict=True):
        out.copy_(function(piece))
    return result


class _Elementwise(Function):
    """Saves its input and the dimension; subclasses give `forward` and `backward`."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.dim = inputs[1]


class _MeanResultantLength(_Elementwise):
    @staticmethod
    def forward(kappa: Tensor, dim: int) -> Tensor:
        series = _series_for(kappa, dim)
        return _blockwise(lambda k: _ratio(_plus_square(series.shift**2, k), series).mul_(k), kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kappa,) = ctx.saved_tensors
        series = _series_for(kappa, ctx.dim)
        return grad * _blockwise(lambda k: _resultant_slope(k, series), kappa), None


class _LogNormalizer(_Elementwise):
    @staticmethod
    def forward(kappa: Tensor, dim: int) -> Tensor:
        series = _series_for(kappa, dim)
        return _blockwise(lambda k: _log_normalizer(k, series), kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kappa,) = ctx.saved_tensors
        return -grad * _MeanResultantLength.apply(kappa, ctx.dim), None


class _ScaledRatioOfSquare(_Elementwise):
    @staticmethod
    def forward(square: Tensor, dim: int) -> Tensor:
        series = _series_for(square, dim)
        return _blockwise(lambda x: _ratio(x + series.shift**2, series), square)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (square,) = ctx.saved_tensors
        series = _series_for(square, ctx.dim)
        return grad * _blockwise(lambda x: _ratio_slope(x, series), square), None


class _LogNormalizerOfSquare(_Elementwise):
    @staticmethod
    def forward(square: Tensor, dim: int) -> Tensor:
        series = _series_for(square, dim)
        return _blockwise(lambda x: _decay(x, series), square)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (square,) = ctx.saved_tensors
        return -0.5 * grad * _ScaledRatioOfSquare.apply(square, ctx.dim), None
