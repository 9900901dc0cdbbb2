"""Distributions on the sphere that depend on x only through the cosine w = mu^T x (von Mises-Fisher, Power Spherical).

**Sampling.** x = w mu + sqrt(1 - w^2) v with v uniform among the unit vectors orthogonal to mu. Families draw the gap
1 - w, which keeps its digits when the concentration is large.

**Reparameterised gradient** of w with respect to the concentration kappa, without an accept-reject correction: the implicit
derivative dw/dkappa = -(dF/dkappa) / p(w) of the one-dimensional marginal. With w = cos(theta), log-density
f(theta) = log sin^{M-2}(theta) + kappa T(theta) and T the sufficient statistic,

    dw/dkappa = sin(theta) * integral_0^theta (T(t) - E[T]) exp(f(t) - f(theta)) dt
              = -sin(theta) * integral_theta^pi (the same)

taken on the side of theta away from the mode, where the integrand decays; 48-point Gauss-Legendre over the width it lives on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, constraints

_QUADRATURE_NODES = 48
_WIDTHS = 8.5
_PROJECT_BELOW = 32


class _UnitVector(constraints.Constraint):
    """Vectors of Euclidean length one."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        tolerance = 100 * torch.finfo(value.dtype).eps ** 0.75
        return (torch.linalg.vector_norm(value, dim=-1) - 1).abs() < tolerance


unit_vector = _UnitVector()


class RotationallySymmetric(Distribution):
    """Base: `loc` (..., M) unit mean direction, `concentration` (...) >= 0; events are unit vectors (M,)."""

    arg_constraints = {"loc": unit_vector, "concentration": constraints.nonnegative}  # noqa: RUF012
    support = unit_vector
    has_rsample = True

    def __init__(self, loc: Tensor, concentration: Tensor, validate_args: bool | None = None) -> None:
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
        """The same distribution with batch shape `batch_shape`."""
        shape = Size(batch_shape)
        return type(self)(self.loc.expand(*shape, self.dim), self.concentration.expand(shape), validate_args=False)

    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Samples (*sample_shape, ..., M) with gradients to `loc` and `concentration`, drawn with `generator`."""
        shape = Size(sample_shape) + self.batch_shape
        gap = self._sample_gap(shape, generator).to(self.loc.dtype)
        noise = torch.randn((*shape, self.dim), generator=generator, dtype=self.loc.dtype, device=self.loc.device)
        return around(self.loc, gap, noise)

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Samples (*sample_shape, ..., M) without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def _cosine(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return (self.loc * value).sum(-1)

    def _sample_gap(self, shape: Size, generator: torch.Generator | None) -> Tensor:
        raise NotImplementedError


def around(loc: Tensor, gap: Tensor, noise: Tensor) -> Tensor:
    """Unit vectors at cosine 1 - gap from `loc` (..., M); `gap` (S..., ...), Gaussian `noise` (S..., ..., M).

    The direction orthogonal to loc is the noise with its component along loc removed. In high dimension that component
    is small, so it is removed in the coefficients and not in a further pass over the noise; in low dimension it is
    removed twice, which keeps the result orthogonal where the noise is nearly parallel to loc.
    """
    sine = (gap * (2 - gap)).clamp_min(torch.finfo(gap.dtype).tiny).sqrt()
    if loc.shape[-1] < _PROJECT_BELOW:
        across = _unit_part_orthogonal_to(loc, _unit_part_orthogonal_to(loc, noise))
        return (1 - gap).unsqueeze(-1) * loc + sine.unsqueeze(-1) * across
    along = (noise * loc).sum(-1)
    length = ((noise * noise).sum(-1) - along * along).sqrt()
    scale = sine / length
    return noise * scale.unsqueeze(-1) + loc * (1 - gap - scale * along).unsqueeze(-1)


def _unit_part_orthogonal_to(loc: Tensor, vector: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vector - (vector * loc).sum(-1, keepdim=True) * loc, dim=-1)


@functools.lru_cache(maxsize=1)
def _gauss_legendre() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(_QUADRATURE_NODES)
    return (nodes + 1) / 2, weights / 2


def gap_derivative(
    gap: Tensor,
    kappa: Tensor,
    dim: int,
    statistic: Callable[[Tensor], Tensor],
    mean_statistic: Tensor,
    mode: Tensor,
    curvature: Callable[[Tensor], Tensor],
) -> Tensor:
    """D gap / d kappa (...) for `gap` = 1 - w (...) drawn from exp(kappa T(theta)) sin^{M-2}(theta), all in float64.

    `statistic` is T of the angle, `mean_statistic` E[T] (...), `mode` the angle (...) of the largest density in theta,
    `curvature` -d2/dtheta2 of the log-density.
    """
    theta = 2 * torch.asin((gap / 2).clamp(0, 1).sqrt())
    before = theta < mode
    width = _WIDTHS * curvature(theta).clamp_min(1e-12).rsqrt()
    room = torch.where(before, theta, math.pi - theta)
    reach = torch.where(before, -1.0, 1.0) * torch.minimum(room, width)
    nodes, weights = (torch.as_tensor(a, dtype=gap.dtype, device=gap.device) for a in _gauss_legendre())
    offset = reach.unsqueeze(-1) * nodes
    angle = theta.unsqueeze(-1) + offset
    ratio = torch.cos(offset) + torch.sin(offset) / torch.tan(theta).unsqueeze(-1)
    value = statistic(angle)
    exponent = kappa.unsqueeze(-1) * (value - statistic(theta).unsqueeze(-1)) + (dim - 2) * ratio.clamp_min(1e-300).log()
    integral = ((value - mean_statistic.unsqueeze(-1)) * exponent.exp() * weights).sum(-1) * reach
    return torch.where(theta > 0, torch.sin(theta) * integral, 0.0)


class Reparameterise(Function):
    """Identity on an already drawn gap whose derivative with respect to the concentration is `derivative()`."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, gap: Tensor, derivative: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(kappa, gap)
        ctx.derivative = derivative
        return gap.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        kappa, gap = ctx.saved_tensors
        return grad * ctx.derivative(gap.double(), kappa.double()).to(grad.dtype), None, None
