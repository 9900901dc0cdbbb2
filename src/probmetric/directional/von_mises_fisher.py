"""The von Mises-Fisher distribution: p(x) = C_M(kappa) exp(kappa mu^T x) on the unit sphere of R^M.

The gap s = 1 - w has density proportional to (s (2 - s))^((M - 3) / 2) exp(-kappa s) on [0, 2]. It is drawn by the
rejection scheme of Ulrich (1984) and Wood (1994). With n = M - 1, the cosine t of a uniform direction with mu and
x = 2 kappa / (n + sqrt(4 kappa^2 + n^2)), the best value,

    s = (1 - x) (1 + t) / (1 - x t),        accepted where log u <= -n (x t / (1 - x t) + log(1 - x t))

for uniform u. The share of accepted proposals is 1 as kappa falls to 0, 0.92 at kappa = M / 2, and 0.66 as kappa grows
on the circle. x and 1 - x are free of cancellation for every kappa. (From kappa = 10 on, the code released with papers
000 and 002 replaces the parameter by its limit for large kappa; for kappa < M / 4 its samples are antipodal.)
Gradients: see `_rotational`.

If kappa or mu is NaN, the first proposal is taken and the sample is NaN. An infinite kappa gives the mean direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import register_kl

from ._rotational import Marginal, RotationallySymmetric, differentiable, drawn, no_sample
from .normalizer import log_normalizer, mean_resultant_length

_ROUNDS = 1000


class VonMisesFisher(RotationallySymmetric):
    """vMF with mean direction `loc` (..., M), unit rows, and `concentration` kappa (...) >= 0."""

    @property
    def mean(self) -> Tensor:
        """E[x] = A_M(kappa) mu, (..., M)."""
        return mean_resultant_length(self.concentration, self.dim).unsqueeze(-1) * self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density at unit vectors `value` (..., M). Returns (...)."""
        return log_normalizer(self.concentration, self.dim) + self.concentration * self._cosine(value)

    def entropy(self) -> Tensor:
        """Return the differential entropy -log C_M(kappa) - kappa A_M(kappa), (...)."""
        kappa = self.concentration
        return -log_normalizer(kappa, self.dim) - kappa * mean_resultant_length(kappa, self.dim)

    def _sample_gap(self, kappa: Tensor, cosine: Tensor, generator: torch.Generator | None) -> Tensor:
        gap = _draw_gap(cosine.to(kappa.dtype), kappa.detach(), self.dim, generator)
        return differentiable(gap, kappa, self.dim, _marginal)


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """Return KL(p || q) = log C(kappa_p) - log C(kappa_q) + A(kappa_p) (kappa_p - kappa_q mu_p^T mu_q), (...)."""
    difference = log_normalizer(p.concentration, p.dim) - log_normalizer(q.concentration, q.dim)
    cosine = (p.loc * q.loc).sum(-1)
    projected = p.concentration - q.concentration * cosine
    return difference + mean_resultant_length(p.concentration, p.dim) * projected


def _draw_gap(cosine: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
    """Draw 1 - w for every `kappa` (...), the first proposals from the cosines (...) of uniform directions."""
    draws, kappas = cosine.reshape(-1), kappa.reshape(-1)
    gap = torch.empty_like(draws)
    pending = torch.arange(len(draws), device=draws.device)
    for _ in range(_ROUNDS):
        gap[pending], cost = _proposed(draws, kappas[pending], dim - 1)
        pending = pending[_rejected(cost, generator)]
        if not pending.numel():
            return gap.view(cosine.shape)
        draws = _uniform_cosines(len(pending), dim, draws, generator)
    raise no_sample(kappa, _ROUNDS)


def _proposed(draws: Tensor, kappa: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return proposals for 1 - w and costs, both (K,), from cosines (K,); exp(-cost) is the chance of acceptance."""
    double = 2 * kappa.clamp_max(torch.finfo(kappa.dtype).max / 8)
    root = torch.hypot(double, double.new_tensor(float(n)))
    tilt, slack = double / (root + n), (n / (root + double) + 1) * (n / (root + n))
    rest = torch.addcmul(1 - draws, draws, slack)
    cost = (draws * tilt / rest + rest.log()) * n
    return (draws + 1) * slack / rest, cost


def _uniform_cosines(count: int, dim: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw cosines (`count`,) of uniform directions with a fixed one, from two uniforms (Ulrich 1984)."""
    angle, radius = drawn(torch.rand, (2, count), like, generator)
    cosine = torch.cos(2 * math.pi * angle)
    return cosine if dim == 2 else cosine * (-torch.expm1(2 / (dim - 2) * torch.log1p(-radius))).sqrt()


def _rejected(cost: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return whether -log u is below `cost` (K,) for uniform u; false where `cost` is NaN."""
    draw = drawn(torch.rand, cost.shape, cost, generator)
    return -torch.log1p(-draw) < cost


def _marginal(kappa: Tensor, dim: int) -> Marginal:
    steep = dim - 2
    mode = torch.acos((2 * kappa / (steep + (steep**2 + 4 * kappa**2).sqrt()).clamp_min(1e-300)).clamp(max=1))

    def curvature(theta: Tensor) -> Tensor:
        return kappa * theta.cos() + steep / theta.sin().square().clamp_min(1e-300)

    return Marginal(torch.cos, mean_resultant_length(kappa, dim), mode, curvature)
