"""Fitting the von Mises-Fisher distribution: from unit vectors to a mean direction and a concentration.

The maximum-likelihood concentration solves A_M(kappa) = R with R the length of the mean of the samples. The start
kappa_0 = R (M - R^2) / (1 - R^2) (Sra 2012, eq. 4) is off by a few per cent at most. Each Newton step on A_M then
about doubles the number of correct digits. A last step with a frozen slope carries the exact derivative
d kappa / d R = 1 / A_M'(kappa).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._series import check_dim
from .normalizer import full_precision, mean_resultant_length

_NEWTON_STEPS = 4


def concentration_from_resultant(resultant: Tensor, dim: int) -> Tensor:
    """Return the kappa (...) with A_M(kappa) = `resultant` (...) in [0, 1), elementwise and differentiable.

    A resultant that rounds to 1 or more (all samples equal) is treated as the largest number below 1.
    """
    resultant = full_precision(resultant, "resultant")
    check_dim(dim)
    below_one = 1 - torch.finfo(resultant.dtype).eps
    resultant = resultant.clamp(0, below_one)
    fixed = resultant.detach()
    kappa = fixed * (dim - fixed**2) / (1 - fixed**2)
    for _ in range(_NEWTON_STEPS):
        error, slope = _residual(kappa, fixed, dim)
        kappa = (kappa - error / slope).clamp_min(0)
    error, slope = _residual(kappa, fixed, dim)
    return kappa + (resultant - fixed - error) / slope


def fit(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a vMF by maximum likelihood to `samples` (..., N, M), which are normalised first.

    Returns the mean direction (..., M) and the concentration (...).
    """
    samples = full_precision(samples, "samples")
    if samples.dim() < 2 or samples.shape[-2] == 0:
        raise ValueError(f"samples have shape {tuple(samples.shape)}; expected (..., N, M) with N >= 1.")
    mean = torch.nn.functional.normalize(samples, dim=-1).mean(dim=-2)
    resultant = torch.linalg.vector_norm(mean, dim=-1)
    direction = torch.nn.functional.normalize(mean, dim=-1)
    return direction, concentration_from_resultant(resultant, samples.shape[-1])


def fuse(mean: Tensor, concentration: Tensor) -> tuple[Tensor, Tensor]:
    """Fuse several images of one identity into one distribution: the normalised product of their vMF densities.

    The product of vMF(mu_i, kappa_i) is a vMF with natural parameter sum_i kappa_i mu_i. Images with a large kappa
    therefore count more, and images that contradict each other give a small concentration.

    Args:
        mean: (..., N, M) mean directions.
        concentration: (..., N) concentrations >= 0.

    Returns:
        Mean direction (..., M), zeros where the sum is zero, and concentration (...).
    """
    mean, concentration = full_precision(mean, "mean"), full_precision(concentration, "concentration")
    if mean.dim() < 2 or mean.shape[-2] == 0 or concentration.shape != mean.shape[:-1]:
        raise ValueError(
            f"mean has shape {tuple(mean.shape)}, concentration {tuple(concentration.shape)}; expected (..., N, M) "
            "with N >= 1, and (..., N)."
        )
    natural = (concentration.unsqueeze(-1) * torch.nn.functional.normalize(mean, dim=-1)).sum(dim=-2)
    return torch.nn.functional.normalize(natural, dim=-1), torch.linalg.vector_norm(natural, dim=-1)


def _residual(kappa: Tensor, target: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return A_M(kappa) - target and A_M'(kappa), without a graph."""
    with torch.enable_grad():
        variable = kappa.detach().requires_grad_()
        value = mean_resultant_length(variable, dim)
        (slope,) = torch.autograd.grad(value.sum(), variable)
    return value.detach() - target, slope
