"""Independent references for the tests: Bessel functions by mpmath, integrals over spheres by quadrature."""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import torch
from torch import Tensor

KAPPAS = (0.0, 1e-3, 0.1, 0.7, 2.5, 6.0, 10.0, 17.0, 45.0, 120.0, 300.0, 1e3, 1e4, 1e5, 1e6)


@functools.cache
def bessel_reference(dim: int, kappa: float) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """log C_M(kappa), A_M(kappa) and dA_M/dkappa with 50 digits."""
    with mpmath.workdps(50):
        nu, k, pi = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa), mpmath.pi
        if k == 0:
            constant = mpmath.loggamma(nu + 1) - mpmath.log(2) - (nu + 1) * mpmath.log(pi)
            return constant, mpmath.mpf(0), 1 / mpmath.mpf(dim)
        low = mpmath.besseli(nu, k, maxterms=10**8)
        ratio = mpmath.besseli(nu + 1, k, maxterms=10**8) / low
        log_c = nu * mpmath.log(k) - (nu + 1) * mpmath.log(2 * pi) - mpmath.log(low)
        return log_c, ratio, 1 - ratio**2 - (dim - 1) / k * ratio


def sphere_grid(polar: int = 80, azimuth: int = 96) -> tuple[Tensor, Tensor]:
    """Points (K, 3) on the unit sphere and weights (K,) that sum to 4 pi; exact for smooth functions."""
    cosine, weight = np.polynomial.legendre.leggauss(polar)
    phi = 2 * np.pi * np.arange(azimuth) / azimuth
    sine = np.sqrt(1 - cosine**2)
    points = np.stack(
        [np.outer(sine, np.cos(phi)), np.outer(sine, np.sin(phi)), np.outer(cosine, np.ones_like(phi))], axis=-1
    )
    weights = np.outer(weight, np.full(azimuth, 2 * np.pi / azimuth))
    return torch.from_numpy(points.reshape(-1, 3)), torch.from_numpy(weights.reshape(-1))


def cosine_grid(dim: int, nodes: int = 400) -> tuple[Tensor, Tensor]:
    """Cosines w (K,) and weights (K,) with sum weight * g(w) = integral of g(mu^T x) over the sphere in R^dim."""
    t, weight = np.polynomial.legendre.leggauss(nodes)
    theta = (t + 1) * np.pi / 2
    log_area = np.log(2) + (dim - 1) / 2 * np.log(np.pi) - float(mpmath.loggamma((dim - 1) / 2))
    return torch.from_numpy(np.cos(theta)), torch.from_numpy(
        weight * np.pi / 2 * np.exp(log_area) * np.sin(theta) ** (dim - 2)
    )


def unit(dim: int, seed: int, *shape: int) -> Tensor:
    """Random unit vectors (*shape, dim) in float64."""
    noise = torch.randn(*shape, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(noise, dim=-1)
