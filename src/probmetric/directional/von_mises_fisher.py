"""The von Mises-Fisher distribution: p(x) = C_M(kappa) exp(kappa mu^T x) on the unit sphere of R^M.

The cosine w is drawn by the rejection scheme of Ulrich (1984) and Wood (1994). Its proposals come from the cosine t of
a uniform direction with mu: with n = M - 1 and x = 2 kappa / (n + sqrt(4 kappa^2 + n^2)), the best value,

    1 - w = (1 - x) (1 + t) / (1 - x t),        accepted where log u <= -n (x t / (1 - x t) + log(1 - x t))

for uniform u, which is right for every kappa and M. (The code released with papers 000 and 002 replaces the parameter
by its limit for large kappa from kappa = 10 on; for kappa < M / 4 its samples are antipodal.) The first t of every
sample is that of the Gaussian noise that also gives its direction around mu; the few that are rejected draw theirs
from two uniforms. Gradients: implicit, see `_rotational`.

Elsewhere at least 0.6 of the proposals are accepted. Where kappa or mu is not a number no proposal can be judged: the
first one is taken, and the sample is NaN. An infinite kappa gives the mean direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import register_kl

from ._implicit import Reparameterise, gap_derivative
from ._rotational import RotationallySymmetric, no_sample
from .normalizer import log_normalizer, mean_resultant_length

_PROPOSALS = 4
_ROUNDS = 1000


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

    def _sample_gap(self, cosine: Tensor, generator: torch.Generator | None) -> Tensor:
        kappa = self.concentration
        gap = _draw_gap(cosine.to(kappa.dtype), kappa.detach(), self.dim, generator)
        if not (torch.is_grad_enabled() and kappa.requires_grad):
            return gap
        dim = self.dim
        drawn: Tensor = Reparameterise.apply(
            kappa.expand(gap.shape), gap, lambda gap, kappa: _gap_derivative(gap, kappa, dim)
        )
        return drawn


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """KL(p || q) = log C(kappa_p) - log C(kappa_q) + A(kappa_p) (kappa_p - kappa_q mu_p^T mu_q), (...)."""
    difference = log_normalizer(p.concentration, p.dim) - log_normalizer(q.concentration, q.dim)
    cosine = (p.loc * q.loc).sum(-1)
    projected = p.concentration - q.concentration * cosine
    return difference + mean_resultant_length(p.concentration, p.dim) * projected


def _draw_gap(cosine: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
    """1 - w (S..., ...) for `kappa` (...), by rejection; `cosine` (S..., ...) holds the first proposals' t."""
    n = dim - 1
    double = 2 * kappa
    root = (double * double + n * n).sqrt_()
    tilt, slack = double / (root + n), (n / (root + double) + 1) * (n / (root + n))
    gap, rejected = _propose(cosine, tilt, slack, n, generator)
    pending = rejected.view(-1).nonzero().squeeze(1)
    if pending.numel():
        owner = pending % max(1, kappa.numel())
        tilt, slack = tilt.reshape(-1)[owner], slack.reshape(-1)[owner]
    for _ in range(_ROUNDS):
        if not pending.numel():
            return gap
        fresh = _uniform_cosine((_PROPOSALS, len(pending)), dim, kappa, generator)
        proposed, rejected = _propose(fresh, tilt, slack, n, generator)
        chosen = proposed[0]
        for candidate, unfit in zip(proposed[1:], rejected[1:], strict=True):
            chosen = torch.where(unfit, chosen, candidate)
        gap.view(-1)[pending] = chosen
        left = rejected.all(dim=0).nonzero().squeeze(1)
        if not left.numel():
            return gap
        pending, tilt, slack = pending[left], tilt[left], slack[left]
    raise no_sample(kappa, _ROUNDS)


def _propose(
    cosine: Tensor,  # (..., n) t
    tilt: Tensor,  # (n,) x
    slack: Tensor,  # (n,) 1 - x
    freedom: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:  # (..., n), (..., n)
    """Proposals for 1 - w and whether each is rejected; what is not a number is not."""
    rest = torch.addcmul(1 - cosine, cosine, slack)
    cost = torch.mul(cosine, tilt).div_(rest).add_(rest.log()).mul_(-freedom)
    draw = torch.rand(cosine.shape, generator=generator, dtype=cosine.dtype, device=cosine.device)
    return (cosine + 1).mul_(slack).div_(rest), draw.log_() > cost


def _uniform_cosine(shape: tuple[int, ...], dim: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Cosines of uniform directions with a fixed one, from two uniforms (Ulrich 1984)."""
    draws = torch.rand((2, *shape), generator=generator, dtype=like.dtype, device=like.device)
    cosine = torch.cos(2 * math.pi * draws[0])
    return cosine if dim == 2 else cosine * (-torch.expm1(2 / (dim - 2) * torch.log1p(-draws[1]))).sqrt()


def _gap_derivative(gap: Tensor, kappa: Tensor, dim: int) -> Tensor:
    steep = dim - 2
    mode = torch.acos((2 * kappa / (steep + (steep**2 + 4 * kappa**2).sqrt()).clamp_min(1e-300)).clamp(max=1))

    def curvature(theta: Tensor) -> Tensor:
        return kappa * theta.cos() + steep / theta.sin().square().clamp_min(1e-300)

    return gap_derivative(gap, kappa, dim, torch.cos, mean_resultant_length(kappa, dim), mode, curvature)
