"""Tiles, dense tiles and pairwise evaluation are one sum; clamps have exactly zero force; memory stays bounded."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from probmetric.losses import create_loss, potential_field

C, M, B = 6, 4, 9


def points() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(B, M, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), torch.randint(0, C, (B,), generator=generator)


def value_and_gradients(name: str, **options: float) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    loss = create_loss(name, num_classes=C, dim=M, proxies_per_class=4, **options).double()
    z, y = points()
    value = loss(z, y)
    value.backward()
    return value.detach(), z.grad, loss.proxies.grad


@pytest.mark.parametrize("name", ["potential_field", "contrastive_potential"])
@pytest.mark.parametrize("tile", [1, 5, 33, 1000])
@pytest.mark.parametrize("dense_share", [0, 10**9])
def test_tiling_and_density_do_not_change_the_result(
    name: str, tile: int, dense_share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"delta_attraction": 0.6, "delta_repulsion": 1.3}
    expected = value_and_gradients(name, **wide)
    monkeypatch.setattr(potential_field, "TILE", tile)
    monkeypatch.setattr(potential_field, "DENSE_SHARE", dense_share)
    for measured, target in zip(value_and_gradients(name, **wide), expected, strict=True):
        torch.testing.assert_close(measured, target, rtol=1e-11, atol=1e-11)


def pair(angle: float, *, same: bool, **options: float) -> tuple[float, float]:
    """Energy per image and force along the circle of two points `angle` apart, without proxies."""
    loss = create_loss("potential_field", num_classes=2, dim=2, proxies_per_class=0, **options).double()
    theta = torch.tensor(angle, dtype=torch.float64, requires_grad=True)
    z = torch.stack([torch.stack([theta.cos(), theta.sin()]), torch.tensor([1.0, 0.0], dtype=torch.float64)])
    value = loss(z, torch.tensor([0, 0 if same else 1]))
    (slope,) = torch.autograd.grad(value, theta)
    return value.item(), slope.item()


def angle_at(distance: float) -> float:
    return 2 * math.asin(distance / 2)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0])
def test_forces_vanish_exactly_where_the_text_says(alpha: float) -> None:
    radii = {"alpha": alpha, "delta_attraction": 0.2, "delta_repulsion": 0.3, "min_distance": 0.1}
    assert pair(angle_at(0.15), same=True, **radii)[1] == 0.0
    assert pair(angle_at(0.25), same=True, **radii)[1] > 0.0
    assert pair(angle_at(0.35), same=False, **radii) == (0.0, 0.0)
    assert pair(angle_at(0.25), same=False, **radii)[1] < 0.0
    assert pair(angle_at(0.05), same=False, **radii)[1] == 0.0


def test_attraction_decays_with_distance_and_contact_has_energy_minus_one() -> None:
    near, far = (pair(angle_at(d), same=True)[1] for d in (0.25, 1.0))
    assert near > 100 * far > 0
    assert pair(angle_at(0.1), same=True)[0] == pytest.approx(-1.0)


def test_small_alpha_approaches_the_limit() -> None:
    """(d^-alpha - 1) / alpha tends to -log d, so the force over alpha tends to that of alpha = 0."""
    limit = pair(1.0, same=True, alpha=0.0)[1]
    assert pair(1.0, same=True, alpha=1e-6)[1] / 1e-6 == pytest.approx(limit, rel=1e-4)


def test_relative_energy_is_eq6_without_its_constants() -> None:
    torch.manual_seed(0)
    options = {"proxies_per_class": 3, "alpha": 2.0, "delta_attraction": 0.5, "delta_repulsion": 0.9}
    relative = create_loss("potential_field", num_classes=C, dim=M, **options).double()
    full = create_loss("potential_field", num_classes=C, dim=M, energy="eq6", **options).double()
    full.load_state_dict(relative.state_dict())
    z, y = points()
    gradients = [torch.autograd.grad(loss(z, y), z)[0] for loss in (relative, full)]
    torch.testing.assert_close(gradients[0] * B / 0.5**2, gradients[1])


MEASURE = """
import resource, torch
from probmetric.losses import create_loss
torch.set_num_threads(1)
loss = create_loss("potential_field", num_classes=11318, dim=16, proxies_per_class=2)
z = torch.randn(112, 16, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loss(z, torch.randint(0, 11318, (112,))).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_22636_proxies_fit_in_a_fraction_of_the_2_gigabytes_allowed() -> None:
    """All pairs at once would take 1.9 GiB for one float32 matrix; the vectors add 0.2 GB at 512 dimensions."""
    result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert float(result.stdout) < 500


def test_a_self_distance_below_the_repulsion_is_required() -> None:
    with pytest.raises(ValueError, match=r"'min_distance' is 0.3; allowed: a number above 0, below delta_repulsion"):
        create_loss("potential_field", num_classes=C, dim=M, min_distance=0.3)
