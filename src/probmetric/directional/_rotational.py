"""Distributions on the sphere that depend on x only through the cosine w = mu^T x (von Mises-Fisher, Power Spherical).

A sample is x = w mu + sqrt(1 - w^2) v with v uniform among the unit vectors orthogonal to mu. v is Gaussian noise
without its component along mu, normalised. That component, divided by the length of the noise, is the cosine of a
uniform direction with mu and independent of v, so a family may use it to draw w. A family draws the gap 1 - w, which
keeps its digits when the concentration is large.

When mu turns, v turns with it: dx = w dmu - (x^T dmu) mu for dmu orthogonal to mu. On this path the distribution stays
right, so the gradient is unbiased. Gradients with respect to the concentration are implicit: for a cosine
w = cos(theta) drawn by any means from a marginal with distribution function F and density p, the derivative
dw/dkappa = -(dF/dkappa) / p(w) makes expectations differentiable without an accept-reject correction. With log-density
f(theta) = log sin^{M-2}(theta) + kappa T(theta) and T the sufficient statistic,

    dw/dkappa = sin(theta) * integral_0^theta (T(t) - E[T]) exp(f(t) - f(theta)) dt
              = -sin(theta) * integral_theta^pi (the same)

The integral is taken on the side of theta away from the mode, where the integrand decays, by 20-point Gauss-Legendre
over the width where it is not negligible, in float64 (relative error about 1e-6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, constraints

from .normalizer import check_tensors, full_precision

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_QUADRATURE = (_NODES + 1) / 2, _WEIGHTS / 2  # on [0, 1]
_WIDTHS = 9.0
_PROJECT_TWICE_BELOW = 32


class _UnitVector(constraints.Constraint):
    """Vectors of Euclidean length one."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        tolerance = 100 * torch.finfo(value.dtype).eps ** 0.75
        return (torch.linalg.vector_norm(value, dim=-1) - 1).abs() < tolerance


unit_vector = _UnitVector()


class RotationallySymmetric(Distribution):
    """Base: unit mean direction `loc` (..., M), `concentration` (...) >= 0; events are unit vectors (M,)."""

    arg_constraints = {"loc": unit_vector, "concentration": constraints.nonnegative}  # noqa: RUF012
    support = unit_vector
    has_rsample = True

    def __init__(self, loc: Tensor, concentration: Tensor, validate_args: bool | None = None) -> None:
        check_tensors(loc=loc, concentration=concentration)
        if loc.dim() < 1 or loc.shape[-1] < 2:
            raise ValueError(f"loc has shape {tuple(loc.shape)}; expected (..., M) with M >= 2.")
        batch_shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
        self.loc = loc.expand(*batch_shape, loc.shape[-1])
        self.concentration = concentration.expand(batch_shape)
        super().__init__(batch_shape, loc.shape[-1:], validate_args=validate_args)

    @property
    def dim(self) -> int:
        """M."""
        return self.event_shape[0]

    @property
    def mode(self) -> Tensor:
        """The mean direction (..., M)."""
        return self.loc

    def expand(self, batch_shape: Any, _instance: Any = None) -> RotationallySymmetric:
        """Return the same distribution with batch shape `batch_shape`."""
        shape = Size(batch_shape)
        return type(self)(self.loc.expand(*shape, self.dim), self.concentration.expand(shape), validate_args=False)

    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples (*sample_shape, ..., M) with gradients to `loc` and `concentration`, with `generator`."""
        shape = Size(sample_shape) + self.batch_shape
        across, cosine = _across(self.loc, shape, generator)
        kappa = full_precision(self.concentration, "concentration").expand(shape)
        gap = self._sample_gap(kappa, cosine, generator)
        return _placed(self.loc, gap, across)

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples (*sample_shape, ..., M) without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def _cosine(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return (full_precision(self.loc, "loc") * value).sum(-1)

    def _sample_gap(self, kappa: Tensor, cosine: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw 1 - w (S..., ...).

        Args:
            kappa: concentrations (S..., ...), of float32 at least.
            cosine: cosines of uniform directions with the mean direction (S..., ...).
            generator: drives the draws.
        """
        raise NotImplementedError


def around(loc: Tensor, gap: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw unit vectors (S..., ..., M) at cosine 1 - `gap` (S..., ...) from `loc` (..., M)."""
    return _placed(loc, gap, _across(loc, gap.shape, generator)[0])


def drawn(draw: Callable[..., Tensor], shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw numbers of `shape` by `torch.rand` or `torch.randn`, with the device and type of `like` (at least float32).

    They are always drawn in float32, so that float64 has the same draws with the same seed.
    """
    numbers = draw(tuple(shape), generator=generator, dtype=torch.float32, device=like.device)
    return numbers.to(torch.promote_types(like.dtype, torch.float32))


def no_sample(kappa: Tensor, rounds: int) -> RuntimeError:
    """Return the error of a sampler that accepted no sample in `rounds` rounds, for concentrations `kappa` (...)."""
    low, high = (float(bound) for bound in torch.aminmax(kappa))
    return RuntimeError(
        f"no sample was accepted in {rounds} rounds for concentrations from {low:g} to {high:g}; allowed: finite "
        "numbers, at least 0. Please report this as a bug if yours are."
    )


def _across(loc: Tensor, shape: Size, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw unit vectors (*shape, M) orthogonal to `loc` (..., M), and cosines (*shape) of uniform directions with it.

    In low dimension the component along `loc` is removed twice, which keeps the rest orthogonal where the noise is
    nearly parallel to `loc`. In high dimension only noise from the seed of `loc` is parallel; its rest stays short.
    """
    loc = full_precision(loc.detach(), "loc")
    limits = torch.finfo(loc.dtype)
    vectors = drawn(torch.randn, (*shape, loc.shape[-1]), loc, generator)
    toward = _along(vectors, loc)
    vectors.addcmul_(toward, loc, value=-1)
    if loc.shape[-1] < _PROJECT_TWICE_BELOW:
        vectors.addcmul_(_along(vectors, loc), loc, value=-1)
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    whole = torch.hypot(toward, length)
    least = limits.tiny if loc.shape[-1] < _PROJECT_TWICE_BELOW else limits.eps**0.5 * whole + limits.tiny
    return vectors.div_(length.clamp_min(least)), (toward / whole).squeeze(-1)


def _placed(loc: Tensor, gap: Tensor, across: Tensor) -> Tensor:
    """Return unit vectors at `gap` (S..., ...) from `loc` (..., M), on the sides `across` (S..., ..., M) of it."""
    gap = gap.to(across.dtype).unsqueeze(-1)
    sine = (gap * (2 - gap)).clamp_min(torch.finfo(gap.dtype).tiny).sqrt()
    cosine = 1 - gap
    if not torch.is_grad_enabled():
        return across.mul_(sine).addcmul_(cosine, loc.to(across.dtype)).to(loc.dtype)
    if loc.requires_grad:
        cosine = cosine - sine * _along(across, loc.to(across.dtype))  # zero, with the slope of a turning `across`
    return torch.addcmul(cosine * loc, sine, across).to(loc.dtype)


def _along(vector: Tensor, loc: Tensor) -> Tensor:
    return torch.linalg.vecdot(vector, loc).unsqueeze(-1)


@dataclass(frozen=True)
class Marginal:
    """Functions of the angle theta (...) between a sample and the mean direction, for the implicit derivative.

    Attributes:
        statistic: T of the angle.
        mean_statistic: E[T] (...).
        mode: angle (...) of the largest density in theta.
        curvature: -d2/dtheta2 of the log-density.
    """

    statistic: Callable[[Tensor], Tensor]
    mean_statistic: Tensor
    mode: Tensor
    curvature: Callable[[Tensor], Tensor]


def differentiable(gap: Tensor, kappa: Tensor, dim: int, marginal: Callable[[Tensor, int], Marginal]) -> Tensor:
    """Return the drawn `gap` (...) with its implicit derivative by `kappa` (...), if `kappa` requires one."""
    if not (torch.is_grad_enabled() and kappa.requires_grad):
        return gap
    drawn: Tensor = _Reparameterise.apply(kappa, gap, dim, marginal)
    return drawn


class _Reparameterise(Function):
    """Identity on an already drawn gap whose derivative with respect to the concentration is implicit."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, gap: Tensor, dim: int, marginal: Callable[[Tensor, int], Marginal]) -> Tensor:
        ctx.save_for_backward(kappa, gap)
        ctx.dim, ctx.marginal = dim, marginal
        return gap.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        kappa, gap = (tensor.double() for tensor in ctx.saved_tensors)
        slope = gap_derivative(gap, kappa, ctx.dim, ctx.marginal(kappa, ctx.dim))
        return grad * slope.to(grad.dtype), None, None, None


def gap_derivative(gap: Tensor, kappa: Tensor, dim: int, marginal: Marginal) -> Tensor:
    """Return d gap / d kappa (...) for `gap` = 1 - w (...) drawn from exp(kappa T(theta)) sin^{M-2}(theta).

    All in float64.
    """
    theta = 2 * torch.asin((gap / 2).clamp(0, 1).sqrt())
    before = theta < marginal.mode
    width = _WIDTHS * marginal.curvature(theta).clamp_min(1e-12).rsqrt()
    room = torch.where(before, theta, math.pi - theta)
    reach = torch.where(before, -1.0, 1.0) * torch.minimum(room, width)
    nodes, weights = (torch.as_tensor(part, dtype=gap.dtype, device=gap.device) for part in _QUADRATURE)
    offset = reach.unsqueeze(-1) * nodes
    angle = theta.unsqueeze(-1) + offset
    ratio = torch.cos(offset) + torch.sin(offset) / torch.tan(theta).unsqueeze(-1)
    value = marginal.statistic(angle)
    tilt = kappa.unsqueeze(-1) * (value - marginal.statistic(theta).unsqueeze(-1))
    exponent = tilt + (dim - 2) * ratio.clamp_min(1e-300).log()
    integral = ((value - marginal.mean_statistic.unsqueeze(-1)) * exponent.exp() * weights).sum(-1) * reach
    return torch.where(theta > 0, torch.sin(theta) * integral, 0.0)
