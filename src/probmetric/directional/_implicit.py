"""Derivative of a random cosine with respect to its distribution's concentration, by implicit reparameterisation.

For a cosine w = cos(theta) drawn by any means from a marginal with distribution function F and density p, the
derivative dw/dkappa = -(dF/dkappa) / p(w) makes expectations differentiable without an accept-reject correction. With
log-density f(theta) = log sin^{M-2}(theta) + kappa T(theta) and T the sufficient statistic,

    dw/dkappa = sin(theta) * integral_0^theta (T(t) - E[T]) exp(f(t) - f(theta)) dt
              = -sin(theta) * integral_theta^pi (the same)

taken on the side of theta away from the mode, where the integrand decays; 20-point Gauss-Legendre over the width it
lives on, in float64 (relative error about 1e-6).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_QUADRATURE_NODES = 20
_WIDTHS = 9.0


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
    tilt = kappa.unsqueeze(-1) * (value - statistic(theta).unsqueeze(-1))
    exponent = tilt + (dim - 2) * ratio.clamp_min(1e-300).log()
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
