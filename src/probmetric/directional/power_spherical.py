"""The Power Spherical distribution (De Cao and Aziz 2020): p(x) proportional to (1 + mu^T x)^kappa.

A drop-in for the von Mises-Fisher with a normaliser and a sampler in closed form. With alpha = kappa +
(M-1)/2 and beta = (M-1)/2, the half-gap (1 - mu^T x) / 2 is Beta(beta, alpha) and

    log normaliser = -(alpha + beta) log 2 - beta log pi - lgamma(alpha) + lgamma(alpha + beta).

Gradients: implicit, see `_rotational`.

KL(vMF || Power Spherical) asks for E[log(1 + m^T x)] with x from a vMF around mu. With c = m^T mu, P_l the Gegenbauer
polynomials of the sphere in R^M scaled to P_l(1) = 1 (Legendre's for M = 3,
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
from torch.distributions import register_kl

from ._rotational import Marginal, RotationallySymmetric, differentiable
from .normalizer import log_normalizer
from .von_mises_fisher import VonMisesFisher

LARGEST = 1e6
_FEWEST, _PER_ROOT, _RUN_UP = 30, 9.0, 20


class PowerSpherical(RotationallySymmetric):
    """Power Spherical with mean direction `loc` (..., M), unit rows, and `concentration` kappa (...) >= 0."""

    @property
    def _alpha_beta(self) -> tuple[Tensor, float]:
        beta = (self.dim - 1) / 2
        return self.concentration + beta, beta

    @property
    def mean(self) -> Tensor:
        """E[x] = (alpha - beta) / (alpha + beta) mu, (..., M)."""
        alpha, beta = self._alpha_beta
        return (self.concentration / (alpha + beta)).unsqueeze(-1) * self.loc

    def log_normalizer(self) -> Tensor:
        """Return the log of the constant in front of (1 + mu^T x)^kappa, (...)."""
        alpha, beta = self._alpha_beta
        constant = beta * math.log(math.pi)
        return torch.lgamma(alpha + beta) - torch.lgamma(alpha) - (alpha + beta) * math.log(2) - constant

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density (...) at unit vectors `value` (..., M)."""
        cosine = self._cosine(value).clamp_min(torch.finfo(value.dtype).eps - 1)
        return self.log_normalizer() + self.concentration * torch.log1p(cosine)

    def entropy(self) -> Tensor:
        """Return the differential entropy, (...)."""
        alpha, beta = self._alpha_beta
        return -self.log_normalizer() - self.concentration * _mean_statistic(alpha, beta)

    def _sample_gap(self, kappa: Tensor, cosine: Tensor, generator: torch.Generator | None) -> Tensor:
        beta = (self.dim - 1) / 2
        with torch.no_grad():  # torch.distributions.Gamma takes no generator: github.com/pytorch/pytorch/issues/175478
            far = torch._standard_gamma(kappa + beta, generator=generator)
            near = torch._standard_gamma(torch.full_like(far, beta), generator=generator)
            gap = 2 * near / (near + far)
        return differentiable(gap, kappa, self.dim, _marginal)


@register_kl(PowerSpherical, VonMisesFisher)
def _kl(p: PowerSpherical, q: VonMisesFisher) -> Tensor:
    """Return KL(p || q), (...): the entropy of p and the mean of p are all it needs."""
    cross = log_normalizer(q.concentration, q.dim) + q.concentration * (p.mean * q.loc).sum(-1)
    return -p.entropy() - cross


@register_kl(VonMisesFisher, PowerSpherical)
def _reverse_kl(p: VonMisesFisher, q: PowerSpherical) -> Tensor:
    """Return KL(p || q), (...), by the series above."""
    expected = mean_log_one_plus(p.concentration, (p.loc * q.loc).sum(-1), p.dim)
    return -p.entropy() - q.log_normalizer() - q.concentration * expected


def _mean_statistic(alpha: Tensor, beta: float) -> Tensor:
    """Return E[log(1 + mu^T x)]."""
    return math.log(2) + torch.digamma(alpha) - torch.digamma(alpha + beta)


def _marginal(kappa: Tensor, dim: int) -> Marginal:
    steep, beta = dim - 2, (dim - 1) / 2
    mode = 2 * torch.atan((steep / (steep + 2 * kappa).clamp_min(1e-300)).sqrt())

    def statistic(theta: Tensor) -> Tensor:
        return math.log(2) + 2 * (theta / 2).cos().clamp_min(1e-150).log()

    def curvature(theta: Tensor) -> Tensor:
        return kappa / (1 + theta.cos()).clamp_min(1e-300) + steep / theta.sin().square().clamp_min(1e-300)

    return Marginal(statistic, _mean_statistic(kappa + beta, beta), mode, curvature)


def mean_log_one_plus(kappa: Tensor, cosine: Tensor, dim: int) -> Tensor:
    """Return E[log(1 + m^T x)] (...), x from vMF(mu, kappa), m^T mu = `cosine`; all (...), in their type.

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
    """Return A_M, A_{M+2}, ... (`count` of them) of `kappa` (...)."""
    order = dim / 2 + count + _RUN_UP
    length = kappa / (order + (order**2 + kappa**2).sqrt())
    lengths = []
    for step in range(count + _RUN_UP - 1, -1, -1):
        length = kappa / (dim + 2 * step + kappa * length)
        lengths.append(length)
    return lengths[::-1][:count]


def _uniform_mean(dim: int) -> float:
    """Return f_0, the mean over uniform directions."""
    half = torch.tensor([(dim - 1) / 2, dim - 1], dtype=torch.float64)
    near, far = torch.digamma(half).tolist()
    return float(math.log(2) + near - far)
