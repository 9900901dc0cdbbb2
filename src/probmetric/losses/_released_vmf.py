"""The vMF approximations of the code released with papers 000 and 002, for `fidelity="as_published"` only.

    log C, "quadratic"   127 - 0.01909 k - 0.003355 k^2 for M = 128, 868 - 0.0002662 k - 0.0009685 k^2 for every other M
                         (paper 000); fitted on 10 <= k <= 50 and close only there; its slope leaves [-1, 0]
    log C, "bounds"      the mean of two bounds (paper 002), up to a constant that only depends on M
    A_M, "bounds"        the mean of two bounds (paper 002); 25 % off for M = 3 and small k
    sampler              Wood's rejection scheme with the envelope parameter b = (M - 1) / (4 k) for k > 10. This b is
                         right only for k >> M; for k < M / 4 the samples are antipodal. The gradient passes b alone.

k is the concentration kappa, M the dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probmetric.directional._rotational import around, drawn, no_sample

_ROUNDS = 1000


def quadratic_log_normalizer(square: Tensor, dim: int) -> Tensor:
    """Return log C_M at kappa^2 = `square` (...), by the fit for M = 128 if `dim` is 128, else that for M = 512."""
    constant, slope, curvature = (127.0, 0.01909, 0.003355) if dim == 128 else (868.0, 0.0002662, 0.0009685)
    return constant - slope * _root(square) - curvature * square


def bounds_log_normalizer(square: Tensor, dim: int) -> Tensor:
    """Return log C_M at kappa^2 = `square` (...), up to a constant."""
    a, b = (dim - 1) / 2, (dim + 1) / 2
    root_a, root_b = (a * a + square).sqrt(), (b * b + square).sqrt()
    return 0.5 * (a * (a + root_a).log() - root_a + a * (a + root_b).log() - root_b)


def bounds_scaled_ratio(square: Tensor, dim: int) -> Tensor:
    """Return A_M / kappa at kappa^2 = `square` (...)."""
    a, b = (dim - 1) / 2, (dim + 1) / 2
    return 0.5 * (1 / (a + (b * b + square).sqrt()) + 1 / (a + (a * a + square).sqrt()))


def released_samples(
    loc: Tensor,  # (B, M) unit rows
    kappa: Tensor,  # (B,)
    count: int,
    generator: torch.Generator | None,
) -> Tensor:  # (count, B, M)
    """Return draws of the released sampler, with the released (incomplete) gradient."""
    dim = loc.shape[-1]
    wide = kappa.expand(count, *kappa.shape)
    if dim == 3:
        u = drawn(torch.rand, wide.shape, kappa, generator)
        tiny = torch.finfo(kappa.dtype).tiny
        cosine = 1 + torch.logaddexp(u.clamp_min(tiny).log(), torch.log1p(-u) - 2 * wide) / wide.clamp_min(tiny)
        return around(loc, (1 - cosine).clamp(0, 2), generator)
    with torch.no_grad():
        epsilon = _accepted_beta(wide.reshape(-1), dim, generator).view(wide.shape)
    b = _released_b(wide, dim)
    gap = 2 * b * epsilon / (1 - (1 - b) * epsilon)
    return around(loc, gap.clamp(0, 2), generator)


def _released_b(kappa: Tensor, dim: int) -> Tensor:
    n = dim - 1
    exact = n / (2 * kappa + (4 * kappa**2 + n**2).sqrt())
    taylor = n / (4 * kappa.clamp_min(1e-3))
    share = (kappa - 10).clamp(0, 1)
    return share * taylor + (1 - share) * exact


def _accepted_beta(kappa: Tensor, dim: int, generator: torch.Generator | None) -> Tensor:
    """Return the accepted symmetric beta variate (n,) for each `kappa` (n,); NaN where kappa is not finite."""
    n = dim - 1
    accepted = torch.empty_like(kappa)
    pending = torch.arange(len(kappa), device=kappa.device)
    for _ in range(_ROUNDS):
        if not pending.numel():
            return accepted
        k = kappa[pending].double()
        b = _released_b(k, dim)
        a = (n + 2 * k + (4 * k**2 + n**2).sqrt()) / 4
        u = torch.rand((3, len(k)), generator=generator, dtype=k.dtype, device=k.device)
        coordinate = torch.cos(2 * math.pi * u[1])
        if dim > 2:
            coordinate = coordinate * (-torch.expm1(2 / (dim - 2) * torch.log1p(-u[0]))).sqrt()
        epsilon = (1 + coordinate) / 2
        t = 2 * a * b / (1 - (1 - b) * epsilon)
        log_ratio = n * t.log() - t + 4 * a * b / (1 + b) - n * math.log(n)
        bad = log_ratio < torch.log1p(-u[2])
        accepted[pending] = torch.where(log_ratio.isnan(), log_ratio, epsilon).to(kappa.dtype)
        pending = pending[bad]
    raise no_sample(kappa, _ROUNDS)


def _root(square: Tensor) -> Tensor:
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
