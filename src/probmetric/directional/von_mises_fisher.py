"""The von Mises-Fisher distribution: p(x) = C_M(kappa) exp(kappa mu^T x) on the unit sphere of R^M.

The gap s = 1 - w has density proportional to (s (2 - s))^a exp(-kappa s), a = (M - 3) / 2, on [0, 2]. On the sphere
(M = 3) its distribution function is inverted. Otherwise one of three rejection schemes is used, whose first proposals
are functions of the Gaussian noise that also gives the sample's direction around mu; u is uniform, n = M - 1.

Concentrations of M / 2 and more, M > 3: log(2 - s) lies below its tangent at any s0, so a gamma distribution of the
same power envelops the density,

    s ~ Gamma(a + 1, lambda),  lambda = kappa + a / (2 - s0),      z = (s - s0) / (2 - s0),
    accepted where log u <= a (log(1 - z) + z);      s0 = (a + 1) / lambda is best, hence
    4 lambda = 2 kappa + n - 1 + sqrt((2 kappa - 1)^2 + n (n - 2)).

Below: the scheme of Ulrich (1984) and Wood (1994). With the cosine t of a uniform direction with mu
and x = 2 kappa / (n + sqrt(4 kappa^2 + n^2)), the best value,

    s = (1 - x) (1 + t) / (1 - x t),        accepted where log u <= -n (x t / (1 - x t) + log(1 - x t)).

At kappa = M / 2 both accept 0.92 of their proposals, the first all of them as kappa grows and the second as it falls.
All are right for every kappa, so batches of different ones are drawn by the scheme their mean calls for.
(The code released with papers 000 and 002 replaces the parameter of that scheme by its limit for large kappa from
kappa = 10 on; for kappa < M / 4 its samples are antipodal.)

Concentrations of 1 and more on the circle (M = 2), ours: the angle a to mu is written tan(a / 2) = y / (1 - y^2) with
y in [-1, 1], t = y^2. Then s = 2 t / (1 - t + t^2) >= 2 t, and da / dy is twice

    (1 + t) / (1 - t + t^2) <= exp(2 t - t^2) <= exp(2 t - 2 p t + p^2)

for any p. So a normal distribution envelops the density of y,

    y ~ N(0, 1 / (4 lambda)),  lambda = kappa - 1 + p;      p = 1 / (4 lambda) is best, hence
    2 lambda = kappa - 1 + sqrt((kappa - 1)^2 + 1),
    accepted where t <= 1 and log u <= 2 lambda t - kappa s + log((1 + t) / (1 - t + t^2)) - p^2.

It accepts 0.27 of its proposals for kappa = 0, 0.64 for 1, 0.81 for 2, 0.96 for 10, and all of them as kappa grows.
The scheme above accepts 1, 0.87, 0.77, 0.67 and 0.66 there. Gradients: implicit, see `_rotational`.

Where kappa or mu is not a number no proposal can be judged: the first one is taken, and the sample is NaN. An infinite
kappa gives the mean direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import register_kl

from ._implicit import Reparameterise, gap_derivative
from ._rotational import Noise, RotationallySymmetric, no_sample
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

    def _sample_gap(self, noise: Noise, generator: torch.Generator | None) -> Tensor:
        kappa = self.concentration
        gap = _draw_gap(noise, kappa.detach(), self.dim, generator)
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


def _draw_gap(noise: Noise, kappa: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
    """1 - w (S..., ...) for `kappa` (...)."""
    if dim == 3:
        return _on_sphere(noise.chi_square.shape, kappa, generator)
    scheme = _scheme(kappa, dim)
    constants = scheme.constants(kappa, dim)
    gap, cost = scheme.propose(scheme.first(noise).to(kappa.dtype), constants, dim)
    pending = _rejected(cost, generator).view(-1).nonzero().squeeze(1)
    if pending.numel():
        owner = pending % max(1, kappa.numel())
        constants = tuple(constant.reshape(-1).index_select(0, owner) for constant in constants)
    for _ in range(_ROUNDS):
        if not pending.numel():
            return gap
        proposed, cost = scheme.propose(scheme.fresh((_PROPOSALS, len(pending)), dim, kappa, generator), constants, dim)
        rejected = _rejected(cost, generator)
        none, first = rejected.min(dim=0, keepdim=True)
        gap.view(-1)[pending] = proposed.gather(0, first).squeeze(0)
        left = none.squeeze(0).nonzero().squeeze(1)
        if not left.numel():
            return gap
        pending, constants = pending[left], tuple(constant[left] for constant in constants)
    raise no_sample(kappa, _ROUNDS)


def _scheme(kappa: Tensor, dim: int) -> type[_Scheme]:
    if float(kappa.mean()) < dim / 2:
        return _Uniform
    return _Normal if dim == 2 else _Gamma


def _on_sphere(shape: torch.Size, kappa: Tensor, generator: torch.Generator | None) -> Tensor:
    """1 - w `shape` in three dimensions: -log(1 - u (1 - exp(-2 kappa))) / kappa for uniform u."""
    kappa = kappa.clamp_min(torch.finfo(kappa.dtype).tiny ** 0.5)
    draw = torch.rand(shape, generator=generator, dtype=kappa.dtype, device=kappa.device)
    return draw.mul_(torch.expm1(-2 * kappa)).log1p_().div_(-kappa)


def _rejected(cost: Tensor, generator: torch.Generator | None) -> Tensor:
    """Whether -log u is below `cost` (...) for uniform u; where that is not a number, it is not."""
    draw = torch.rand(cost.shape, generator=generator, dtype=cost.dtype, device=cost.device)
    return draw.neg_().log1p_().neg_() < cost


class _Scheme:
    """Proposals for 1 - w and what they cost: a proposal is accepted with probability exp(-cost)."""

    @staticmethod
    def constants(kappa: Tensor, dim: int) -> tuple[Tensor, ...]:
        """What depends on `kappa` (...) only, each (...)."""
        raise NotImplementedError

    @staticmethod
    def first(noise: Noise) -> Tensor:
        """Random numbers (S..., ...) of the first proposals."""
        raise NotImplementedError

    @staticmethod
    def fresh(shape: tuple[int, ...], dim: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Random numbers of further proposals."""
        raise NotImplementedError

    @staticmethod
    def propose(draws: Tensor, constants: tuple[Tensor, ...], dim: int) -> tuple[Tensor, Tensor]:
        """Proposals and costs (S..., ...) from random numbers `draws` (S..., ...)."""
        raise NotImplementedError


class _Uniform(_Scheme):
    """From cosines of uniform directions."""

    @staticmethod
    def constants(kappa: Tensor, dim: int) -> tuple[Tensor, ...]:
        """The x of the scheme, and 1 - x."""
        n, double = dim - 1, 2 * kappa
        root = (double * double + n * n).sqrt_()
        return double / (root + n), (n / (root + double) + 1) * (n / (root + n))

    @staticmethod
    def first(noise: Noise) -> Tensor:
        """Those of the noise."""
        return noise.cosine

    @staticmethod
    def fresh(shape: tuple[int, ...], dim: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Cosines of uniform directions with a fixed one, from two uniforms (Ulrich 1984)."""
        draws = torch.rand((2, *shape), generator=generator, dtype=like.dtype, device=like.device)
        cosine = torch.cos(2 * math.pi * draws[0])
        return cosine if dim == 2 else cosine * (-torch.expm1(2 / (dim - 2) * torch.log1p(-draws[1]))).sqrt()

    @staticmethod
    def propose(draws: Tensor, constants: tuple[Tensor, ...], dim: int) -> tuple[Tensor, Tensor]:
        """Proposals and costs from cosines."""
        tilt, slack = constants
        rest = torch.addcmul(1 - draws, draws, slack)
        cost = torch.mul(draws, tilt).div_(rest).add_(rest.log()).mul_(dim - 1)
        return (draws + 1).mul_(slack).div_(rest), cost


class _Gamma(_Scheme):
    """From chi-square variates with M - 1 degrees of freedom."""

    @staticmethod
    def constants(kappa: Tensor, dim: int) -> tuple[Tensor, ...]:
        """1 / (2 lambda), 1 / (2 - s0) and -s0 / (2 - s0)."""
        n, double = dim - 1, 2 * kappa
        root = torch.hypot(double - 1, torch.full_like(kappa, math.sqrt(n * (n - 2))))
        width = 2 / root.add_(double).add_(n - 1)
        slope = 1 / (2 - n * width)
        return width, slope, 1 - 2 * slope

    @staticmethod
    def first(noise: Noise) -> Tensor:
        """Those of the noise."""
        return noise.chi_square

    @staticmethod
    def fresh(shape: tuple[int, ...], dim: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Chi-square variates."""
        half = torch.full(shape, (dim - 1) / 2, dtype=like.dtype, device=like.device)
        return torch._standard_gamma(half, generator=generator).mul_(2)

    @staticmethod
    def propose(draws: Tensor, constants: tuple[Tensor, ...], dim: int) -> tuple[Tensor, Tensor]:
        """Proposals and costs from chi-square variates; what is beyond 2 costs infinitely much."""
        width, slope, offset = constants
        gap = draws * width
        place = torch.addcmul(offset, gap, slope).clamp_max_(1)
        return gap, torch.log1p(-place).add_(place).mul_((3 - dim) / 2)


class _Normal(_Scheme):
    """On the circle, from chi-square variates with one degree of freedom."""

    @staticmethod
    def constants(kappa: Tensor, dim: int) -> tuple[Tensor, ...]:
        """1 / (2 lambda), kappa and log 2 + p^2."""
        less = kappa - 1
        width = torch.hypot(less, torch.ones_like(less)).add_(less).reciprocal_()
        return width, kappa, torch.addcmul(torch.full_like(less, math.log(2)), width, width, value=0.25)

    @staticmethod
    def first(noise: Noise) -> Tensor:
        """Those of the noise."""
        return noise.chi_square

    @staticmethod
    def fresh(shape: tuple[int, ...], dim: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Chi-square variates."""
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device).square_()

    @staticmethod
    def propose(draws: Tensor, constants: tuple[Tensor, ...], dim: int) -> tuple[Tensor, Tensor]:
        """Proposals and costs from chi-square variates; what is beyond t = 1 costs infinitely much."""
        width, kappa, start = constants
        double = draws * width
        rest = torch.nn.functional.threshold(torch.rsub(double, 1, alpha=0.5), 0, math.inf, inplace=True)
        denominator = rest.addcmul_(double, double, value=0.25)
        gap = double / denominator
        cost = denominator.div_(double.add_(2)).log_().sub_(draws, alpha=0.5)
        return gap, cost.add_(start).addcmul_(gap, kappa)


def _gap_derivative(gap: Tensor, kappa: Tensor, dim: int) -> Tensor:
    steep = dim - 2
    mode = torch.acos((2 * kappa / (steep + (steep**2 + 4 * kappa**2).sqrt()).clamp_min(1e-300)).clamp(max=1))

    def curvature(theta: Tensor) -> Tensor:
        return kappa * theta.cos() + steep / theta.sin().square().clamp_min(1e-300)

    return gap_derivative(gap, kappa, dim, torch.cos, mean_resultant_length(kappa, dim), mode, curvature)
