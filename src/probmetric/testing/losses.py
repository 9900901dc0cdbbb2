"""Contract of the losses."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor

from probmetric.losses import REGISTRY, Loss, create_loss
from probmetric.testing.contract import Contract, raises, skip_if, telling

C, M, B = 5, 6, 9


def batch(double: bool = True) -> tuple[Tensor, Tensor]:
    """Return embeddings (B, M) and labels of uneven classes: class 2 has three samples, class 3 one, class 4 none."""
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(B, M, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 2, 0, 3, 2, 1, 1])
    return (z if double else z.float()).requires_grad_(), labels


def run(loss: Loss, z: Tensor, y: Tensor, seed: int = 7) -> Tensor:
    """Return the value of `loss` for embeddings `z` (B, M) and labels `y` (B,)."""
    value: Tensor = loss(z, y, generator=torch.Generator().manual_seed(seed))
    return value


def gradients(value: Tensor, z: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Return the gradient with respect to the embeddings and every trainable parameter, zero where unused."""
    named = {"embeddings": z} | {n: p for n, p in loss.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), slopes, strict=True)}


def assert_finite(loss: Loss, z: Tensor, y: Tensor) -> None:
    """Check that value and gradients are finite."""
    value = run(loss, z, y)
    assert value.ndim == 0
    assert torch.isfinite(value)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(value, z, loss).values())


def draws_samples(loss: Loss) -> bool:
    """Return whether the loss's value depends on the generator."""
    z, y = batch()
    with torch.no_grad():
        return not torch.equal(run(loss, z, y, seed=1), run(loss, z, y, seed=2))


DEGENERATE: dict[str, tuple[Tensor, list[int]]] = {
    "single sample": (torch.randn(1, M, generator=torch.Generator().manual_seed(2)), [1]),
    "one class": (torch.randn(6, M, generator=torch.Generator().manual_seed(2)), [3] * 6),
    "all classes different": (torch.randn(5, M, generator=torch.Generator().manual_seed(2)), [0, 1, 2, 3, 4]),
    "all embeddings equal": (torch.ones(6, M), [0, 0, 1, 1, 2, 2]),
    "opposite embeddings": (torch.tensor([[1.0], [-1.0]]).expand(2, M).clone(), [0, 0]),
    "zero norm": (torch.cat([torch.zeros(3, M), torch.ones(3, M)]), [0, 0, 1, 1, 2, 2]),
    "all zero": (torch.zeros(4, M), [0, 0, 1, 1]),
    "small": (1e-12 * torch.randn(4, M, generator=torch.Generator().manual_seed(2)), [0, 0, 1, 1]),
    "tiny": (1e-20 * torch.randn(4, M, generator=torch.Generator().manual_seed(2)), [0, 0, 1, 1]),
    "huge": (1e6 * torch.randn(4, M, generator=torch.Generator().manual_seed(2)), [0, 0, 1, 1]),
}


class LossContract(Contract):
    """Tests of the registered loss `name`, created with `options`."""

    registry = REGISTRY
    options: ClassVar[dict[str, Any]] = {}

    def make(self, *, num_classes: int = C, double: bool = True) -> Loss:
        """Return the loss for embeddings of M dimensions."""
        loss = create_loss(self.name, num_classes=num_classes, dim=M, **self.options)
        return loss.double() if double else loss

    def test_gradient_is_the_finite_difference(self) -> None:
        """Check that the gradient is the slope of the value."""
        loss = self.make()
        z, y = batch()
        skip_if(draws_samples(loss), "a draw's path may jump; only its expectation is differentiable")
        run(loss, z, y).backward()
        probe = torch.randn(B, M, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        step = 1e-6
        with torch.no_grad():
            ahead, behind = run(loss, z + step * probe, y), run(loss, z - step * probe, y)
        assert z.grad is not None
        torch.testing.assert_close((z.grad * probe).sum(), (ahead - behind) / (2 * step), rtol=2e-5, atol=1e-7)

    def test_order_of_the_batch_does_not_matter(self) -> None:
        """Check that the same images in another order give the same value."""
        loss = self.make()
        z, y = batch()
        order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
        skip_if(draws_samples(loss), "every image draws samples of its own")
        torch.testing.assert_close(run(loss, z[order], y[order]), run(loss, z, y), rtol=1e-10, atol=1e-12)

    def test_the_generator_makes_it_reproducible(self) -> None:
        """Check that draws come from the generator only."""
        loss = self.make()
        z, y = batch()
        first = run(loss, z, y)
        torch.manual_seed(99)
        assert torch.equal(first, run(loss, z, y))

    def test_trains_something(self) -> None:
        """Check that the embeddings receive a gradient."""
        loss = self.make()
        z, y = batch()
        assert float(gradients(run(loss, z, y), z, loss)["embeddings"].abs().max()) > 0

    def test_float32_agrees_with_float64(self) -> None:
        """Check that single precision is good enough."""
        loss = self.make()
        z, y = batch()
        single = copy.deepcopy(loss).float()
        skip_if(draws_samples(loss), "single and double precision draw different samples")
        torch.testing.assert_close(run(single, z.float(), y).double(), run(loss, z, y), rtol=1e-4, atol=1e-5)

    def test_runs_in_float32_inside_autocast(self) -> None:
        """Check that under autocast the arithmetic stays in float32."""
        for dtype in (torch.bfloat16, torch.float16):
            loss = self.make(double=False)
            z, y = batch(double=False)
            rounded = z.detach().to(dtype).requires_grad_()
            with torch.autocast("cpu", dtype=dtype):
                inside = run(loss, rounded, y)
            assert inside.dtype == torch.float32
            assert torch.equal(inside, run(loss, rounded.float(), y))
            inside.backward()
            assert rounded.grad is not None
            assert rounded.grad.dtype == dtype
            assert torch.isfinite(rounded.grad).all()

    def test_degenerate_batches_stay_finite(self) -> None:
        """Check value and gradient of one image, one class, equal, opposite, zero, tiny and huge embeddings."""
        for kind, (z, y) in DEGENERATE.items():
            with telling(kind):
                assert_finite(self.make(double=False), z.clone().requires_grad_(), torch.tensor(y))

    def test_a_single_class_stays_finite(self) -> None:
        """Check that a loss for one class stays finite."""
        z, _ = batch(double=False)
        assert_finite(self.make(num_classes=1, double=False), z, torch.zeros(B, dtype=torch.long))

    def test_stays_finite_over_a_run_from_a_bad_scale(self) -> None:
        """Check two hundred steps from embeddings that are far too short or long."""
        for scale in (1e-4, 1e3):
            loss = self.make(double=False)
            _, y = batch()
            z = torch.nn.Parameter(scale * torch.randn(B, M, generator=torch.Generator().manual_seed(4)))
            groups = [{"params": [z], "lr": 0.01 * scale}]
            for group in loss.optimizer_groups():
                groups.append(
                    {"params": group["params"], "lr": group.get("lr", 0.01 * group.get("lr_multiplier", 1.0))}
                )
            optimizer = torch.optim.Adam(groups, fused=True)
            generator = torch.Generator().manual_seed(6)
            for _ in range(200):
                optimizer.zero_grad()
                loss(z, y, generator=generator).backward()
                optimizer.step()
            assert_finite(loss, z, y)
            assert all(torch.isfinite(p).all() for p in loss.parameters())

    def test_state_dict_round_trip(self) -> None:
        """Check that a checkpoint restores everything."""
        loss = self.make()
        loss.set_epoch(1_000)
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter.add_(0.01)
        other = self.make()
        other.load_state_dict(loss.state_dict())
        z, y = batch()
        assert torch.equal(run(loss, z, y), run(other, z, y))

    def test_optimizer_groups_cover_every_parameter_once(self) -> None:
        """Check that every parameter is trained, once."""
        loss = self.make()
        groups = loss.optimizer_groups()
        listed = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(listed) == sorted(id(parameter) for parameter in loss.parameters())
        for group in groups:
            assert ("lr" in group) != ("lr_multiplier" in group)
            assert (group["lr"] if "lr" in group else group["lr_multiplier"]) > 0
            assert group["weight_decay"] >= 0

    def test_probabilities_are_a_distribution_or_absent(self) -> None:
        """Check that class probabilities, if the loss gives any, are at least 0 and sum to 1."""
        loss = self.make()
        z, _ = batch()
        probabilities = loss.probabilities(z, generator=torch.Generator().manual_seed(1))
        if probabilities is not None:
            assert probabilities.shape == (B, C)
            assert bool((probabilities >= 0).all())
            torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(B, dtype=torch.float64))

    def test_warm_start_keeps_the_loss_finite(self) -> None:
        """Check that after the warm start the loss is finite."""
        loss = self.make(double=False)
        z, y = batch(double=False)
        loss.warm_start(z.detach(), y)
        assert_finite(loss, z, y)

    def test_diagnostics_are_plain_numbers(self) -> None:
        """Check that diagnostics fit into a table."""
        loss = self.make()
        run(loss, *batch())
        assert all(isinstance(value, float) for value in loss.diagnostics().values())

    def test_the_class_declares_what_it_can_do(self) -> None:
        """Check that `has_proxies` and `is_classifier` agree with what the loss returns."""
        loss = self.make()
        probabilities = loss.probabilities(batch()[0], generator=torch.Generator().manual_seed(1))
        assert (loss.class_proxies() is not None) == REGISTRY.holds(self.name, "has_proxies", self.options)
        assert (probabilities is not None) == REGISTRY.holds(self.name, "is_classifier", self.options)

    def test_bad_input_is_named(self) -> None:
        """Check that errors about wrong shapes and labels say what is allowed."""
        loss = self.make(double=False)
        with raises(ValueError, rf"\(4, {M + 1}\).*expected \(B, {M}\)"):
            loss(torch.zeros(4, M + 1), torch.zeros(4, dtype=torch.long))
        with raises(ValueError, r"labels have shape \(3,\)"):
            loss(torch.zeros(4, M), torch.zeros(3, dtype=torch.long))
        with raises(ValueError, f"labels run from 0 to {C}; allowed: 0 to {C - 1}"):
            loss(torch.zeros(2, M), torch.tensor([0, C]))
