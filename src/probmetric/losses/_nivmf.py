"""Log-densities of non-isotropic vMF proxies at many points, as matrix products.

With K = diag(kappa), tilde kappa = |K mu| and unit x, s(K x, K mu) tilde kappa = sum_m kappa_m^2 mu_m x_m / |K x|, so

    log rho(x) = log C_M(tilde kappa) + log D + (x (kappa^2 mu)^T) / sqrt(x^2 (kappa^2)^T)

needs two products over (points, M) x (M, C) and no (points, C, M) tensor. log D runs to thousands and is divided by a
small temperature afterwards, so what all classes share is left out: with g the geometric mean of kappa, r = kappa / g,

    "exact"    log D = -M/2 log |r x|^2                          (the powers of g cancel)
    "paper"    log D = M log g - log tilde kappa, less its mean over the classes
    "none"     log D = 0

`stretch=False` is the code released with paper 000: the cosine is taken between x itself and K mu, one product.

`_Stretched` goes through the classes in blocks that stay in cache and has its own backward pass, with p = a x,
q = b x^2, a = g r^2 mu, b = r^2, e = M or 0 and t = p / sqrt(q) - e/2 log q:

    dt/dp = q^(-1/2)        dt/dq = -1/2 q^(-1/2) (p q^(-1/2) + e) dt/dp
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from probmetric.directional.nonisotropic import Normalizer
from probmetric.losses._base import inverse_norm, unit

LogNormalizer = Callable[[Tensor, int], Tensor]

_CACHE_BLOCK = 1 << 19
_DEVICE_BLOCK = 1 << 26


def nivmf_log_densities(
    points: Tensor,  # (P, M) unit rows
    proxies: Tensor,  # (C, M) of any norm
    log_concentrations: Tensor,  # (C, M)
    log_normalizer: LogNormalizer,  # of (kappa^2 (C,), M)
    normalizer: Normalizer = "exact",
    stretch: bool = True,
) -> Tensor:  # (P, C)
    """Return log rho_c(x_p) up to a constant that all classes share."""
    if stretch:
        return nivmf_log_likelihoods(points.unsqueeze(0), proxies, log_concentrations, log_normalizer, normalizer)
    size = log_concentrations.mean(dim=1)
    stretched = log_concentrations.exp() * unit(proxies)
    length_square = stretched.square().sum(dim=1) * (-2 * size).exp()
    offset = _offset(size, length_square, points.shape[1], log_normalizer, normalizer)
    return torch.addmm(offset, points, stretched.T)


def nivmf_log_likelihoods(
    draws: Tensor,  # (N, B, M) unit rows
    proxies: Tensor,  # (C, M) of any norm
    log_concentrations: Tensor,  # (C, M)
    log_normalizer: LogNormalizer,  # of (kappa^2 (C,), M)
    normalizer: Normalizer = "exact",
) -> Tensor:  # (B, C)
    """Return the log of the mean over the draws of rho_c, up to a constant that all classes share."""
    mean, size, length_square = _Stretched.apply(draws, proxies, log_concentrations, normalizer == "exact")
    return mean + _offset(size, length_square, draws.shape[2], log_normalizer, normalizer)


def _offset(
    size: Tensor,  # (C,) log of the geometric mean of kappa
    length_square: Tensor,  # (C,) |r mu|^2
    dim: int,
    log_normalizer: LogNormalizer,
    normalizer: Normalizer,
) -> Tensor:  # (C,)
    """Return what does not depend on the point: log C_M(tilde kappa), and the published log D."""
    offset = log_normalizer((2 * size).exp() * length_square, dim)
    if normalizer != "paper":
        return offset
    tiny = torch.finfo(length_square.dtype).tiny
    log_volume = dim * size - size - 0.5 * length_square.clamp_min(tiny).log()
    return offset + log_volume - log_volume.mean()


class _Stretched(Function):
    """Log-mean over draws (N, B, M) of e^t (B, C), log g (C,) and |r mu|^2 (C,), of proxies and log kappa (C, M)."""

    @staticmethod
    def forward(ctx: Any, draws: Tensor, proxies: Tensor, logs: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
        extra = float(draws.shape[2]) if exact else 0.0
        points = draws.flatten(0, 1)
        squares = points.square()
        mean = points.new_empty(draws.shape[1], len(proxies))
        size, length_square = logs.mean(dim=1), logs.new_empty(len(logs))
        kept: list[Tensor] = []
        for block in _blocks(points, proxies):
            linear, quadratic, _, direction = _stretch(proxies[block], logs[block], size[block])
            length_square[block] = torch.linalg.vecdot(linear, direction) * (-size[block]).exp()
            projection, root = points @ linear.T, squares @ quadratic.T
            nowhere = root <= torch.finfo(root.dtype).tiny
            root.rsqrt_().masked_fill_(nowhere, 0.0)
            projection.mul_(root)
            kept += _log_mean(projection, root, extra, mean[:, block])
        ctx.save_for_backward(draws, proxies, logs, size, *kept)
        return mean, size, length_square

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_mean: Tensor, to_size: Tensor, to_length: Tensor) -> tuple[Tensor | None, ...]:
        draws, proxies, logs, size, *kept = ctx.saved_tensors
        points = draws.flatten(0, 1)
        squares = points.square()
        to_points, to_squares = torch.zeros_like(points), torch.zeros_like(points)
        to_proxies, to_logs = torch.empty_like(proxies), torch.empty_like(logs)
        for number, block in enumerate(_blocks(points, proxies)):
            linear, quadratic, inverse, direction = _stretch(proxies[block], logs[block], size[block])
            first, second = kept[2 * number : 2 * number + 2]
            grad = torch.mul(first.view(*draws.shape[:2], -1), to_mean[:, block]).flatten(0, 1)
            to_linear = grad.T @ points
            to_points.addmm_(grad, linear)
            grad.mul_(second)
            to_quadratic = grad.T @ squares
            to_squares.addmm_(grad, quadratic)
            along = to_length[block].unsqueeze(1) * direction
            scale = size[block].exp().unsqueeze(1)
            to_direction = torch.addcmul(2 * along, to_linear, scale).mul_(quadratic)
            radial = torch.linalg.vecdot(to_direction, direction).unsqueeze(1)
            to_proxies[block] = to_direction.addcmul_(direction, radial, value=-1.0).mul_(inverse)
            to_scale = torch.linalg.vecdot(to_linear, linear)
            to_quadratic.addcmul_(along + to_linear.mul_(scale), direction).mul_(quadratic).mul_(2.0)
            shared = to_scale + to_size[block] - to_quadratic.sum(dim=1)
            to_logs[block] = to_quadratic.add_((shared / logs.shape[1]).unsqueeze(1))
        to_draws = to_points.addcmul_(to_squares, points, value=2.0).view_as(draws)
        return to_draws, to_proxies, to_logs, None


def _blocks(points: Tensor, proxies: Tensor) -> Iterator[slice]:
    """Yield classes whose (points, classes) and (classes, M) matrices stay in cache, or in an accelerator's memory."""
    budget = _CACHE_BLOCK if points.device.type == "cpu" else _DEVICE_BLOCK
    length = max(16, budget // max(len(points), points.shape[1]))
    return (slice(first, first + length) for first in range(0, len(proxies), length))


def _stretch(proxies: Tensor, logs: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return A = g r^2 mu (c, M), b = r^2 (c, M), 1 / |proxy| (c, 1) and mu (c, M)."""
    quadratic = torch.sub(logs, size.unsqueeze(1)).mul_(2.0).exp_()
    inverse = inverse_norm(proxies)
    direction = proxies * inverse
    return (quadratic * direction).mul_(size.exp().unsqueeze(1)), quadratic, inverse, direction


def _log_mean(projection: Tensor, root: Tensor, extra: float, out: Tensor) -> list[Tensor]:
    """Write log 1/N sum_n e^t to `out` (B, c); return the factors (N B, c) of dp and, on top of it, of dq.

    `projection` is p q^(-1/2), `root` q^(-1/2), both (N B, c) and overwritten. A point of length zero has no direction:
    its root is zero, its e^t that of a constant.
    """
    count = len(projection) // len(out)
    exponent = projection.clone()
    if extra:
        exponent.add_(root.log().masked_fill_(root == 0, 0.0), alpha=extra)
    by_draw = exponent.view(count, *out.shape)
    if count == 1:
        out.copy_(exponent)
        weight = root.clone()
    else:
        torch.logsumexp(by_draw, dim=0, out=out)
        weight = by_draw.sub_(out).exp_().flatten(0, 1).mul_(root)
        out.sub_(math.log(count))
    return [weight, projection.add_(extra).mul_(root).mul_(-0.5)]
