from __future__ import annotations

import math

import pytest
import torch
from sphere_reference import sphere_grid, unit
from torch.distributions import kl_divergence

from probmetric.directional import VonMisesFisher, bhattacharyya, expected_likelihood, kl, product_kernel

DOUBLE = torch.float64
NU_Z = unit(3, 1, 4) * torch.tensor([0.0, 0.5, 4.0, 25.0], dtype=DOUBLE)[:, None]
NU_P = unit(3, 2, 3) * torch.tensor([1e-3, 3.0, 12.0], dtype=DOUBLE)[:, None]


def log_densities(nu: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Log-densities (B, K), from sinh and not from Bessel functions."""
    kappa = torch.linalg.vector_norm(nu, dim=-1).clamp_min(1e-9)
    log_sinh = kappa + torch.log1p(-torch.exp(-2 * kappa)) - math.log(2)
    return (kappa.log() - math.log(4 * math.pi) - log_sinh)[:, None] + nu @ points.T


@pytest.mark.parametrize("rho", [0.5, 1.0, 1.7])
def test_product_kernels_by_quadrature(rho: float) -> None:
    points, weights = sphere_grid()
    log_z, log_p = log_densities(NU_Z, points), log_densities(NU_P, points)
    expected = (rho * (log_z[:, None] + log_p)).exp().matmul(weights).log()
    torch.testing.assert_close(product_kernel(NU_Z, NU_P, rho=rho), expected, atol=1e-6, rtol=0)
    named = {0.5: bhattacharyya, 1.0: expected_likelihood}
    if rho in named:
        assert torch.equal(named[rho](NU_Z, NU_P), product_kernel(NU_Z, NU_P, rho=rho))


def test_divergence_by_quadrature_and_against_the_registered_one() -> None:
    points, weights = sphere_grid()
    log_z, log_p = log_densities(NU_Z, points), log_densities(NU_P, points)
    expected = (log_z.exp()[:, None] * (log_z[:, None] - log_p)).matmul(weights)
    torch.testing.assert_close(kl(NU_Z, NU_P), expected, atol=1e-6, rtol=0)


def test_divergence_in_high_dimension_equals_the_distributions() -> None:
    z, p = unit(512, 1, 4) * 300, unit(512, 2, 3) * 40
    left = VonMisesFisher(z[:, None] / 300, torch.full((4, 3), 300.0, dtype=DOUBLE))
    right = VonMisesFisher(p / 40, torch.full((3,), 40.0, dtype=DOUBLE))
    torch.testing.assert_close(kl(z, p), kl_divergence(left, right))


@pytest.mark.parametrize("dim", [2, 16, 512])
def test_inequalities(dim: int) -> None:
    z, p = unit(dim, 1, 6) * 30, unit(dim, 2, 5) * torch.logspace(-2, 3, 5, dtype=DOUBLE)[:, None]
    assert (bhattacharyya(z, p) < 0).all()
    assert (kl(z, p) > 0).all()
    torch.testing.assert_close(bhattacharyya(z, z).diagonal(), torch.zeros(6, dtype=DOUBLE), atol=1e-9, rtol=0)
    torch.testing.assert_close(kl(z, z).diagonal(), torch.zeros(6, dtype=DOUBLE), atol=1e-9, rtol=0)
    torch.testing.assert_close(expected_likelihood(z, p), expected_likelihood(p, z).T)


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl])
def test_gradients(kernel: object) -> None:
    nu_z, nu_p = NU_Z[1:].clone().requires_grad_(), NU_P[1:].clone().requires_grad_()
    assert torch.autograd.gradcheck(kernel, (nu_z, nu_p))
    assert torch.autograd.gradgradcheck(kernel, (nu_z, nu_p), atol=1e-4)


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl])
def test_zero_and_opposite_parameters_have_finite_gradients(kernel: object) -> None:
    nu = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], requires_grad=True)
    other = (-nu).detach().requires_grad_()
    value = kernel(nu, other)  # type: ignore[operator]
    assert torch.isfinite(value).all()
    for gradient in torch.autograd.grad(value.sum(), (nu, other)):
        assert torch.isfinite(gradient).all()


def test_shapes_and_orders_are_checked() -> None:
    with pytest.raises(ValueError, match=r"must be \(B, M\) and \(C, M\)"):
        kl(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(ValueError, match="rho is 0"):
        product_kernel(NU_Z, NU_P, rho=0)


@pytest.mark.parametrize("kappa", [1e3, 1e5])
def test_the_divergence_of_near_distributions_is_not_negative_in_float32(kappa):
    """By rounding it was -.0065 for a true value of 1.3e-4."""
    for seed in range(20):
        rows = torch.randn(1, 512, generator=torch.Generator().manual_seed(seed))
        nu = kappa * torch.nn.functional.normalize(rows)
        assert float(kl(nu, 1.001 * nu)) >= 0


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kernels_of_any_precision_and_under_autocast_compute_in_float32(kernel, dtype):
    directions = torch.nn.functional.normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    nu = (300 * directions).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = kernel(nu, nu[:2].double())
    torch.testing.assert_close(value, kernel(nu.double(), nu[:2].double()), rtol=1e-4, atol=1e-2, check_dtype=False)
