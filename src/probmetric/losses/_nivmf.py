"""Log-densities of non-isotropic vMF proxies at many points, as matrix products.

With K = diag(kappa), tilde kappa = |K mu| and unit x, s(K x, K mu) tilde kappa = sum_m kappa_m^2 mu_m x_m / |K x|, so

    log rho(x) = log C_M(tilde kappa) + log D + (x (kappa^2 mu)^T) / sqrt(x^2 (kappa^2)^T)

needs two products over (points, M) x (M, C) and no (points, C, M) tensor. log D runs to thousands and is divided by a
small temperature afterwards, so what all classes share is left out: with g the geometric mean of kappa, r = kappa / g,

    "exact"    log D = -M/2 log |r x|^2                          (the powers of g cancel)
    "paper"    log D = M log g - log tilde kappa, less its mean over the classes
    "none"     log D = 0

`stretch=False` is the code released with paper 000: the cosine is taken between x itself and K mu, one product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from probmetric.directional.nonisotropic import Normalizer
from probmetric.losses._base import unit

LogNormalizer = Callable[[Tensor, int], Tensor]


def nivmf_log_densities(
    points: Tensor,  # (P, M) unit rows
    proxies: Tensor,  # (C, M) of any norm
    log_concentrations: Tensor,  # (C, M)
    log_normalizer: LogNormalizer,  # of (kappa^2 (C,), M)
    normalizer: Normalizer = "exact",
    stretch: bool = True,
) -> Tensor:  # (P, C)
    """Log rho_c(x_p) up to a constant that all classes share."""
    dim = points.shape[1]
    size = log_concentrations.mean(dim=1)
    square_ratio = (2 * (log_concentrations - size.unsqueeze(1))).exp()
    directions = unit(proxies)
    mean_square = (2 * size).exp()
    length_square = (square_ratio * directions.square()).sum(dim=1)
    offset = log_normalizer(mean_square * length_square, dim)
    if normalizer == "paper":
        log_volume = dim * size - size - 0.5 * _log(length_square)
        offset = offset + log_volume - log_volume.mean()
    if not stretch:
        stretched = (log_concentrations.exp()) * directions
        return torch.addmm(offset, points, stretched.T)
    projections, squares = _Products.apply(points, size.exp().unsqueeze(1) * square_ratio * directions, square_ratio)
    squares = squares.clamp_min(torch.finfo(points.dtype).tiny)
    densities = torch.addcmul(offset, projections, squares.rsqrt())
    return densities - 0.5 * dim * squares.log() if normalizer == "exact" else densities


class _Products(Function):
    """x a^T and x^2 b^T for points x (P, M) and a, b (C, M). Keeps no squared copy of the points between the passes."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, linear: Tensor, quadratic: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(points, linear, quadratic)
        return points @ linear.T, points.square() @ quadratic.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_linear: Tensor, grad_quadratic: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        points, linear, quadratic = ctx.saved_tensors
        to_linear, to_quadratic = grad_linear.T @ points, grad_quadratic.T @ points.square()
        if not ctx.needs_input_grad[0]:
            return None, to_linear, to_quadratic
        to_points = (2 * grad_quadratic @ quadratic).mul_(points).addmm_(grad_linear, linear)
        return to_points, to_linear, to_quadratic


def _log(square: Tensor) -> Tensor:
    return square.clamp_min(torch.finfo(square.dtype).tiny).log()
