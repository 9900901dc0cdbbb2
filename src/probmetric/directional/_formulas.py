"""log C_M, A_M and their derivatives from the polynomials of `_series`, elementwise and in few passes over memory.

A formula takes the values (...), the constants of one dimension and five buffers (...), the first for its result and
the others for intermediate ones. Where a buffer is None the operation makes its own tensor: the formula is then a
chain of ordinary operations, which autograd differentiates, `torch.compile` fuses and every device runs. `evaluate`
chooses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ._series import Number, RatioSeries, ratio_series

Buffers: TypeAlias = tuple[Tensor | None, ...]
Formula: TypeAlias = Callable[[Tensor, RatioSeries, Buffers], Tensor]

_BUFFERS = 5
_CACHE_BLOCK = 1 << 18  # bytes per buffer and thread


def evaluate(formula: Formula, value: Tensor, dim: int) -> Tensor:
    """`formula` of `value` (...) in dimension `dim`.

    Where a graph is recorded or compiled, and on an accelerator, in ordinary operations. On a CPU in pieces that stay
    in cache, writing over the same buffers: fresh memory for every intermediate result costs more in page faults than
    the arithmetic.
    """
    recorded = value.requires_grad and torch.is_grad_enabled()
    if recorded or value.device.type != "cpu" or torch.compiler.is_compiling():
        return formula(value, _series(dim, value.dtype == torch.float32), (None,) * _BUFFERS)
    constants = _constants(dim, value.dtype)
    result = torch.empty_like(value, memory_format=torch.contiguous_format)
    values, results = value.reshape(-1), result.view(-1)
    pieces = -(-len(values) * value.element_size() // (_CACHE_BLOCK * torch.get_num_threads())) or 1
    spare = torch.empty((_BUFFERS - 1, -(-len(values) // pieces)), dtype=value.dtype)
    for piece, out in zip(values.tensor_split(pieces), results.tensor_split(pieces), strict=True):
        formula(piece, constants, (out, *spare[:, : len(piece)].unbind()))
    return result


def log_normalizer(kappa: Tensor, c: RatioSeries, buffers: Buffers) -> Tensor:
    """Log C_M at `kappa` (...), as exact as the constant log C_M(0) allows."""
    first, second, third, *_ = buffers
    root = torch.sqrt(_plus_square(c.square, kappa, second), out=second)
    level = _polynomial(_argument(root, c, third), c.level, first)
    decrease = torch.sub(root, c.shift, out=second)
    growth = torch.log(_affine(c.one, decrease, c.inverse, third), out=third)
    return torch.add(torch.sub(level, decrease, out=first), growth, alpha=c.weight, out=first)


def decay_of_square(square: Tensor, c: RatioSeries, buffers: Buffers) -> Tensor:
    """Log C_M(kappa) - log C_M(0) at kappa^2 = `square` (...), to its own last digits."""
    first, second, third, *_ = buffers
    root = torch.sqrt(torch.add(square, c.square, out=second), out=second)
    decay = _polynomial(_argument(root, c, third), c.decay, first)
    decrease = torch.div(square, torch.add(root, c.shift, out=second), out=second)
    growth = torch.log1p(torch.mul(decrease, c.inverse, out=third), out=third)
    return torch.add(torch.sub(decay, decrease, out=first), growth, alpha=c.weight, out=first)


def mean_resultant_length(kappa: Tensor, c: RatioSeries, buffers: Buffers) -> Tensor:
    """A_M at `kappa` (...)."""
    ratio = _scaled_ratio(_plus_square(c.square, kappa, buffers[-1]), c, buffers)
    return torch.mul(ratio, kappa, out=buffers[0])


def scaled_ratio_of_square(square: Tensor, c: RatioSeries, buffers: Buffers) -> Tensor:
    """F = A_M(kappa) / kappa at kappa^2 = `square` (...)."""
    return _scaled_ratio(torch.add(square, c.square, out=buffers[-1]), c, buffers)


def resultant_slope(kappa: Tensor, c: RatioSeries, buffers: Buffers) -> Tensor:
    """DA / dkappa = F0 (F0 (N/2 + a q) (1 + q^2 h) - (1 - q^2) q^2 g) with F0 = 1 / (N/2 + s), at `kappa` (...)."""
    first, second, third, fourth, fifth = buffers
    shifted = _plus_square(c.square, kappa, fifth)
    root = torch.sqrt(shifted, out=second)
    x = _argument(root, c, third)
    correction = _correction(x, shifted, c, first)
    slope = torch.div(_polynomial(x, c.slope, fourth), shifted, out=fourth)
    stretch = torch.add(torch.div(c.square, root, out=fifth), c.half, out=fifth)
    steep = torch.add(root, c.half, out=third)
    rising = torch.div(torch.mul(correction, stretch, out=first), steep, out=first)
    share = torch.div(kappa, root, out=fifth)
    falling = torch.mul(slope, torch.mul(share, share, out=fifth), out=fourth)
    return torch.div(torch.sub(rising, falling, out=first), steep, out=first)


def ratio_slope(square: Tensor, c: RatioSeries, buffers: Buffers) -> Tensor:
    """DF / dkappa^2 = -F0 / (2 s) (F0 (1 + q^2 h) + q^2 g / s) at kappa^2 = `square` (...)."""
    first, second, third, fourth, fifth = buffers
    shifted = torch.add(square, c.square, out=fifth)
    root = torch.sqrt(shifted, out=second)
    x = _argument(root, c, third)
    correction = _correction(x, shifted, c, first)
    slope = torch.div(torch.div(_polynomial(x, c.slope, fourth), shifted, out=fourth), root, out=fourth)
    steep = torch.add(root, c.half, out=third)
    total = torch.add(torch.div(correction, steep, out=first), slope, out=first)
    return torch.div(total, torch.mul(torch.mul(steep, root, out=third), -2.0, out=third), out=first)


def _scaled_ratio(shifted: Tensor, c: RatioSeries, buffers: Buffers) -> Tensor:
    """F = (1 + q^2 h) / (N/2 + s) at kappa^2 + a^2 = `shifted`."""
    first, second, third, *_ = buffers
    root = torch.sqrt(shifted, out=second)
    correction = _correction(_argument(root, c, third), shifted, c, first)
    return torch.div(correction, torch.add(root, c.half, out=second), out=first)


def _correction(x: Tensor, shifted: Tensor, c: RatioSeries, out: Tensor | None) -> Tensor:
    """1 + q^2 h."""
    polynomial = _polynomial(x, c.ratio, out)
    if isinstance(c.one, Tensor):
        return torch.addcdiv(c.one, polynomial, shifted, out=out)
    return polynomial / shifted + c.one


def _argument(root: Tensor, c: RatioSeries, out: Tensor | None) -> Tensor:
    """The polynomials' argument, 1 / s - centre."""
    inverse = torch.reciprocal(root, out=out)
    return torch.sub(inverse, c.centre, out=out) if c.centre else inverse


def _plus_square(constant: Number, kappa: Tensor, out: Tensor | None) -> Tensor:
    if isinstance(constant, Tensor):
        return torch.addcmul(constant, kappa, kappa, out=out)
    return kappa * kappa + constant


def _affine(constant: Number, x: Tensor, factor: float, out: Tensor | None) -> Tensor:
    if isinstance(constant, Tensor):
        return torch.add(constant, x, alpha=factor, out=out)
    return x * factor + constant


def _polynomial(x: Tensor, coefficients: tuple[Number, ...], out: Tensor | None) -> Tensor:
    """sum_k c_k x^k by Horner's rule, one pass over memory per term where the coefficients are tensors."""
    *rest, constant, last = coefficients
    result = _affine(constant, x, float(last), out)
    for constant in reversed(rest):
        if isinstance(constant, Tensor):
            torch.addcmul(constant, result, x, out=result)
        else:
            result = result * x + constant
    return result


def _series(dim: int, single: bool) -> RatioSeries:
    return ratio_series(dim, single)


# What torch.compiler.assume_constant_result does, without importing torch._dynamo for it: seconds in every process.
vars(_series)["_dynamo_marked_constant"] = True


@functools.lru_cache(maxsize=256)
def _constants(dim: int, dtype: torch.dtype) -> RatioSeries:
    """The series with its added and multiplied numbers as scalar tensors, which need no conversion at every use."""
    series = ratio_series(dim, dtype == torch.float32)
    scalars: dict[str, Any] = {
        name: torch.tensor(getattr(series, name), dtype=dtype) for name in ("half", "shift", "square", "one")
    }
    polynomials: dict[str, Any] = {
        name: (*torch.tensor(value[:-1], dtype=dtype).unbind(), value[-1])
        for name, value in series._asdict().items()
        if isinstance(value, tuple)
    }
    return series._replace(**scalars, **polynomials)
