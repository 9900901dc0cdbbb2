"""The Power Spherical distribution (De Cao and Aziz 2020): p(x) proportional to (1 + mu^T x)^kappa.

It can replace the von Mises-Fisher and has a normaliser and a sampler in closed form. With alpha = kappa +
(M-1)/2 and beta = (M-1)/2, the half-gap (1 - mu^T x) / 2 is Beta(beta, alpha) and

    log normaliser = -(alpha + beta) log 2 - beta log pi - lgamma(alpha) + lgamma(alpha + beta).

Gradients: implicit, see `_rotational`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import register_kl

from ._rotational import Marginal, RotationallySymmetric, differentiable
from .normalizer import log_normalizer
from .von_mises_fisher import VonMisesFisher


class PowerSpherical(RotationallySymmetric):
    """Power Spherical with mean direction `loc` (..., M), unit rows, and `concentration` kappa (...) >= 0."""

    @property
    def mean(self) -> Tensor:
        """E[x] = (alpha - beta) / (alpha + beta) mu, (..., M)."""
        return (self.concentration / (self.concentration + (self.dim - 1))).unsqueeze(-1) * self.loc

    def log_normalizer(self) -> Tensor:
        """Return the log of the constant in front of (1 + mu^T x)^kappa, (...)."""
        return _log_normalizer(self.concentration.double(), self.dim).to(self.concentration.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density (...) at unit vectors `value` (..., M)."""
        kappa, cosine = self.concentration.double(), self._cosine(value).clamp_min(torch.finfo(value.dtype).eps - 1)
        density = _log_normalizer(kappa, self.dim) + kappa * torch.log1p(cosine.double())
        return density.to(torch.promote_types(self.concentration.dtype, cosine.dtype))

    def entropy(self) -> Tensor:
        """Return the differential entropy, (...)."""
        return _entropy(self.concentration.double(), self.dim).to(self.concentration.dtype)

    def _sample_gap(self, kappa: Tensor, cosine: Tensor, generator: torch.Generator | None) -> Tensor:
        beta = (self.dim - 1) / 2
        with torch.no_grad():  # torch.distributions.Gamma takes no generator: github.com/pytorch/pytorch/issues/175478
            far = torch._standard_gamma(kappa + beta, generator=generator)
            near = torch._standard_gamma(torch.full_like(far, beta), generator=generator)
            gap = 2 * near / (near + far)
        return differentiable(gap, kappa, self.dim, _marginal)


@register_kl(PowerSpherical, VonMisesFisher)
def _kl(p: PowerSpherical, q: VonMisesFisher) -> Tensor:
    """Return KL(p || q), (...), from the entropy and the mean of p."""
    kappa, other = p.concentration.double(), q.concentration.double()
    along = kappa / (kappa + (p.dim - 1)) * (p.loc.double() * q.loc).sum(-1)
    divergence = -_entropy(kappa, p.dim) - log_normalizer(other, q.dim) - other * along
    return divergence.to(torch.promote_types(p.concentration.dtype, q.concentration.dtype))


def _log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """Return the log normaliser (...) of `kappa` (...) in float64, because terms of the size of kappa cancel."""
    beta = (dim - 1) / 2
    alpha = kappa + beta
    constant = beta * math.log(math.pi)
    return torch.lgamma(alpha + beta) - torch.lgamma(alpha) - (alpha + beta) * math.log(2) - constant


def _entropy(kappa: Tensor, dim: int) -> Tensor:
    """Return the differential entropy (...) of `kappa` (...) in float64."""
    return -_log_normalizer(kappa, dim) - kappa * _mean_statistic(kappa, dim)


def _mean_statistic(kappa: Tensor, dim: int) -> Tensor:
    """Return E[log(1 + mu^T x)] (...) of `kappa` (...) in float64."""
    beta = (dim - 1) / 2
    alpha = kappa + beta
    return math.log(2) + torch.digamma(alpha) - torch.digamma(alpha + beta)


def _marginal(kappa: Tensor, dim: int) -> Marginal:
    steep = dim - 2
    mode = 2 * torch.atan((steep / (steep + 2 * kappa).clamp_min(1e-300)).sqrt())

    def statistic(theta: Tensor) -> Tensor:
        return math.log(2) + 2 * (theta / 2).cos().clamp_min(1e-150).log()

    def curvature(theta: Tensor) -> Tensor:
        return kappa / (1 + theta.cos()).clamp_min(1e-300) + steep / theta.sin().square().clamp_min(1e-300)

    return Marginal(statistic, _mean_statistic(kappa, dim), mode, curvature)
