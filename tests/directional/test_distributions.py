from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from sphere_reference import bessel_reference, cosine_grid, sphere_grid, unit
from torch.distributions import kl_divergence

from probmetric.directional import NonIsotropicVonMisesFisher, PowerSpherical, VonMisesFisher

DOUBLE = torch.float64
ROTATIONAL = pytest.mark.parametrize("family", [VonMisesFisher, PowerSpherical])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=DOUBLE)


def at_cosine(loc: torch.Tensor, cosine: torch.Tensor) -> torch.Tensor:
    """Unit vectors (K, M) at the given cosines (K,) from `loc` (M,)."""
    other = unit(len(loc), 99)
    across = torch.nn.functional.normalize(other - (other @ loc) * loc, dim=0)
    return cosine[:, None] * loc + (1 - cosine**2).sqrt()[:, None] * across


def circle_grid(count: int = 2000) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (K, 2) on the unit circle and weights (K,) that sum to 2 pi; exact for smooth functions."""
    angle = 2 * math.pi * torch.arange(count, dtype=DOUBLE) / count
    return torch.stack([angle.cos(), angle.sin()], -1), torch.full((count,), 2 * math.pi / count, dtype=DOUBLE)


@ROTATIONAL
@pytest.mark.parametrize("dim", [2, 3, 8, 64])
@pytest.mark.parametrize("kappa", [0.0, 0.8, 9.0, 60.0])
def test_density_entropy_and_mean_by_quadrature(family: type, dim: int, kappa: float) -> None:
    loc = unit(dim, 0)
    distribution = family(loc, scalar(kappa))
    cosine, weight = cosine_grid(dim)
    log_prob = distribution.log_prob(at_cosine(loc, cosine))
    mass = weight * log_prob.exp()
    assert mass.sum().item() == pytest.approx(1, abs=1e-8)
    assert -(mass * log_prob).sum().item() == pytest.approx(distribution.entropy().item(), abs=1e-7)
    torch.testing.assert_close((mass * cosine).sum() * loc, distribution.mean, atol=1e-8, rtol=0)


@ROTATIONAL
@pytest.mark.parametrize("dim", [2, 3, 8, 128, 512])
@pytest.mark.parametrize("kappa", [0.0, 2.0, 9.9, 11.0, 20.0, 32.0, 100.0, 128.0, 1e3, 1e5])
def test_sample_moments(family: type, dim: int, kappa: float) -> None:
    """First two moments along the mean direction; the published vMF sampler fails for 10 < kappa < M / 4."""
    count = 4000
    loc = unit(dim, 5)
    distribution = family(loc, scalar(kappa))
    samples = distribution.sample((count,), generator=generator(dim))
    torch.testing.assert_close(torch.linalg.vector_norm(samples, dim=-1), torch.ones(count, dtype=DOUBLE))
    cosine = samples @ loc
    gap = ((samples - loc) ** 2).sum(-1) / 2
    mean = distribution.mean @ loc
    if family is VonMisesFisher:
        second = 1 - (dim - 1) / kappa * mean if kappa else scalar(1 / dim)
    else:
        alpha, beta = (dim - 1) / 2 + kappa, (dim - 1) / 2
        second = 4 * alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1)) + mean**2
    for value, exact in ((gap, 1 - mean), (cosine**2, second)):
        assert abs(value.mean() - exact) < 4.5 * value.std() / count**0.5 + 1e-15


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 16, 128])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 2.0, 30.0, 400.0])
def test_samples_follow_the_distribution_function(dim: int, kappa: float) -> None:
    """Kolmogorov and Smirnov's largest difference from a distribution function summed up over angles."""
    count = 20_000
    loc = unit(dim, 3)
    samples = VonMisesFisher(loc, scalar(kappa)).sample((count,), generator=generator(17))
    angle = torch.linspace(0, math.pi, 40_001, dtype=DOUBLE)
    density = kappa * angle.cos() + (dim - 2) * angle.sin().clamp_min(1e-300).log()
    below = torch.cumulative_trapezoid((density - density.max()).exp(), angle)
    drawn = 2 * torch.asin(((samples - loc).norm(dim=-1) / 2).clamp(max=1)).sort().values
    exact = np.interp(drawn.numpy(), angle[1:].numpy(), (below / below[-1]).numpy())
    steps = np.arange(count + 1) / count
    assert max((exact - steps[:-1]).max(), (steps[1:] - exact).max()) < 1.63 / count**0.5  # exceeded once in 100


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kappa", [1e-6, 0.2, 1.0, 1.7, 5.0, 1e3, 1e6])
def test_samples_on_the_circle_follow_the_distribution_function(kappa: float, dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov's difference in the signed angle, by sums over angles, and the resultant by Bessel's."""
    count = 40_000
    loc = unit(2, 3).to(dtype)
    samples = VonMisesFisher(loc, torch.tensor(kappa, dtype=dtype)).sample((count,), generator=generator(8))
    wide, place = loc.double(), samples.double()
    drawn = torch.atan2(wide[0] * place[:, 1] - wide[1] * place[:, 0], place @ wide).sort().values
    reach = min(math.pi, 12 / kappa**0.5)
    angle = torch.linspace(-reach, reach, 40_001, dtype=DOUBLE)
    below = torch.cumulative_trapezoid((-2 * kappa * (angle / 2).sin() ** 2).exp(), angle)
    exact = np.interp(drawn.numpy(), angle[1:].numpy(), (below / below[-1]).numpy())
    steps = np.arange(count + 1) / count
    assert max((exact - steps[:-1]).max(), (steps[1:] - exact).max()) < 1.63 / count**0.5  # exceeded once in 100
    gap = 2 * (drawn / 2).sin() ** 2
    assert abs(gap.mean() - (1 - float(bessel_reference(2, kappa)[1]))) < 4 * gap.std() / count**0.5


@ROTATIONAL
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wide", [True, False])
def test_half_precision_on_the_circle(family: type, dtype: torch.dtype, wide: bool) -> None:
    loc = torch.tensor([0.6, -0.8], dtype=dtype)
    distribution = family(loc, torch.tensor(5.0, dtype=torch.float32 if wide else dtype), validate_args=False)
    samples = distribution.sample((2000,), generator=generator())
    assert samples.dtype == dtype
    exact = family(torch.tensor([0.6, -0.8]), torch.tensor(5.0)).mean
    torch.testing.assert_close(samples.float().mean(0), exact, atol=0.05, rtol=0)


@ROTATIONAL
def test_samples_are_uniform_around_the_mean_direction(family: type) -> None:
    loc = unit(5, 2)
    samples = family(loc, scalar(7.0)).sample((40_000,), generator=generator())
    along = samples @ loc
    spread = (samples - along[:, None] * loc).T @ (samples - along[:, None] * loc) / len(samples)
    expected = (1 - along**2).mean() / 4 * (torch.eye(5, dtype=DOUBLE) - torch.outer(loc, loc))
    torch.testing.assert_close(spread, expected, atol=2e-3, rtol=0)


@ROTATIONAL
@pytest.mark.parametrize("dim", [2, 3, 31, 32, 512])
@pytest.mark.parametrize("kappa", [0.0, 20.0, 1e4])
def test_single_precision_samples(family: type, dim: int, kappa: float) -> None:
    loc = unit(dim, 1).float()
    distribution = family(loc, torch.tensor(kappa))
    samples = distribution.sample((4000,), generator=generator(dim)).double()
    torch.testing.assert_close(
        torch.linalg.vector_norm(samples, dim=-1), torch.ones(4000, dtype=DOUBLE), atol=2e-6, rtol=0
    )
    gap = ((samples - loc.double()) ** 2).sum(-1) / 2
    exact = 1 - family(loc.double(), scalar(kappa), validate_args=False).mean @ loc.double()
    assert abs(gap.mean() - exact) < 4.5 * gap.std() / 4000**0.5


def _marginal_derivative(family: type, dim: int, kappa: float, cosine: float) -> mpmath.mpf:
    """dw/dkappa = -(dF/dkappa) / p(w) of the marginal of w = mu^T x, by 20-digit quadrature."""
    with mpmath.workdps(20):
        k, theta = mpmath.mpf(kappa), mpmath.acos(mpmath.mpf(cosine))

        def statistic(angle: mpmath.mpf) -> mpmath.mpf:
            if family is VonMisesFisher:
                return mpmath.cos(angle)
            return 2 * mpmath.log(max(abs(mpmath.cos(angle / 2)), mpmath.mpf("1e-40")))

        def density(angle: mpmath.mpf) -> mpmath.mpf:
            tilt = k * (statistic(angle) - statistic(theta))
            return mpmath.exp(tilt) * (mpmath.sin(angle) / mpmath.sin(theta)) ** (dim - 2)

        parts = [0, theta / 2, theta, (theta + mpmath.pi) / 2, mpmath.pi]
        mean = mpmath.quad(lambda a: statistic(a) * density(a), parts) / mpmath.quad(density, parts)
        below = mpmath.quad(lambda a: (statistic(a) - mean) * density(a), parts[2:])
        return -below * mpmath.sin(theta)


@ROTATIONAL
@pytest.mark.parametrize(
    ("dim", "kappa", "cosine"),
    [(2, 0.5, 0.3), (2, 8.0, 0.95), (3, 4.0, -0.5), (3, 4.0, 0.9), (8, 20.0, 0.8), (64, 30.0, 0.3), (64, 30.0, 0.6)],
)
def test_implicit_derivative_against_quadrature(family: type, dim: int, kappa: float, cosine: float) -> None:
    from probmetric.directional import power_spherical, von_mises_fisher
    from probmetric.directional._rotational import gap_derivative

    module = von_mises_fisher if family is VonMisesFisher else power_spherical
    result = -gap_derivative(scalar(1 - cosine), scalar(kappa), dim, module._marginal(scalar(kappa), dim))
    assert result.item() == pytest.approx(float(_marginal_derivative(family, dim, kappa, cosine)), rel=1e-5)


@ROTATIONAL
@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.7), (2, 12.0), (2, 150.0), (3, 0.7), (3, 12.0), (3, 150.0)])
def test_reparameterised_gradient_of_an_expectation(family: type, dim: int, kappa: float) -> None:
    """E[f(x)] with a curved f: pathwise gradients against finite differences of the quadrature."""
    points, weights = sphere_grid() if dim == 3 else circle_grid()
    first, second = unit(dim, 3), unit(dim, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (2 * x @ first).exp() * (1 + (x @ second) ** 2)

    def expectation(parameters: torch.Tensor) -> torch.Tensor:
        loc = torch.nn.functional.normalize(parameters[:dim], dim=0)
        distribution = family(loc, parameters[dim].exp(), validate_args=False)
        return (weights * distribution.log_prob(points).exp() * f(points)).sum()

    parameters = torch.cat([unit(dim, 6), scalar(kappa).log()[None]])
    step = 1e-5 * torch.eye(dim + 1, dtype=DOUBLE)
    exact = torch.stack([(expectation(parameters + d) - expectation(parameters - d)) / 2e-5 for d in step])
    estimates = []
    for batch in range(40):
        free = parameters.clone().requires_grad_()
        loc = torch.nn.functional.normalize(free[:dim], dim=0)
        samples = family(loc, free[dim].exp()).rsample((2000,), generator=generator(batch))
        estimates.append(torch.autograd.grad(f(samples).mean(), free)[0])
    result = torch.stack(estimates)
    error = result.std(0) / len(estimates) ** 0.5
    assert ((result.mean(0) - exact).abs() < 4.5 * error + 1e-6).all()


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_kl_divergence_by_quadrature(dim: int) -> None:
    loc = unit(dim, 0)
    cosine, weight = cosine_grid(dim)
    points = at_cosine(loc, cosine)
    for p in (VonMisesFisher(loc, scalar(4.0)), PowerSpherical(loc, scalar(4.0))):
        q = VonMisesFisher(loc, scalar(2.5))
        log_p = p.log_prob(points)
        expected = (weight * log_p.exp() * (log_p - q.log_prob(points))).sum()
        torch.testing.assert_close(kl_divergence(p, q), expected, atol=1e-8, rtol=0)


def test_kl_divergence_between_different_directions() -> None:
    """The example of paper 000's appendix: the published expression, without A_M, gives 1.464."""
    loc = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]], dtype=DOUBLE)
    p, q = VonMisesFisher(loc[0], scalar(4.0)), VonMisesFisher(loc[1], scalar(2.5))
    points, weights = sphere_grid()
    log_p = p.log_prob(points)
    expected = (weights * log_p.exp() * (log_p - q.log_prob(points))).sum()
    torch.testing.assert_close(kl_divergence(p, q), expected, atol=1e-10, rtol=0)
    assert kl_divergence(p, q).item() == pytest.approx(0.840, abs=5e-4)


def test_single_precision_is_exact_for_a_narrow_power_spherical() -> None:
    """It is nearly normal, for M = 3 with the variance 2 / kappa in two directions, of which a vMF has half."""
    kappa, loc = torch.tensor(1e6, requires_grad=True), torch.tensor([0.0, 0.0, 1.0])
    p, q = PowerSpherical(loc, kappa), VonMisesFisher(loc, torch.tensor(1e6))
    values = kl_divergence(p, q), p.entropy(), p.log_prob(loc)
    expected = 1 - math.log(2), 1 + math.log(4 * math.pi / 1e6), -math.log(4 * math.pi / 1e6)
    slopes = [torch.autograd.grad(value, kappa)[0].item() for value in values]
    assert [value.item() for value in values] == pytest.approx(expected, abs=1e-5)
    assert slopes == pytest.approx([-1e-6, -1e-6, 1e-6], rel=1e-4)


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_exact_nonisotropic_density_integrates_to_one(dim: int) -> None:
    loc = unit(dim, 1)
    kappas = torch.linspace(0.8, 2.5, dim, dtype=DOUBLE)
    distribution = NonIsotropicVonMisesFisher(loc, kappas)
    if dim == 2:
        points, weights = circle_grid()
    elif dim == 3:
        points, weights = sphere_grid(160, 200)
    else:
        points = unit(dim, 2, 400_000)
        weights = torch.full((400_000,), math.pi**4 / 3 / 400_000, dtype=DOUBLE)  # area of S^7
    mass = distribution.log_prob(points).exp() * weights
    tolerance = 1e-10 if dim < 8 else 5 * mass.std().item() * len(mass) ** 0.5
    assert tolerance < 0.05
    assert mass.sum().item() == pytest.approx(1, abs=tolerance)


def test_published_determinant_does_not_integrate_to_one() -> None:
    points, weights = sphere_grid()
    loc = unit(3, 1)
    for factor, expected in (("exact", 1.0), ("paper", 25.0)):
        distribution = NonIsotropicVonMisesFisher(loc, torch.full((3,), 5.0, dtype=DOUBLE), factor)
        assert (distribution.log_prob(points).exp() * weights).sum().item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_equal_concentrations_reduce_to_the_von_mises_fisher(dim: int) -> None:
    loc, points = unit(dim, 1, 4), unit(dim, 2, 4)
    isotropic = NonIsotropicVonMisesFisher(loc, torch.full((dim,), 7.5, dtype=DOUBLE))
    torch.testing.assert_close(isotropic.log_prob(points), VonMisesFisher(loc, scalar(7.5)).log_prob(points))
    unscaled = NonIsotropicVonMisesFisher(loc, torch.full((dim,), 7.5, dtype=DOUBLE), "none")
    torch.testing.assert_close(unscaled.log_prob(points), isotropic.log_prob(points))


def test_nonisotropic_samples_follow_the_exact_density() -> None:
    points, weights = sphere_grid(160, 200)
    kappas = torch.tensor([1.5, 3.0, 9.0], dtype=DOUBLE, requires_grad=True)
    distribution = NonIsotropicVonMisesFisher(unit(3, 1), kappas)
    assert distribution.has_rsample
    samples = distribution.rsample((40_000,), generator=generator())
    density = distribution.log_prob(points).exp() * weights
    for power in (1, 2):
        exact, drawn = density @ points**power, samples**power
        assert ((drawn.mean(0) - exact).abs() < 4.5 * drawn.std(0) / 200).all()
    (exact_slope,) = torch.autograd.grad((density @ points**2)[2], kappas, retain_graph=True)
    (slope,) = torch.autograd.grad((samples[:, 2] ** 2).mean(), kappas)
    torch.testing.assert_close(slope, exact_slope, atol=2e-3, rtol=0.05)


def test_heuristic_normalizers_cannot_be_sampled() -> None:
    distribution = NonIsotropicVonMisesFisher(unit(3, 1), torch.ones(3, dtype=DOUBLE), "paper")
    assert not distribution.has_rsample
    with pytest.raises(NotImplementedError, match="use 'exact'"):
        distribution.rsample()


@ROTATIONAL
def test_same_generator_same_samples_whatever_the_global_state(family: type) -> None:
    distribution = family(unit(16, 1, 3), torch.tensor([0.0, 5.0, 900.0], dtype=DOUBLE))
    first = distribution.sample((4, 2), generator=generator(3))
    torch.manual_seed(77)
    second = distribution.sample((4, 2), generator=generator(3))
    assert torch.equal(first, second)
    assert first.shape == (4, 2, 3, 16)
    assert not torch.equal(first, distribution.sample((4, 2), generator=generator(4)))


@ROTATIONAL
def test_samples_carry_gradients_only_when_asked(family: type) -> None:
    kappa = torch.tensor([2.0, 40.0], requires_grad=True)
    distribution = family(unit(40, 1, 2).float(), kappa)
    assert not distribution.sample(generator=generator()).requires_grad
    samples = distribution.rsample((5,), generator=generator())
    assert samples.dtype == torch.float32
    (gradient,) = torch.autograd.grad((samples * distribution.loc).sum(), kappa)
    assert (gradient > 0).all()


def test_expand_and_broadcast() -> None:
    distribution = VonMisesFisher(unit(4, 1), torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE))
    assert distribution.batch_shape == (3,)
    assert distribution.expand((5, 3)).mean.shape == (5, 3, 4)
    wide = NonIsotropicVonMisesFisher(unit(4, 1), torch.ones(6, 4, dtype=DOUBLE)).expand((2, 6))
    assert wide.log_prob(unit(4, 2)).shape == (2, 6)


@ROTATIONAL
def test_every_member_of_a_broadcast_batch_is_drawn_from_its_own_distribution(family: type) -> None:
    loc, kappas = unit(24, 3, 2, 1), torch.tensor([0.0, 6.0, 300.0], dtype=DOUBLE)
    distribution = family(loc, kappas)
    cosine = (distribution.sample((3000,), generator=generator()) * loc).sum(-1)
    exact = (distribution.mean * loc).sum(-1)
    assert cosine.shape == (3000, 2, 3)
    assert ((cosine.mean(0) - exact).abs() < 4.5 * cosine.std(0) / 3000**0.5).all()


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="loc"):
        VonMisesFisher(torch.tensor([1.0, 1.0]), torch.tensor(1.0))
    with pytest.raises(ValueError, match="concentration"):
        PowerSpherical(torch.tensor([1.0, 0.0]), torch.tensor(-1.0))
    with pytest.raises(ValueError, match="value"):
        VonMisesFisher(torch.tensor([1.0, 0.0]), torch.tensor(1.0)).log_prob(torch.tensor([1.0, 1.0]))
    with pytest.raises(ValueError, match="M >= 2"):
        VonMisesFisher(torch.ones(1), torch.ones(()))
    with pytest.raises(ValueError, match="allowed: 'exact', 'paper', 'none'"):
        NonIsotropicVonMisesFisher(unit(3, 0), torch.ones(3), "det")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not both"):
        NonIsotropicVonMisesFisher(unit(3, 0))


def test_mean_length_is_the_bessel_ratio() -> None:
    mean = VonMisesFisher(unit(128, 0), scalar(20.0)).mean
    assert torch.linalg.vector_norm(mean).item() == pytest.approx(float(bessel_reference(128, 20.0)[1]), rel=1e-12)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e20, 3e38, 0.0, 1e-40, -1.0])
def test_sampling_ends_whatever_the_concentration(value: float, dim: int, dtype: torch.dtype) -> None:
    """A sample is a unit vector or NaN; at huge concentrations it lies on the mean direction."""
    loc = unit(dim, 1).to(dtype)
    kappa = torch.full((50,), value, dtype=dtype, requires_grad=True)
    for family in (VonMisesFisher, PowerSpherical):
        with torch.no_grad():
            samples = family(loc, kappa, validate_args=False).rsample((4,), generator=generator())
        if value >= 1e20 and family is VonMisesFisher:
            torch.testing.assert_close(samples, loc.expand_as(samples))
        elif 0 <= value < 1:
            torch.testing.assert_close(samples.norm(dim=-1), torch.ones(4, 50, dtype=dtype))
    VonMisesFisher(loc, kappa, validate_args=False).rsample((4,), generator=generator()).sum().backward()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e20, 1e30, 0.0, 1e-40])
def test_sampling_ends_whatever_the_parameters(value: float) -> None:
    from probmetric.losses._released_vmf import released_samples

    for dim in (2, 3, 8):
        loc, odd = unit(dim, 0).float(), torch.full((dim,), value)
        for place, concentration in ((odd, 20.0), (loc, value)):
            logs = torch.full((dim,), concentration).log()
            NonIsotropicVonMisesFisher(place, log_concentration=logs, validate_args=False).rsample((50,))
            VonMisesFisher(place, torch.tensor(concentration), validate_args=False).rsample((50,))
            released_samples(place.expand(9, dim), torch.full((9,), concentration), 50, generator())


def test_one_bad_concentration_spoils_no_other_sample() -> None:
    loc, kappa = unit(8, 1).expand(3, 8), torch.tensor([math.nan, 20.0, math.inf], dtype=DOUBLE)
    samples = VonMisesFisher(loc, kappa, validate_args=False).rsample((4000,), generator=generator())
    assert samples[:, 0].isnan().all()
    torch.testing.assert_close(samples[:, 2], loc[2].expand(4000, 8))
    exact = VonMisesFisher(loc[1], kappa[1]).mean @ loc[1]
    assert (samples[:, 1] @ loc[1]).mean() == pytest.approx(exact.item(), abs=0.01)


@ROTATIONAL
@pytest.mark.parametrize("dim", [2, 3, 31, 32, 64])
def test_noise_along_the_mean_direction_stays_bounded(family: type, dim: int) -> None:
    """The generator that made the mean direction draws the samples: the first noise is parallel to it."""
    loc = unit(dim, 0)
    samples = family(loc, scalar(20.0)).sample((9,), generator=generator(0))
    assert (samples.norm(dim=-1) < 1 + 1e-9).all()
    torch.testing.assert_close(samples[1:].norm(dim=-1), torch.ones(8, dtype=DOUBLE))


def test_a_sampler_that_accepts_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from probmetric.directional import von_mises_fisher

    monkeypatch.setattr(von_mises_fisher, "_rejected", lambda cost, _: torch.ones_like(cost, dtype=torch.bool))
    distribution = VonMisesFisher(unit(4, 0), torch.tensor([2.0, 7.0], dtype=DOUBLE))
    with pytest.raises(RuntimeError, match=r"no sample was accepted in 1000 rounds for concentrations from 2 to 7"):
        distribution.sample((3,))


@pytest.mark.parametrize("family", [VonMisesFisher, PowerSpherical])
def test_densities_of_half_precision_are_computed_in_float32(family: type) -> None:
    loc = torch.nn.functional.normalize(torch.tensor([[0.3, -0.5, 0.8, 0.1]]), dim=1).half()
    value = torch.nn.functional.normalize(torch.tensor([[0.1, -0.4, 0.9, 0.1]]), dim=1).half()
    single = family(loc.float(), torch.tensor([500.0]), validate_args=False).log_prob(value.float())
    torch.testing.assert_close(family(loc, torch.tensor([500.0]).half()).log_prob(value), single)


def test_the_non_isotropic_density_of_half_precision_is_computed_in_float32() -> None:
    loc, value = torch.tensor([[0.6, 0.8, 0.0]]).half(), torch.tensor([[0.48, 0.64, 0.6]]).half()
    logs = torch.tensor([[5.3, 4.9, 4.1]]).half()
    single = NonIsotropicVonMisesFisher(loc.float(), log_concentration=logs.float(), validate_args=False)
    half = NonIsotropicVonMisesFisher(loc, log_concentration=logs)
    torch.testing.assert_close(half.log_prob(value), single.log_prob(value.float()))


@pytest.mark.parametrize("concentration", [0.0, -1.0, float("nan")])
def test_the_non_isotropic_density_wants_concentrations_above_zero(concentration: float) -> None:
    with pytest.raises(ValueError, match="log_concentration"):
        NonIsotropicVonMisesFisher(torch.tensor([0.6, 0.8]), torch.tensor([1.0, concentration]))
    with pytest.raises(TypeError, match="concentration is float"):
        NonIsotropicVonMisesFisher(torch.tensor([0.6, 0.8]), concentration)
    with pytest.raises(TypeError, match="log_concentration is float"):
        NonIsotropicVonMisesFisher(torch.tensor([0.6, 0.8]), log_concentration=concentration)
