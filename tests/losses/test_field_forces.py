"""Forces of the potential fields are the derivative of their energy, on every path that computes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probmetric.losses import create_loss, potential_field
from probmetric.losses.potential_field import _PairEnergy


class Field:
    """Two potentials, of squared distances."""

    delta_repulsion = 0.5**0.5

    def attraction(self, squared: Tensor) -> Tensor:
        return squared**1.5

    def repulsion(self, squared: Tensor) -> Tensor:
        return (0.5 - squared).clamp_min(0) ** 2


class Spring(Field):
    """A pull of the same strength everywhere."""

    def attraction(self, squared: Tensor) -> Tensor:
        return -squared / 4


def reference(points: Tensor, labels: Tensor) -> Tensor:
    """Energy of all ordered pairs of different points, from distances of the points themselves."""
    squared = (points[:, None] - points[None]).square().sum(-1)
    apart = ~torch.eye(len(points), dtype=torch.bool)
    same = (labels[:, None] == labels[None]) & apart
    return (squared[same] ** 1.5).sum() + ((0.5 - squared[~same & apart]).clamp_min(0) ** 2).sum()


@pytest.mark.parametrize("dense_share", [0, 10**9], ids=["pair by pair", "whole tiles"])
@pytest.mark.parametrize("tile", [4, 7, 1024])
def test_energy_and_force_are_those_of_the_definition(
    monkeypatch: pytest.MonkeyPatch, tile: int, dense_share: int
) -> None:
    """On the sphere: the forces agree once their part along the point, which its norm takes up, is removed."""
    monkeypatch.setattr(potential_field, "TILE", tile)
    monkeypatch.setattr(potential_field, "DENSE_SHARE", dense_share)
    draws = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 6
    points, expected = (draws.clone().requires_grad_() for _ in range(2))
    energy = _PairEnergy.apply(torch.nn.functional.normalize(points, dim=1), labels, Field())
    wanted = reference(torch.nn.functional.normalize(expected, dim=1), labels)
    torch.testing.assert_close(energy, wanted)
    (3 * energy).backward()
    (3 * wanted).backward()
    torch.testing.assert_close(points.grad, expected.grad)
    assert float(points.grad.abs().max()) > 0.1


@pytest.mark.parametrize("dense_share", [0, 10**9], ids=["pair by pair", "whole tiles"])
def test_pairs_of_force_one_count(monkeypatch: pytest.MonkeyPatch, dense_share: int) -> None:
    """Attraction -s / 4 has the factor 1 in every pair: E = sum (v_i . v_j - 1) / 2, dE / dv_i = sum over j of v_j."""
    monkeypatch.setattr(potential_field, "DENSE_SHARE", dense_share)
    draws = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    points = torch.nn.functional.normalize(draws, dim=1).requires_grad_()
    energy = _PairEnergy.apply(points, torch.zeros(6, dtype=torch.int64), Spring())
    energy.backward()
    torch.testing.assert_close(points.grad, points.detach().sum(0) - points.detach())
    torch.testing.assert_close(energy, ((points @ points.T).sum() - 6) / 2 - 15)


def test_owners_of_proxies_are_no_weights() -> None:
    loss = create_loss("potential_field", num_classes=3, dim=4)
    assert set(loss.state_dict()) == {name for name, _ in loss.named_parameters()}
