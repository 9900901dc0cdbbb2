"""Every loss ends, whatever it is given: a diverging run must reach the diagnosis of its loss, not hang."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probmetric.errors import ProbMetricError
from probmetric.losses import REGISTRY, create_loss, list_losses
from probmetric.losses._base import Loss

C, M = 5, 6
LABELS = torch.tensor([0, 2, 1, 2, 0, 3, 2, 1, 1])


def forms() -> list[tuple[str, dict[str, str]]]:
    """Every loss, in both fidelities where it has them."""
    either: list[dict[str, str]] = [{"fidelity": "corrected"}, {"fidelity": "as_published"}]
    return [(name, form) for name in list_losses() for form in (either if has_fidelity(name) else [{}])]


def has_fidelity(name: str) -> bool:
    return "fidelity" in REGISTRY.options(name)


def stepped(name: str, options: dict[str, str], value: float, *, everywhere: bool) -> tuple[float, Tensor]:
    """Loss of a batch with `value` in one place or in all, and the gradient of its embeddings."""
    torch.default_generator.manual_seed(0)
    loss = create_loss(name, num_classes=C, dim=M, **options)
    z = torch.randn(len(LABELS), M)
    z[(...,) if everywhere else (3, 2)] = value
    z.requires_grad_()
    result = loss(z, LABELS, generator=torch.Generator().manual_seed(1))
    result.backward()
    assert z.grad is not None
    return float(result.detach()), z.grad


@pytest.mark.timeout(60)
@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(("name", "options"), forms())
def test_an_embedding_that_is_not_finite_makes_the_loss_so(
    name: str, options: dict[str, str], everywhere: bool
) -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert not math.isfinite(stepped(name, options, value, everywhere=everywhere)[0])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(("name", "options"), forms())
def test_extreme_embeddings_end(name: str, options: dict[str, str], everywhere: bool) -> None:
    for value in (1e20, 1e30, -1e30):
        stepped(name, options, value, everywhere=everywhere)
    for value in (0.0, 1e-40, 1e-30):
        result, gradient = stepped(name, options, value, everywhere=everywhere)
        assert math.isfinite(result)
        assert torch.isfinite(gradient).all()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "options"), forms())
def test_class_probabilities_end(name: str, options: dict[str, str]) -> None:
    torch.default_generator.manual_seed(0)
    loss = create_loss(name, num_classes=C, dim=M, **options)
    for value in (math.nan, math.inf, 1e20, 1e30, 0.0, 1e-40):
        loss.probabilities(torch.full((3, M), value), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (None, "NoneType"),
        (1.5, "float"),
        (torch.zeros(9), r"torch.float32 \(9,\)"),
        (torch.tensor(3), r"torch.int64 \(\)"),
    ],
)
def test_a_loss_must_return_a_scalar_tensor(returned: object, named: str) -> None:
    class Odd(Loss):
        def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
            return returned  # type: ignore[return-value]

    with pytest.raises(
        ProbMetricError, match=f"'Odd' returned {named}.*; a loss must return a scalar tensor of floats"
    ):
        Odd(num_classes=C, dim=M)(torch.zeros(9, M), LABELS)
