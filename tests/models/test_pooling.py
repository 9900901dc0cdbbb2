"""Pooling against float64 formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probmetric.models._heads import GeM, create_pooling

MAPS = torch.from_numpy(np.random.default_rng(0).uniform(0.05, 2.0, (3, 5, 4, 6)))


def generalised_mean(maps: np.ndarray, p: float) -> np.ndarray:
    return (maps**p).mean(axis=(2, 3)) ** (1.0 / p)


@pytest.mark.parametrize("p", [1.0, 3.0, 6.5])
def test_gem_is_the_generalised_mean(p: float) -> None:
    found = GeM(p=p)(MAPS.float()).detach().double().numpy()
    np.testing.assert_allclose(found, generalised_mean(MAPS.numpy(), p), rtol=1e-5)
    exact = GeM(p=p).double()(MAPS).detach().numpy()
    np.testing.assert_allclose(exact, generalised_mean(MAPS.numpy(), p), rtol=1e-12)


def test_gem_lies_between_average_and_maximum_and_learns_its_exponent() -> None:
    maps = MAPS.float()
    gem = GeM()
    pooled = gem(maps)
    assert (pooled >= create_pooling("average")(maps)).all()
    assert (pooled <= create_pooling("max")(maps)).all()
    pooled.sum().backward()
    step = 1e-5
    above, below = (generalised_mean(MAPS.numpy(), 3.0 + sign * step).sum() for sign in (1, -1))
    assert gem.p.grad is not None
    assert float(gem.p.grad) == pytest.approx((above - below) / (2 * step), rel=1e-3)


def test_gem_of_zeros_and_of_half_precision_is_finite() -> None:
    gem = GeM()
    maps = torch.zeros(2, 3, 4, 4, requires_grad=True)
    gem(maps).sum().backward()
    assert maps.grad is not None
    assert torch.isfinite(maps.grad).all()
    assert torch.isfinite(gem(torch.full((1, 1, 2, 2), 500.0, dtype=torch.float16))).all()


def test_double_pooling_adds_average_and_maximum() -> None:
    expected = MAPS.numpy().mean(axis=(2, 3)) + MAPS.numpy().max(axis=(2, 3))
    np.testing.assert_allclose(create_pooling("average_max")(MAPS).numpy(), expected)


def test_flattening_is_stacked_as_it_is_alone():
    stacked = torch.stack([MAPS, 2 * MAPS]).requires_grad_()
    laid_out = stacked.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (2, 3))
    flat = torch.vmap(create_pooling("flatten"))(laid_out)
    assert torch.equal(flat, stacked.flatten(2))
    flat.square().sum().backward()
    assert torch.equal(stacked.grad, 2 * stacked)
