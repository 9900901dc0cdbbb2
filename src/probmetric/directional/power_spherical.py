"""The Power Spherical distribution (De Cao and Aziz 2020): p(x) proportional to (1 + mu^T x)^kappa.

A drop-in for the von Mises-Fisher with a normaliser and a sampler in closed form. With alpha = kappa +
(M-1)/2 and beta = (M-1)/2, the half-gap (1 - mu^T x) / 2 is Beta(beta, alpha) and

    log normaliser = -(alpha + beta) log 2 - beta log pi - lgamma(alpha) + lgamma(alpha + beta).

Gradients: implicit, see `_implicit`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import register_kl

from ._implicit import Reparameterise, gap_derivative
from ._mixed import mean_log_one_plus
from ._rotational import Noise, RotationallySymmetric
from .normalizer import log_normalizer
from .von_mises_fisher import VonMisesFisher


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
        """Log of the constant in front of (1 + mu^T x)^kappa, (...)."""
        alpha, beta = self._alpha_beta
        constant = beta * math.log(math.pi)
        return torch.lgamma(alpha + beta) - torch.lgamma(alpha) - (alpha + beta) * math.log(2) - constant

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at unit vectors `value` (..., M). Returns (...)."""
        cosine = self._cosine(value).clamp_min(torch.finfo(value.dtype).eps - 1)
        return self.log_normalizer() + self.concentration * torch.log1p(cosine)

    def entropy(self) -> Tensor:
        """Differential entropy, (...)."""
        alpha, beta = self._alpha_beta
        return -self.log_normalizer() - self.concentration * _mean_statistic(alpha, beta)

    def _sample_gap(self, noise: Noise, generator: torch.Generator | None) -> Tensor:
        kappa = self.concentration.expand(noise.chi_square.shape)
        dim, beta = self.dim, (self.dim - 1) / 2
        with torch.no_grad():
            far = torch._standard_gamma(kappa + beta, generator=generator)
            near = torch._standard_gamma(torch.full_like(far, beta), generator=generator)
            gap = 2 * near / (near + far)
        return Reparameterise.apply(kappa, gap, lambda gap, kappa: _gap_derivative(gap, kappa, dim))


@register_kl(PowerSpherical, VonMisesFisher)
def _kl(p: PowerSpherical, q: VonMisesFisher) -> Tensor:
    """KL(p || q), (...): the entropy of p and the mean of p are all it needs."""
    cross = log_normalizer(q.concentration, q.dim) + q.concentration * (p.mean * q.loc).sum(-1)
    return -p.entropy() - cross


@register_kl(VonMisesFisher, PowerSpherical)
def _reverse_kl(p: VonMisesFisher, q: PowerSpherical) -> Tensor:
    """KL(p || q), (...), by the series of `_mixed`."""
    expected = mean_log_one_plus(p.concentration, (p.loc * q.loc).sum(-1), p.dim)
    return -p.entropy() - q.log_normalizer() - q.concentration * expected


def _mean_statistic(alpha: Tensor, beta: float) -> Tensor:
    """E[log(1 + mu^T x)]."""
    return math.log(2) + torch.digamma(alpha) - torch.digamma(alpha + beta)


def _gap_derivative(gap: Tensor, kappa: Tensor, dim: int) -> Tensor:
    steep, beta = dim - 2, (dim - 1) / 2
    mode = 2 * torch.atan((steep / (steep + 2 * kappa).clamp_min(1e-300)).sqrt())

    def statistic(theta: Tensor) -> Tensor:
        return math.log(2) + 2 * (theta / 2).cos().clamp_min(1e-150).log()

    def curvature(theta: Tensor) -> Tensor:
        return kappa / (1 + theta.cos()).clamp_min(1e-300) + steep / theta.sin().square().clamp_min(1e-300)

    return gap_derivative(gap, kappa, dim, statistic, _mean_statistic(kappa + beta, beta), mode, curvature)
