"""E[log(1 + m^T x)] for x from a von Mises-Fisher around mu: what a Power Spherical around m asks of a vMF.

With c = m^T mu, P_l the Gegenbauer polynomials of the sphere in R^M scaled to P_l(1) = 1 (Legendre's for M = 3,
Chebyshev's for M = 2) and A_D the mean resultant length in R^D,

    log(1 + t) = f_0 + sum_{l >= 1} (-1)^{l-1} (1 / l + 1 / (l + M - 2)) P_l(t)
    f_0        = log 2 + digamma((M - 1) / 2) - digamma(M - 1)
    E P_l(m^T x) = P_l(c) A_M A_{M+2} ... A_{M+2l-2}                                       (Funk and Hecke)

The coefficients follow from Rodrigues' formula: the l-th derivative of log(1 + t) leaves a beta integral. The product
falls as exp(-l^2 / 2 kappa), so that about 9 sqrt(kappa) terms give all digits. A_D comes from
A_D = kappa / (D + kappa A_{D+2}), downwards, where errors die out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST = 1e6
_FEWEST, _PER_ROOT, _RUN_UP = 30, 9.0, 20


def mean_log_one_plus(kappa: Tensor, cosine: Tensor, dim: int) -> Tensor:
    """E[log(1 + m^T x)], x from vMF(mu, kappa), m^T mu = `cosine`. Both (...); returns (...) in their type.

    Raises:
        ValueError: a concentration above 1e6, which would need too many terms.
    """
    largest = float(kappa.detach().max()) if kappa.numel() else 0.0
    if not largest <= LARGEST:
        raise ValueError(f"the vMF's concentration is {largest:g}; this divergence is computed up to {LARGEST:g}.")
    terms = _FEWEST + math.ceil(_PER_ROOT * math.sqrt(largest))
    wide, c = kappa.double(), cosine.double().clamp(-1, 1)
    lengths = _resultant_lengths(wide, dim, terms)
    before, now = torch.ones_like(c), c
    product, total = lengths[0], torch.full_like(c, _uniform_mean(dim))
    for order in range(1, terms):
        sign = 1.0 if order % 2 else -1.0
        total = total + sign * (1 / order + 1 / (order + dim - 2)) * now * product
        before, now = now, ((2 * order + dim - 2) * c * now - order * before) / (order + dim - 2)
        product = product * lengths[order]
    return total.to(torch.promote_types(kappa.dtype, cosine.dtype))


def _resultant_lengths(kappa: Tensor, dim: int, count: int) -> list[Tensor]:
    """A_M, A_{M+2}, ... (`count` of them) of `kappa` (...)."""
    order = dim / 2 + count + _RUN_UP
    length = kappa / (order + (order**2 + kappa**2).sqrt())
    found = []
    for step in range(count + _RUN_UP - 1, -1, -1):
        length = kappa / (dim + 2 * step + kappa * length)
        found.append(length)
    return found[::-1][:count]


def _uniform_mean(dim: int) -> float:
    """f_0, the mean over uniform directions."""
    half = torch.tensor([(dim - 1) / 2, dim - 1], dtype=torch.float64)
    near, far = torch.digamma(half).tolist()
    return float(math.log(2) + near - far)
