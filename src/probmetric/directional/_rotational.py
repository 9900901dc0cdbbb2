"""Distributions on the sphere that depend on x only through the cosine w = mu^T x (von Mises-Fisher, Power Spherical).

A sample is x = w mu + sqrt(1 - w^2) v with v uniform among the unit vectors orthogonal to mu: Gaussian noise without
its component along mu, normalised. The squared length lost by normalising, chi-square with M - 1 degrees of freedom,
and the component along mu are independent of v, so a family may use them to draw w. It draws the gap 1 - w, which keeps
its digits when the concentration is large. Gradients with respect to it: see `_implicit`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, constraints

_PROJECT_TWICE_BELOW = 32


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
        noise = noise_around(self.loc, shape, generator)
        gap = self._sample_gap(noise, generator)
        return _turn(self.loc, gap.to(self.loc.dtype), noise)

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Samples (*sample_shape, ..., M) without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def _cosine(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return (self.loc * value).sum(-1)

    def _sample_gap(self, noise: Noise, generator: torch.Generator | None) -> Tensor:
        """1 - w (S..., ...) for samples around whose mean direction `noise` lies."""
        raise NotImplementedError


def around(loc: Tensor, gap: Tensor, generator: torch.Generator | None) -> Tensor:
    """Random unit vectors (S..., ..., M) at cosine 1 - `gap` (S..., ...) from `loc` (..., M)."""
    return _turn(loc, gap, noise_around(loc, gap.shape, generator))


def noise_around(loc: Tensor, shape: Size, generator: torch.Generator | None) -> Noise:
    """What places samples `shape` around `loc` (..., M)."""
    return (_CircleNoise if loc.shape[-1] == 2 else Noise)(loc, shape, generator)


def no_sample(kappa: Tensor, rounds: int) -> RuntimeError:
    """The error of a sampler that accepted nothing in so many rounds, for concentrations `kappa` (...)."""
    low, high = (float(bound) for bound in torch.aminmax(kappa))
    return RuntimeError(
        f"no sample was accepted in {rounds} rounds for concentrations from {low:g} to {high:g}; allowed: finite "
        "numbers, at least 0. Please report this as a bug if yours are."
    )


class Noise:
    """Gaussian vectors (*shape, M), their components along `loc` (*shape, 1) and what is across, squared; for one use.

    In low dimension the component along loc is taken out here and again in `at`, which keeps v orthogonal where the
    noise is nearly parallel to loc. In high dimension only noise drawn with the seed that made loc is; the sample then
    is the mean direction times its cosine.
    """

    def __init__(self, loc: Tensor, shape: Size, generator: torch.Generator | None) -> None:
        loc, limits = loc.detach(), torch.finfo(loc.dtype)
        self.vectors = torch.randn((*shape, loc.shape[-1]), generator=generator, dtype=loc.dtype, device=loc.device)
        self.along = self.toward = _along(self.vectors, loc)
        if loc.shape[-1] < _PROJECT_TWICE_BELOW:
            self.vectors.addcmul_(self.along, loc, value=-1)
            self.along = _along(self.vectors, loc)
        square = torch.linalg.vector_norm(self.vectors, dim=-1, keepdim=True).square_()
        across = torch.addcmul(square, self.along, self.along, value=-1)
        self.across = torch.maximum(across, square.mul_(limits.eps).clamp_min_(limits.tiny))

    @property
    def chi_square(self) -> Tensor:
        """Chi-square variates (*shape) with M - 1 degrees of freedom."""
        return self.across.squeeze(-1)

    @property
    def cosine(self) -> Tensor:
        """Cosines (*shape) of uniformly distributed directions with `loc`."""
        length = torch.addcmul(self.across, self.toward, self.toward).sqrt_()
        return (self.toward / length).squeeze(-1)

    def at(self, loc: Tensor, gap: Tensor) -> Tensor:
        """Unit vectors at `gap` (S..., ...) from `loc` (..., M), in the noise's memory."""
        gap = gap.unsqueeze(-1)
        scale = (2 - gap).mul_(gap).clamp_min_(0).div_(self.across).sqrt_()
        return self.vectors.mul_(scale).addcmul_((1 - gap).addcmul_(scale, self.along, value=-1), loc)


class _CircleNoise(Noise):
    """On the circle, where what is across `loc` (..., 2) is one Gaussian (*shape): its sign is the side of the mean."""

    def __init__(self, loc: Tensor, shape: Size, generator: torch.Generator | None) -> None:
        self.across = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)

    @property
    def chi_square(self) -> Tensor:
        """Chi-square variates (*shape) with one degree of freedom."""
        return self.across.square()

    @property
    def cosine(self) -> Tensor:
        """Cosines (*shape) of uniform angles: the share of Gaussians nearer zero, times pi, whatever the sign."""
        return self.across.abs().mul_(math.sqrt(0.5)).erf_().mul_(math.pi).cos_()

    def at(self, loc: Tensor, gap: Tensor) -> Tensor:
        """Unit vectors at `gap` (S..., ...) from `loc` (..., 2): loc (cos + i sin), both read as complex numbers."""
        sine = (2 - gap).mul_(gap).clamp_min_(0).sqrt_().copysign_(self.across)
        turned = _complex(1 - gap, sine).mul_(_complex(loc[..., 0], loc[..., 1]))
        return torch.view_as_real(turned).to(loc.dtype)


def _turn(loc: Tensor, gap: Tensor, noise: Noise) -> Tensor:
    if torch.is_grad_enabled() and (loc.requires_grad or gap.requires_grad):
        samples: Tensor = _Around.apply(loc, gap, noise)
        return samples
    return noise.at(loc, gap)


def _complex(real: Tensor, imaginary: Tensor) -> Tensor:
    """Complex numbers (...), which torch has from single precision on."""
    wide = torch.promote_types(real.dtype, torch.float32)
    return torch.complex(real.to(wide), imaginary.to(wide))


class _Around(Function):
    """Unit vectors x = (1 - gap) loc + sqrt(gap (2 - gap)) v at given gaps (S..., ...) from `loc` (..., M).

    When loc turns, v turns with it: dx = (1 - gap) dloc - (x^T dloc) loc for dloc orthogonal to loc, a path on which
    the distribution stays right, so its gradient is unbiased.
    """

    @staticmethod
    def forward(ctx: Any, loc: Tensor, gap: Tensor, noise: Noise) -> Tensor:
        samples = noise.at(loc, gap)
        ctx.save_for_backward(loc, gap, samples)
        return samples

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        loc, gap, samples = ctx.saved_tensors
        cosine, tiny = 1 - gap, torch.finfo(gap.dtype).tiny
        grad_along = _along(grad, loc).squeeze(-1)
        turning = _along(grad, samples).squeeze(-1) - cosine * grad_along
        grad_gap = cosine / (gap * (2 - gap)).clamp_min(tiny) * turning - grad_along
        if not ctx.needs_input_grad[0]:
            return None, grad_gap, None
        batch = (-1, *loc.shape[:-1])
        grad, samples = (t.reshape(*batch, loc.shape[-1]) for t in (grad, samples))
        cosine, grad_along = cosine.reshape(batch), grad_along.reshape(batch)
        turned = torch.einsum("s...m,s...->...m", grad, cosine) - torch.einsum("s...m,s...->...m", samples, grad_along)
        return turned + (cosine * grad_along).sum(0).unsqueeze(-1) * loc, grad_gap, None


def _along(vector: Tensor, loc: Tensor) -> Tensor:
    return torch.linalg.vecdot(vector, loc).unsqueeze(-1)
