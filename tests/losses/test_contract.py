"""Every loss of the package keeps the contract and equals its reference; no loss is named here."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from references import CASES, Case

from probmetric.losses import REGISTRY, Loss, create_loss
from probmetric.testing import LossContract, cases
from probmetric.testing.losses import C, M, batch, draws_samples, gradients, run

EVERY = pytest.mark.parametrize("name", REGISTRY.names())
globals().update(cases(LossContract, REGISTRY.names()))


def make(name: str, **options: object) -> Loss:
    return create_loss(name, num_classes=C, dim=M, **options).double()


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
    for (name, result), target in zip(gradients(value, z, loss).items(), reference, strict=True):
        target = torch.zeros_like(result) if target is None else target
        torch.testing.assert_close(result, target, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


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


@EVERY
def test_the_registry_lists_the_constructors_options(name: str) -> None:
    parameters: dict[str, inspect.Parameter] = {}
    for cls in REGISTRY.get(name).__mro__:
        parameters = {**inspect.signature(cls.__init__).parameters, **parameters}
        if "__init__" in vars(cls) and "shared" not in inspect.signature(cls.__init__).parameters:
            break
    expected = {n: p.default for n, p in parameters.items() if n not in ("self", "shared", *REGISTRY.context)}
    assert {option.name: option.default for option in REGISTRY.options(name).values()} == expected
