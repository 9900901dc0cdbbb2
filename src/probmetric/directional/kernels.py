"""Similarities of two von Mises-Fisher distributions for all pairs, from dot products and norms only.

A distribution is its natural parameter nu = kappa mu. With zeta = vMF(nu_z) and rho = vMF(nu_p):

    expected likelihood     log integral rho zeta          = log C(kz) + log C(kp) - log C(||nu_z + nu_p||)
    Bhattacharyya           log integral sqrt(rho zeta)    = (log C(kz) + log C(kp)) / 2 - log C(||nu_z + nu_p|| / 2)
    product kernel          log integral (rho zeta)^r      = r (log C(kz) + log C(kp)) - log C(r ||nu_z + nu_p||)
    divergence              KL(zeta || rho)                = log C(kz) - log C(kp) + A(kz) (kz - kp cos)

(paper 000, eqs. 29, 35, 38). The first three return log-kernels: larger is closer, and the distance is the
negative. The divergence keeps A_M(kz), which eq. 39 of the paper drops, because E[z] = A_M(kz) mu_z, not mu_z.
All four are functions of squared norms, so derivatives stay finite at nu = 0 and where nu_z = -nu_p. They need one
matrix product and no (B, C, M) tensor. They compute in float32 at least, also under autocast, because differences of
squared norms lose their digits in half precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._series import log_c0
from .normalizer import full_precision, log_normalizer_of_square, scaled_ratio_of_square

LARGEST_ORDER = 1e6


def expected_likelihood(nu_z: Tensor, nu_p: Tensor) -> Tensor:
    """Return the log expected-likelihood kernel of `nu_z` (B, M) and `nu_p` (C, M). Returns (B, C)."""
    return product_kernel(nu_z, nu_p, rho=1.0)


def bhattacharyya(nu_z: Tensor, nu_p: Tensor) -> Tensor:
    """Return the log Bhattacharyya coefficient, <= 0, of `nu_z` (B, M) and `nu_p` (C, M). Returns (B, C)."""
    return product_kernel(nu_z, nu_p, rho=0.5)


def product_kernel(nu_z: Tensor, nu_p: Tensor, *, rho: float) -> Tensor:
    """Return log probability product kernel of order `rho` > 0 of `nu_z` (B, M) and `nu_p` (C, M). Returns (B, C)."""
    if isinstance(rho, bool) or not isinstance(rho, int | float) or not 0 < rho <= LARGEST_ORDER:
        raise ValueError(f"rho is {rho!r}; the order of the product kernel must be > 0 (at most {LARGEST_ORDER:g}).")
    square_z, square_p, product, dim = _products(nu_z, nu_p)
    joint = (square_z.unsqueeze(1) + square_p + 2 * product).clamp_min(0) * rho**2
    separate = _decay(square_z, dim).unsqueeze(1) + _decay(square_p, dim)
    return rho * separate - _decay(joint, dim) + (2 * rho - 1) * log_c0(dim)


def kl(nu_z: Tensor, nu_p: Tensor) -> Tensor:
    """Return KL(vMF(nu_z) || vMF(nu_p)) >= 0, (B, C), of `nu_z` (B, M), the reference, and `nu_p` (C, M)."""
    square_z, square_p, product, dim = _products(nu_z, nu_p)
    difference = _decay(square_z, dim).unsqueeze(1) - _decay(square_p, dim)
    ratio = scaled_ratio_of_square(square_z, dim).unsqueeze(1)
    return (difference + ratio * (square_z.unsqueeze(1) - product)).clamp_min(0)  # below it by rounding


def _decay(square: Tensor, dim: int) -> Tensor:
    """Return log C_M(kappa) - log C_M(0). The constant cancels in differences but would cost digits in float32."""
    return log_normalizer_of_square(square, dim, constant=False)


def _products(nu_z: Tensor, nu_p: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return squared norms (B,) and (C,), dot products (B, C) and the dimension M."""
    nu_z, nu_p = full_precision(nu_z, "nu_z"), full_precision(nu_p, "nu_p")
    if nu_z.dim() != 2 or nu_p.dim() != 2 or nu_z.shape[1] != nu_p.shape[1]:
        raise ValueError(f"nu_z {tuple(nu_z.shape)} and nu_p {tuple(nu_p.shape)} must be (B, M) and (C, M).")
    with torch.autocast(nu_z.device.type, enabled=False):
        wide = torch.promote_types(nu_z.dtype, nu_p.dtype)
        return nu_z.square().sum(-1), nu_p.square().sum(-1), nu_z.to(wide) @ nu_p.to(wide).T, nu_z.shape[1]
