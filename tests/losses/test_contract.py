"""The contract every registered loss keeps, found through the registry; no loss is named here."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from references import CASES, Case
from torch import Tensor

from probmetric.losses import REGISTRY, create_loss, list_losses
from probmetric.losses._base import Loss

C, M, B = 5, 6, 9
EVERY = pytest.mark.parametrize("name", list_losses())


def make(name: str, *, num_classes: int = C, double: bool = True, **options: object) -> Loss:
    loss = create_loss(name, num_classes=num_classes, dim=M, **options)
    return loss.double() if double else loss


def batch(double: bool = True, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Class 2 has three samples, class 4 none, class 3 one: uneven on purpose."""
    generator = torch.Generator().manual_seed(3)
    z = scale * torch.randn(B, M, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 2, 0, 3, 2, 1, 1])
    return (z if double else z.float()).requires_grad_(), labels


def run(loss: Loss, z: Tensor, y: Tensor, seed: int = 7) -> Tensor:
    return loss(z, y, generator=torch.Generator().manual_seed(seed))


def gradients(value: Tensor, z: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Gradient with respect to the embeddings and every trainable parameter, zero where unused."""
    named = {"embeddings": z} | {n: p for n, p in loss.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}


def assert_finite(loss: Loss, z: Tensor, y: Tensor) -> dict[str, Tensor]:
    value = run(loss, z, y)
    assert value.ndim == 0
    assert torch.isfinite(value)
    found = gradients(value, z, loss)
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
    return found


@EVERY
def test_has_a_reference(name: str) -> None:
    assert name in {case.name for case in CASES}, f"write a reference of {name!r} in references*.py"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradient_equal_the_reference(case: Case) -> None:
    loss = make(case.name, **case.options)
    if case.epoch is not None:
        loss.set_epoch(case.epoch)
    z, y = batch()
    value = run(loss, z, y)
    state = {name: tensor.detach().clone() for name, tensor in loss.state_dict().items()}
    leaves = {name: state[name].requires_grad_() for name, p in loss.named_parameters() if p.requires_grad}
    twin = z.detach().clone().requires_grad_()
    expected = case.reference(state, twin, y, torch.Generator().manual_seed(7))
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-10)
    reference = torch.autograd.grad(expected, [twin, *leaves.values()], allow_unused=True)
    for (name, found), target in zip(gradients(value, z, loss).items(), reference, strict=True):
        target = torch.zeros_like(found) if target is None else target
        torch.testing.assert_close(found, target, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@EVERY
def test_gradient_is_the_finite_difference(name: str) -> None:
    loss = make(name)
    z, y = batch()
    if draws_samples(loss):
        pytest.skip("a draw's path may jump with its parameters; only its expectation is differentiable")
    run(loss, z, y).backward()
    probe = torch.randn(B, M, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    step = 1e-6
    with torch.no_grad():
        ahead, behind = run(loss, z + step * probe, y), run(loss, z - step * probe, y)
    torch.testing.assert_close((z.grad * probe).sum(), (ahead - behind) / (2 * step), rtol=2e-5, atol=1e-7)


@EVERY
def test_order_of_the_batch_does_not_matter(name: str) -> None:
    loss = make(name)
    z, y = batch()
    order = torch.randperm(B, generator=torch.Generator().manual_seed(1))
    if draws_samples(loss):
        pytest.skip("each image draws its own samples")
    torch.testing.assert_close(run(loss, z[order], y[order]), run(loss, z, y), rtol=1e-10, atol=1e-12)


def draws_samples(loss: Loss) -> bool:
    z, y = batch()
    with torch.no_grad():
        return not torch.equal(run(loss, z, y, seed=1), run(loss, z, y, seed=2))


@EVERY
def test_the_generator_makes_it_reproducible(name: str) -> None:
    loss = make(name)
    z, y = batch()
    first = run(loss, z, y)
    torch.manual_seed(99)
    assert torch.equal(first, run(loss, z, y))


@EVERY
def test_trains_something(name: str) -> None:
    loss = make(name)
    z, y = batch()
    assert float(gradients(run(loss, z, y), z, loss)["embeddings"].abs().max()) > 0


@EVERY
def test_float32_agrees_with_float64(name: str) -> None:
    loss = make(name)
    z, y = batch()
    single = copy.deepcopy(loss).float()
    if draws_samples(loss):
        pytest.skip("single and double precision draw different samples")
    torch.testing.assert_close(run(single, z.float(), y).double(), run(loss, z, y), rtol=1e-4, atol=1e-5)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_runs_in_float32_inside_autocast(name: str, dtype: torch.dtype) -> None:
    loss = make(name, double=False)
    z, y = batch(double=False)
    rounded = z.detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        inside = run(loss, rounded, y)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, run(loss, rounded.float(), y))
    inside.backward()
    assert rounded.grad.dtype == dtype
    assert torch.isfinite(rounded.grad).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cuda_agrees_with_cpu(case: Case) -> None:
    loss = make(case.name, **case.options)
    z, y = batch()
    if draws_samples(loss):
        pytest.skip("each device draws its own samples")
    twin = copy.deepcopy(loss).cuda()
    there = z.detach().cuda().requires_grad_()
    value = twin(there, y.cuda(), generator=torch.Generator("cuda").manual_seed(7))
    torch.testing.assert_close(value.cpu(), run(loss, z, y), rtol=1e-9, atol=1e-10)
    ours, theirs = gradients(run(loss, z, y), z, loss), gradients(value, there, twin)
    for name in ours:
        torch.testing.assert_close(theirs[name].cpu(), ours[name], rtol=1e-7, atol=1e-9)


DEGENERATE = {
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


@EVERY
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_batches_stay_finite(name: str, kind: str) -> None:
    z, y = DEGENERATE[kind]
    assert_finite(make(name, double=False), z.clone().requires_grad_(), torch.tensor(y))


@EVERY
def test_a_single_class_stays_finite(name: str) -> None:
    z, _ = batch(double=False)
    assert_finite(make(name, num_classes=1, double=False), z, torch.zeros(B, dtype=torch.long))


@EVERY
@pytest.mark.parametrize("scale", [1e-4, 1e3])
def test_stays_finite_over_a_run_from_a_bad_scale(name: str, scale: float) -> None:
    loss = make(name, double=False)
    _, y = batch()
    z = torch.nn.Parameter(scale * torch.randn(B, M, generator=torch.Generator().manual_seed(4)))
    groups = [{"params": [z], "lr": 0.01 * scale}]
    for group in loss.optimizer_groups():
        groups.append({"params": group["params"], "lr": group.get("lr", 0.01 * group.get("lr_multiplier", 1.0))})
    optimizer = torch.optim.Adam(groups, fused=True)
    generator = torch.Generator().manual_seed(6)
    for _ in range(200):
        optimizer.zero_grad()
        loss(z, y, generator=generator).backward()
        optimizer.step()
    assert_finite(loss, z, y)
    assert all(torch.isfinite(p).all() for p in loss.parameters())


@EVERY
def test_state_dict_round_trip(name: str) -> None:
    loss = make(name)
    loss.set_epoch(1_000)
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.add_(0.01)
    other = make(name)
    other.load_state_dict(loss.state_dict())
    z, y = batch()
    assert torch.equal(run(loss, z, y), run(other, z, y))


@EVERY
def test_optimizer_groups_cover_every_parameter_once(name: str) -> None:
    loss = make(name)
    groups = loss.optimizer_groups()
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in loss.parameters())
    for group in groups:
        assert ("lr" in group) != ("lr_multiplier" in group)
        assert group.get("lr", group.get("lr_multiplier")) > 0
        assert group["weight_decay"] >= 0


@EVERY
def test_the_registry_lists_the_constructors_options(name: str) -> None:
    parameters = inspect.signature(REGISTRY.get(name).__init__).parameters
    expected = {n: p.default for n, p in parameters.items() if n not in ("self", *REGISTRY.context)}
    assert {option.name: option.default for option in REGISTRY.options(name).values()} == expected


@EVERY
def test_probabilities_are_a_distribution_or_absent(name: str) -> None:
    loss = make(name)
    z, _ = batch()
    probabilities = loss.probabilities(z, generator=torch.Generator().manual_seed(1))
    if probabilities is not None:
        assert probabilities.shape == (B, C)
        assert bool((probabilities >= 0).all())
        torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(B, dtype=torch.float64))


@EVERY
def test_warm_start_keeps_the_loss_finite(name: str) -> None:
    loss = make(name, double=False)
    z, y = batch(double=False)
    loss.warm_start(z.detach(), y)
    assert_finite(loss, z, y)


@EVERY
def test_diagnostics_are_plain_numbers(name: str) -> None:
    loss = make(name)
    run(loss, *batch())
    assert all(isinstance(value, float) for value in loss.diagnostics().values())


@EVERY
def test_bad_input_is_named(name: str) -> None:
    loss = make(name, double=False)
    with pytest.raises(ValueError, match=rf"\(4, {M + 1}\).*expected \(B, {M}\)"):
        loss(torch.zeros(4, M + 1), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"labels have shape \(3,\)"):
        loss(torch.zeros(4, M), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=f"labels run from 0 to {C}; allowed: 0 to {C - 1}"):
        loss(torch.zeros(2, M), torch.tensor([0, C]))
