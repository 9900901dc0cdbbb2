"""Log-densities of non-isotropic vMF proxies at many points, as matrix products.

With K = diag(kappa), tilde kappa = |K mu| and unit x, s(K x, K mu) tilde kappa = sum_m kappa_m^2 mu_m x_m / |K x|, so

    log rho(x) = log C_M(tilde kappa) + log D + (x (kappa^2 mu)^T) / sqrt(x^2 (kappa^2)^T)

needs two products over (points, M) x (M, C) and no (points, C, M) tensor. log D reaches thousands and is divided by a
small temperature later, so terms that all classes share are left out. With g the geometric mean of kappa, r = kappa/g,

    "exact"    log D = -M/2 log |r x|^2                          (the powers of g cancel)
    "paper"    log D = M log g - log tilde kappa, less its mean over the classes
    "none"     log D = 0

Classes are computed in blocks whose matrices fit in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from probmetric.directional.nonisotropic import Normalizer
from probmetric.losses._base import unit

LogNormalizer = Callable[[Tensor, int], Tensor]

_CACHE_BLOCK = 1 << 19
_DEVICE_BLOCK = 1 << 26


def nivmf_log_likelihoods(
    draws: Tensor,  # (N, B, M) unit rows
    proxies: Tensor,  # (C, M) of any norm
    log_concentrations: Tensor,  # (C, M)
    log_normalizer: LogNormalizer,  # of (kappa^2 (C,), M)
    normalizer: Normalizer = "exact",
) -> Tensor:  # (B, C)
    """Return the log of the mean over the draws of rho_c, up to a constant that all classes share."""
    points, size = draws.flatten(0, 1), log_concentrations.mean(dim=1)
    squares, ratio = points.square(), (2 * (log_concentrations - size.unsqueeze(1))).exp()
    direction = unit(proxies)
    stretched = ratio * direction
    budget = _CACHE_BLOCK if points.device.type == "cpu" else _DEVICE_BLOCK
    classes = max(16, budget // max(points.shape))
    means = []
    for linear, quadratic in zip(
        (stretched * size.exp().unsqueeze(1)).split(classes), ratio.split(classes), strict=True
    ):
        length_square = squares @ quadratic.T
        length_square = length_square.masked_fill(length_square <= torch.finfo(length_square.dtype).tiny, 1.0)
        exponent = points @ linear.T * length_square.rsqrt()
        if normalizer == "exact":
            exponent = exponent - 0.5 * points.shape[1] * length_square.log()
        means.append(exponent.unflatten(0, draws.shape[:2]).logsumexp(dim=0))
    offset = _offset(size, (stretched * direction).sum(dim=1), points.shape[1], log_normalizer, normalizer)
    return torch.cat(means, dim=1) - math.log(len(draws)) + offset


def unstretched_log_densities(
    points: Tensor,  # (P, M) unit rows
    proxies: Tensor,  # (C, M) of any norm
    log_concentrations: Tensor,  # (C, M)
    log_normalizer: LogNormalizer,  # of (kappa^2 (C,), M)
    normalizer: Normalizer,
) -> Tensor:  # (P, C)
    """Return log rho_c(x_p) as the code released with paper 000 has it: the cosine is that of x (not K x) and K mu."""
    size = log_concentrations.mean(dim=1)
    stretched = log_concentrations.exp() * unit(proxies)
    length_square = stretched.square().sum(dim=1) * (-2 * size).exp()
    offset = _offset(size, length_square, points.shape[1], log_normalizer, normalizer)
    return torch.addmm(offset, points, stretched.T)


def _offset(
    size: Tensor,  # (C,) log of the geometric mean of kappa
    length_square: Tensor,  # (C,) |r mu|^2
    dim: int,
    log_normalizer: LogNormalizer,
    normalizer: Normalizer,
) -> Tensor:  # (C,)
    """Return the terms that do not depend on the point: log C_M(tilde kappa) and, for "paper", log D."""
    offset = log_normalizer((2 * size).exp() * length_square, dim)
    if normalizer != "paper":
        return offset
    tiny = torch.finfo(length_square.dtype).tiny
    log_volume = dim * size - size - 0.5 * length_square.clamp_min(tiny).log()
    return offset + log_volume - log_volume.mean()
