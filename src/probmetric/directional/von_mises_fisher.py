"""The von Mises-Fisher distribution: p(x) = C_M(kappa) exp(kappa mu^T x) on the unit sphere of R^M.

The cosine is drawn by Wood's (1994) rejection scheme with the envelope parameter in the form without
cancellation, b = (M - 1) / (2 kappa + sqrt(4 kappa^2 + (M - 1)^2)), which is right for every kappa and M.
(The code released with papers 000 and 002 replaces b by (M - 1) / (4 kappa) for kappa > 10; for kappa < M / 4
its samples are antipodal.) The envelope's symmetric beta variate comes from two uniforms as a coordinate of a
random direction (Ulrich 1984), so every draw uses the given generator. Gradients: implicit, see
`_rotational`.
"""

from __future__ import annotations

import math

import torch
from torch import Size, Tensor
from torch.distributions import register_kl

from ._implicit import Reparameterise, gap_derivative
from ._rotational import RotationallySymmetric
from .normalizer import log_normalizer, mean_resultant_length

_PROPOSALS = 4


class VonMisesFisher(RotationallySymmetric):
    """vMF with mean direction `loc` (..., M), unit rows, and `concentration` kappa (...) >= 0."""

    @property
    def mean(self) -> Tensor:
        """E[x] = A_M(kappa) mu, (..., M)."""
        return mean_resultant_length(self.concentration, self.dim).unsqueeze(-1) * self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at unit vectors `value` (..., M). Returns (...)."""
        return log_normalizer(self.concentration, self.dim) + self.concentration * self._cosine(value)

    def entropy(self) -> Tensor:
        """Differential entropy -log C_M(kappa) - kappa A_M(kappa), (...)."""
        kappa = self.concentration
        return -log_normalizer(kappa, self.dim) - kappa * mean_resultant_length(kappa, self.dim)

    def _sample_gap(self, shape: Size, generator: torch.Generator | None) -> Tensor:
        kappa = self.concentration.expand(shape)
        gap = _draw_gap(kappa.detach().reshape(-1), self.dim, generator).view(shape)
        dim = self.dim
        return Reparameterise.apply(kappa, gap, lambda gap, kappa: _gap_derivative(gap, kappa, dim))


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """KL(p || q) = log C(kappa_p) - log C(kappa_q) + A(kappa_p) (kappa_p - kappa_q mu_p^T mu_q), (...)."""
    difference = log_normalizer(p.concentration, p.dim) - log_normalizer(q.concentration, q.dim)
    cosine = (p.loc * q.loc).sum(-1)
    projected = p.concentration - q.concentration * cosine
    return difference + mean_resultant_length(p.concentration, p.dim) * projected


def _draw_gap(kappa: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
    """1 - w for `kappa` (n,), by rejection. Returns (n,)."""
    gap = torch.empty_like(kappa)
    pending = torch.arange(kappa.numel(), device=kappa.device)
    while pending.numel():
        proposal, accepted = _propose(kappa[pending], dim, generator)
        chosen = proposal[-1]
        for k in reversed(range(_PROPOSALS - 1)):
            chosen = torch.where(accepted[k], proposal[k], chosen)
        gap[pending] = chosen
        pending = pending[~accepted.any(0)]
    return gap


def _propose(kappa: Tensor, dim: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Proposals for 1 - w and whether each is accepted, (_PROPOSALS, n) each."""
    n = dim - 1
    b = n / (2 * kappa + (4 * kappa**2 + n**2).sqrt())
    draws = torch.rand((3, _PROPOSALS, kappa.numel()), generator=generator, dtype=kappa.dtype, device=kappa.device)
    log_u, log_accept = (1 - draws[:2]).log()
    coordinate = torch.cos(2 * math.pi * draws[2])
    if dim > 2:
        coordinate = coordinate * (-torch.expm1(2 / (dim - 2) * log_u)).sqrt()
    gap = 2 * b * (1 + coordinate) / ((1 - coordinate) + b * (1 + coordinate))
    tangent = (2 * b + (1 - b) * gap) * (1 + b) / (4 * b)
    log_ratio = kappa * (2 * b / (1 + b) - gap) + n * tangent.log()
    return gap, log_ratio >= log_accept


def _gap_derivative(gap: Tensor, kappa: Tensor, dim: int) -> Tensor:
    steep = dim - 2
    mode = torch.acos((2 * kappa / (steep + (steep**2 + 4 * kappa**2).sqrt()).clamp_min(1e-300)).clamp(max=1))

    def curvature(theta: Tensor) -> Tensor:
        return kappa * theta.cos() + steep / theta.sin().square().clamp_min(1e-300)

    return gap_derivative(gap, kappa, dim, torch.cos, mean_resultant_length(kappa, dim), mode, curvature)
