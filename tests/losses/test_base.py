"""The shared operations, and the registry of losses without PyTorch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from probmetric.losses import create_loss, list_losses
from probmetric.losses._base import (
    class_means,
    cosine_similarities,
    log_one_plus_exp,
    log_one_plus_sum_exp,
    safe_sqrt,
    unit,
    without_target,
)
from probmetric.registry import OptionValueError, UnknownNameError


def test_unit_of_zero_is_zero_without_gradient() -> None:
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    directions = unit(z)
    assert directions.tolist() == [[0.0, 0.0], pytest.approx([0.6, 0.8])]
    directions.sum().backward()
    assert z.grad[0].tolist() == [0.0, 0.0]
    torch.testing.assert_close(z.grad[1], torch.tensor([0.032, -0.024]))


def test_cosines_equal_normalised_products_and_their_gradient() -> None:
    z, w = (torch.randn(n, 6, dtype=torch.float64, requires_grad=True) for n in (4, 9))
    assert torch.autograd.gradcheck(cosine_similarities, (z, w))
    torch.testing.assert_close(cosine_similarities(z, w), torch.cosine_similarity(z[:, None], w[None], dim=2))


def test_safe_sqrt_has_no_infinite_slope() -> None:
    x = torch.tensor([0.0, 1e-9, 4.0], requires_grad=True)
    root = safe_sqrt(x)
    root.sum().backward()
    assert root.tolist() == [0.0, 0.0, 2.0]
    assert x.grad.tolist() == [0.0, 0.0, 0.25]


def test_log_one_plus_exp_is_exact_where_softplus_switches() -> None:
    x = torch.tensor([-800.0, -1.0, 0.0, 20.5, 800.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.3132616875182228, 0.6931471805599453, 20.500000001250152, 800.0]).double()
    torch.testing.assert_close(log_one_plus_exp(x), expected, rtol=1e-7, atol=0)
    assert log_one_plus_exp(x)[3].item() > 20.5


def test_empty_sums_of_exponentials_are_zero_without_gradient() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    value = log_one_plus_sum_exp(x, torch.zeros(3, 4, dtype=torch.bool), dim=1)
    value.sum().backward()
    assert value.tolist() == [0.0] * 3
    assert float(x.grad.abs().max()) == 0.0


def test_without_target_removes_only_the_own_class() -> None:
    x, y = torch.randn(3, 4), torch.tensor([0, 3, 1])
    left = without_target(x, y).exp()
    assert left.gather(1, y[:, None]).tolist() == [[0.0]] * 3
    assert int((left > 0).sum()) == 9


def test_class_means_skip_absent_classes() -> None:
    z, y = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 5.0]]), torch.tensor([1, 1, 2])
    means, present = class_means(z, y, 4)
    assert means.tolist() == [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert present.tolist() == [False, True, True, False]


def test_unknown_names_and_options_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'proxy_anchor'"):
        create_loss("proxy_ancor", num_classes=3, dim=4)
    with pytest.raises(UnknownNameError, match="did you mean 'margin'"):
        create_loss("proxy_anchor", num_classes=3, dim=4, margn=0.2)
    with pytest.raises(ValueError, match=r"'scale' is -1.0; allowed: a number above 0"):
        create_loss("proxy_anchor", num_classes=3, dim=4, scale=-1.0)


def test_names_and_options_are_read_without_importing_torch() -> None:
    code = (
        "import sys; from probmetric.losses import REGISTRY, list_losses;"
        "[REGISTRY.options(name) for name in list_losses()];"
        "assert len(list_losses()) > 10; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", list_losses())
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_integers_of_any_kind(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    loss, z, y = create_loss(name, num_classes=4, dim=6), torch.randn(8, 6), torch.arange(8) % 4
    values = [loss(z, labels, generator=torch.Generator().manual_seed(0)) for labels in (y, y.to(dtype))]
    assert torch.equal(values[0], values[1])
    with pytest.raises(ValueError, match=r"labels are torch.float32; allowed: integers"):
        loss(z, y.float())


def test_a_negative_as_far_as_the_positive_is_not_farther():
    """Of either anchor on the circle one negative is as far as the positive (2) and one farther (4), by the margin."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]])
    loss = create_loss("triplet", num_classes=3, dim=2, margin=0.2)
    assert loss(rows, torch.tensor([0, 0, 1, 2])).item() == 0.0


def test_negatives_are_drawn_by_the_density_of_distances_on_the_sphere():
    distance = torch.tensor([[0.6, 1.0, 1.3]], dtype=torch.float64)
    weights = create_loss("margin", num_classes=2, dim=8).weights(distance, torch.ones(1, 3, dtype=torch.bool))
    density = distance**6 * (1 - distance**2 / 4) ** 2.5
    torch.testing.assert_close(weights / weights.sum(), (1 / density) / (1 / density).sum())


@pytest.mark.parametrize("name", list_losses())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_half_precision_are_refused(name: str, dtype: torch.dtype) -> None:
    """Embeddings of any precision are read; a loss without parameters computes in float32 at least."""
    loss, rows, classes = create_loss(name, num_classes=4, dim=6).to(dtype), torch.randn(8, 6), torch.arange(8) % 4
    if not list(loss.parameters()):
        assert loss(rows.to(dtype), classes).dtype == torch.float32
        return
    with pytest.raises(TypeError, match=rf"are {dtype}; allowed: float32, float64.*call loss.float\(\)"):
        loss(rows.to(dtype), classes)
    assert torch.isfinite(loss.float()(rows.to(dtype), classes))


@pytest.mark.parametrize("sizes", [{"num_classes": 4.0}, {"num_classes": "4"}, {"dim": 8.0}, {"dim": None}])
def test_sizes_of_a_loss_are_integers(sizes: dict[str, object]) -> None:
    ((name, value),) = sizes.items()
    with pytest.raises(OptionValueError, match=rf"{name}={value!r}; allowed: at least 1, an integer"):
        create_loss("arcface", **{"num_classes": 4, "dim": 8} | sizes)
    assert create_loss("arcface", num_classes=np.int64(4), dim=np.int64(8)).dim == 8
