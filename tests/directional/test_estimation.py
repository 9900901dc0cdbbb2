from __future__ import annotations

import pytest
import torch
from sphere_reference import unit

from probmetric.directional import VonMisesFisher, concentration_from_resultant, fit, fuse, mean_resultant_length


@pytest.mark.parametrize("dim", [2, 3, 8, 64, 512, 4096])
def test_inverts_the_mean_resultant_length(dim: int) -> None:
    kappas = torch.cat([torch.zeros(1), torch.logspace(-3, 5, 60)]).double()
    recovered = concentration_from_resultant(mean_resultant_length(kappas, dim), dim)
    torch.testing.assert_close(recovered, kappas, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 3, 128])
def test_derivative_is_that_of_the_inverse(dim: int) -> None:
    resultant = torch.tensor([0.02, 0.3, 0.8, 0.97], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: concentration_from_resultant(r, dim), resultant)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (3, 20.0), (64, 40.0), (128, 500.0)])
def test_fit_recovers_direction_and_concentration(dim: int, kappa: float) -> None:
    loc = unit(dim, 1, 2)
    source = VonMisesFisher(loc, torch.full((2,), kappa, dtype=torch.float64))
    samples = source.sample((20_000,), generator=torch.Generator().manual_seed(dim))
    mean, concentration = fit(samples.transpose(0, 1) * 3.0)
    assert ((mean * loc).sum(-1) > 0.999).all()
    torch.testing.assert_close(concentration, torch.full((2,), kappa, dtype=torch.float64), rtol=0.05, atol=0)


def test_identical_and_opposite_samples_stay_finite() -> None:
    same = torch.tensor([[0.6, 0.8, 0.0]]).expand(5, 3)
    mean, concentration = fit(same)
    torch.testing.assert_close(mean, same[0])
    assert torch.isfinite(concentration)
    assert concentration > 1e5
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert fit(opposite)[1].item() == 0.0


def test_fit_rejects_a_single_vector() -> None:
    with pytest.raises(ValueError, match=r"expected \(\.\.\., N, M\) with N >= 1"):
        fit(torch.ones(3))


def test_fused_density_is_the_normalised_product() -> None:
    loc = unit(5, 1, 3)
    kappa = torch.tensor([2.0, 7.0, 0.5], dtype=torch.float64)
    mean, concentration = fuse(3 * loc, kappa)
    points = unit(5, 2, 40)
    product = sum(VonMisesFisher(loc[i], kappa[i]).log_prob(points) for i in range(3))
    ratio = product - VonMisesFisher(mean, concentration).log_prob(points)
    torch.testing.assert_close(ratio, ratio[0].expand(40), rtol=0, atol=1e-10)


def test_fusing_one_changes_nothing_and_opposites_cancel() -> None:
    mean, concentration = fuse(torch.tensor([[0.6, 0.8]]), torch.tensor([4.0]))
    torch.testing.assert_close(mean, torch.tensor([0.6, 0.8]))
    assert concentration.item() == pytest.approx(4.0)
    mean, concentration = fuse(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([3.0, 3.0]))
    assert concentration.item() == 0.0
    assert mean.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"expected \(\.\.\., N, M\)"):
        fuse(torch.ones(2, 3), torch.ones(3))


def test_half_precision_is_estimated_in_float32() -> None:
    """A_M(7166.7) = .9995117 for M = 8, the last number of float16 below 1; a sum of 150,000 is none of float16."""
    resultant = torch.tensor(0.99951171875, dtype=torch.float16)
    assert concentration_from_resultant(resultant, 8).item() == pytest.approx(7166.7, rel=1e-3)
    direction = torch.tensor([0.6, 0.8], dtype=torch.float16)
    mean, concentration = fuse(direction.expand(5, 2), torch.full((5,), 30_000.0, dtype=torch.float16))
    assert concentration.item() == pytest.approx(150_000, rel=1e-6)
    torch.testing.assert_close(mean, torch.tensor([0.6, 0.8]), rtol=0, atol=1e-3)
    _, spread = fit(torch.tensor([[1.0, 0.0], [0.999, 0.0447]], dtype=torch.float16))
    assert spread.item() == pytest.approx(fit(torch.tensor([[1.0, 0.0], [0.999, 0.0447]]))[1].item(), rel=1e-2)
