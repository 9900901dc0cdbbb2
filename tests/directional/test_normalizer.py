from __future__ import annotations

import mpmath
import pytest
import torch
from sphere_reference import KAPPAS, bessel_reference

from probmetric.directional import log_normalizer, mean_resultant_length
from probmetric.directional.normalizer import log_normalizer_of_square, scaled_ratio_of_square

DIMS = (2, 3, 4, 5, 7, 8, 16, 23, 24, 33, 64, 128, 512, 2048, 4096)
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
EVERY_DIM = pytest.mark.parametrize("dim", DIMS)


def _kappas(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(KAPPAS, dtype=dtype)


def _reference(kappas: torch.Tensor, dim: int, which: int) -> list[mpmath.mpf]:
    return [bessel_reference(dim, k)[which] for k in kappas.tolist()]


def _relative_error(value: torch.Tensor, reference: list[mpmath.mpf]) -> float:
    pairs = zip(value.detach().tolist(), reference, strict=True)
    return max(float(abs(v - r) / (abs(r) if r else 1)) for v, r in pairs)


@BOTH
@EVERY_DIM
def test_mean_resultant_length_against_mpmath(dim: int, dtype: torch.dtype) -> None:
    kappas = _kappas(dtype)
    bound = 1e-12 if dtype == torch.float64 else 1e-6
    assert _relative_error(mean_resultant_length(kappas, dim), _reference(kappas, dim, 1)) <= bound


@BOTH
@EVERY_DIM
def test_log_normalizer_against_mpmath(dim: int, dtype: torch.dtype) -> None:
    kappas = _kappas(dtype)
    reference = _reference(kappas, dim, 0)
    values = log_normalizer(kappas, dim).tolist()
    floor = 1e-9 if dtype == torch.float64 else 1e-4
    eps = torch.finfo(dtype).eps
    for value, exact in zip(values, reference, strict=True):
        assert abs(value - exact) <= max(floor, 4 * eps * abs(exact))
    decay = log_normalizer_of_square(kappas**2, dim, constant=False).tolist()
    for value, exact in zip(decay, reference, strict=True):
        assert abs(value - (exact - reference[0])) <= max(floor, 4 * eps * abs(exact - reference[0]))


@BOTH
@EVERY_DIM
def test_derivatives_against_mpmath(dim: int, dtype: torch.dtype) -> None:
    kappas = _kappas(dtype).requires_grad_()
    (first,) = torch.autograd.grad(log_normalizer(kappas, dim).sum(), kappas, create_graph=True)
    assert torch.equal(first, -mean_resultant_length(kappas, dim))
    (second,) = torch.autograd.grad(first.sum(), kappas)
    bound = 1e-9 if dtype == torch.float64 else 5e-6
    assert _relative_error(-second, _reference(kappas, dim, 2)) <= bound


@EVERY_DIM
def test_functions_of_the_square(dim: int) -> None:
    kappas = _kappas(torch.float64)
    square = (kappas**2).requires_grad_()
    (slope,) = torch.autograd.grad(log_normalizer_of_square(square, dim).sum(), square, create_graph=True)
    torch.testing.assert_close(slope, -0.5 * scaled_ratio_of_square(square, dim))
    torch.testing.assert_close(slope[1:], (-mean_resultant_length(kappas, dim) / (2 * kappas))[1:])
    assert slope[0].item() == pytest.approx(-1 / (2 * dim), rel=1e-12)
    assert torch.isfinite(torch.autograd.grad(slope.sum(), square)[0]).all()


@pytest.mark.parametrize("dim", [2, 3, 17, 128])
def test_higher_derivatives_are_consistent(dim: int) -> None:
    kappas = torch.tensor([0.0, 0.3, 4.0, 60.0], dtype=torch.float64, requires_grad=True)
    for function in (log_normalizer, mean_resultant_length, log_normalizer_of_square, scaled_ratio_of_square):
        assert torch.autograd.gradcheck(lambda k, f=function: f(k + 0.5, dim), kappas)
        assert torch.autograd.gradgradcheck(lambda k, f=function: f(k + 0.5, dim), kappas)


@EVERY_DIM
def test_shape_of_the_functions(dim: int) -> None:
    kappas = torch.logspace(-4, 6, 400, dtype=torch.float64)
    ratio = mean_resultant_length(kappas, dim)
    assert (ratio.diff() > 0).all()
    assert (ratio < 1).all()
    assert (mean_resultant_length(kappas, dim) > mean_resultant_length(kappas, dim + 1)).all()
    recurrence = 1 / (dim / kappas + mean_resultant_length(kappas, dim + 2))
    torch.testing.assert_close(ratio, recurrence, rtol=1e-12, atol=0)


def test_large_tensors_are_computed_in_pieces_with_the_same_result() -> None:
    kappas = torch.rand(900_001, generator=torch.Generator().manual_seed(0)) * 500
    for function in (log_normalizer, mean_resultant_length):
        torch.testing.assert_close(function(kappas, 64)[-1000:], function(kappas[-1000:], 64), rtol=1e-6, atol=1e-6)
    transposed = kappas[:900_000].view(1000, 900).T
    torch.testing.assert_close(
        mean_resultant_length(transposed, 64), mean_resultant_length(transposed.contiguous(), 64), rtol=1e-6, atol=0
    )


def test_half_precision_and_autocast_compute_in_float32() -> None:
    kappas = torch.tensor([0.5, 40.0, 700.0])
    for half in (torch.bfloat16, torch.float16):
        value = mean_resultant_length(kappas.to(half), 512)
        assert value.dtype == torch.float32
        assert torch.equal(value, mean_resultant_length(kappas.to(half).float(), 512))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(log_normalizer(kappas, 512), log_normalizer(kappas.clone(), 512))
        assert log_normalizer(kappas, 512).dtype == torch.float32


@pytest.mark.slow
def test_compiles_in_one_graph() -> None:
    def step(kappa: torch.Tensor) -> torch.Tensor:
        return (log_normalizer(kappa, 16) + mean_resultant_length(kappa, 16)).sum()

    eager, traced = (torch.linspace(0, 50, 31, dtype=torch.float64, requires_grad=True) for _ in range(2))
    value = torch.compile(step, backend="aot_eager", fullgraph=True)(traced)
    torch.testing.assert_close(value, step(eager))
    value.backward()
    step(eager).backward()
    torch.testing.assert_close(traced.grad, eager.grad)


@pytest.mark.parametrize("dim", [1, 0, 2.0, True])
def test_dimension_must_be_an_integer_of_at_least_two(dim: object) -> None:
    with pytest.raises(ValueError, match=r"integer >= 2"):
        log_normalizer(torch.ones(1), dim)  # type: ignore[arg-type]


def test_concentration_must_be_floating_point() -> None:
    with pytest.raises(TypeError, match=r"torch.int64; it must be a floating-point tensor"):
        mean_resultant_length(torch.ones(1, dtype=torch.long), 3)
