"""The flow is what it claims to be, and NIR's switches route gradients where the paper's ablations say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probmetric.losses import REGISTRY, create_loss
from probmetric.losses._flow import ConditionalFlow
from probmetric.losses.nir import NIR

C, M, B = 4, 7, 10


def make(**options: object) -> NIR:
    return create_loss("nir", num_classes=C, dim=M, blocks=2, depth=3, width=16, **options).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(B, M, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), torch.randint(0, C, (B,), generator=generator)


@pytest.mark.parametrize("condition", ["dense", "start", "mid", "end"])
@pytest.mark.parametrize("dim", [2, 5, 8])
def test_inverse_undoes_forward_and_log_det_is_the_jacobians(condition: str, dim: int) -> None:
    flow = ConditionalFlow(dim, blocks=3, width=16, depth=3, condition=condition).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(2.0)
    x, proxy = torch.randn(2, 6, dim, dtype=torch.float64)
    residual, log_det = flow(x, proxy)
    torch.testing.assert_close(flow.inverse(residual, proxy), x, rtol=1e-9, atol=1e-9)
    for row in range(len(x)):
        jacobian = torch.autograd.functional.jacobian(lambda v, r=row: flow(v[None], proxy[r : r + 1])[0][0], x[row])
        torch.testing.assert_close(log_det[row], torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-9, atol=1e-9)


def test_permutations_differ_between_blocks_and_leave_global_generators_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    flow = ConditionalFlow(16, blocks=2, width=4, depth=2)
    torch.set_rng_state(before)
    again = ConditionalFlow(16, blocks=2, width=4, depth=2)
    orders = [block.order for block in flow.blocks]
    assert not torch.equal(*orders)
    assert torch.equal(orders[0], again.blocks[0].order)


def gradient_reaches(loss: NIR, value: Tensor) -> dict[str, bool]:
    parts = {"flow": next(loss.flow.parameters()), "proxies": loss.base.proxies}
    result = torch.autograd.grad(value, list(parts.values()), allow_unused=True, retain_graph=True)
    return {name: g is not None and bool(g.abs().max() > 0) for name, g in zip(parts, result, strict=True)}


@pytest.mark.parametrize("detach", [False, True])
def test_detached_proxies_get_no_gradient_from_the_flow(detach: bool) -> None:
    loss = make(detach_proxies=detach, pdml_weight=0.0)
    assert gradient_reaches(loss, loss(*batch())) == {"flow": True, "proxies": not detach}


@pytest.mark.parametrize(
    ("mode", "flow", "proxies"),
    [("generate", False, True), ("reverse_match", True, False), ("generate_and_match", True, True)],
)
def test_synthetic_samples_train_what_the_mode_says(mode: str, flow: bool, proxies: bool) -> None:
    loss = make(self_regularisation=mode)
    value = loss._synthetic(*batch(), torch.Generator().manual_seed(3))
    assert gradient_reaches(loss, value) == {"flow": flow, "proxies": proxies}


@pytest.mark.parametrize("mode", ["generate", "reverse_match", "generate_and_match"])
def test_self_regularisation_adds_the_proxy_loss_of_the_inverse_flow(mode: str) -> None:
    loss, (z, y) = make(self_regularisation=mode, pdml_weight=0.3), batch()
    plain = make(pdml_weight=0.3)
    plain.load_state_dict(loss.state_dict())
    residual = torch.randn(B, M, generator=torch.Generator().manual_seed(3)).double()  # drawn in float32 for any type
    proxy = torch.nn.functional.normalize(loss.base.proxies[y])
    samples = loss.flow.inverse(residual, proxy)
    expected = plain(z, y) + 0.3 * loss.base(samples, y)
    torch.testing.assert_close(loss(z, y, generator=torch.Generator().manual_seed(3)), expected)


def test_gradient_ratio_is_the_ratio_of_both_terms_gradients() -> None:
    loss, (z, y) = make(), batch()
    loss.set_epoch(0)
    for _ in range(2):
        loss(z, y).backward()
    regulariser, proxy_loss = make(pdml_weight=0.0), loss.base
    regulariser.load_state_dict(loss.state_dict())
    nir = torch.autograd.grad(regulariser(z, y), z)[0].norm()
    pdml = torch.autograd.grad(0.0075 * proxy_loss(z, y), z)[0].norm()
    result = loss.diagnostics()
    assert result["nir_gradient_ratio"] == pytest.approx(float(nir / pdml))
    assert result["nir_nll"] == pytest.approx(loss.nll(z, y).mean().item())
    loss.set_epoch(1)
    assert loss.diagnostics() == {}


def test_an_exploding_likelihood_stays_finite_and_still_has_a_gradient() -> None:
    loss, (z, y) = make(nll_norm="none"), batch()
    with torch.no_grad():
        for block in loss.flow.blocks:
            block.net1[-1].bias.add_(1e3)
    value = loss(z, y)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(z.grad).all()
    assert bool(loss.flow.blocks[0].net1[-1].bias.grad.abs().max() > 0)


def train(loss: NIR, steps: int) -> dict[str, float]:
    """Ratio of gradients over the last step of a short training on fixed clusters of 32 dimensions."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 32, generator=generator)
    optimizer = torch.optim.Adam([{"params": g["params"], "lr": g["lr"]} for g in loss.optimizer_groups()], fused=True)
    for step in range(steps):
        y = torch.randint(0, 20, (40,), generator=generator)
        z = (centres[y] + 0.5 * torch.randn(40, 32, generator=generator)).requires_grad_()
        loss.set_epoch(step)
        optimizer.zero_grad()
        loss(z, y).backward()
        optimizer.step()
    return loss.diagnostics()


def test_undivided_likelihood_dies_where_the_divided_one_balances() -> None:
    options = {"num_classes": 20, "dim": 32, "blocks": 3, "depth": 2, "width": 64, "flow_lr": 2e-3}
    torch.manual_seed(0)
    divided = train(create_loss("nir", **options, nll_norm="dim"), 60)
    torch.manual_seed(0)
    undivided = train(create_loss("nir", **options, nll_norm="none"), 60)
    assert undivided["nir_term"] < 1e-4
    assert undivided["nir_gradient_ratio"] < 1e-2 * divided["nir_gradient_ratio"]


@pytest.mark.parametrize(
    ("option", "value"), [("temperature", 0.0), ("pdml_weight", -1.0), ("blocks", 0), ("depth", 1), ("flow_lr", 0.0)]
)
def test_bad_options_are_named(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{option}('? is |=){value}"):
        create_loss("nir", num_classes=C, dim=M, **{option: value})


def test_the_base_takes_its_scale_and_margin_and_keeps_its_own_without_them() -> None:
    set_base, default_base = (
        NIR(num_classes=5, dim=8, **options).base for options in ({"scale": 8.0, "margin": 0.2}, {})
    )
    alone = create_loss("proxy_anchor", num_classes=5, dim=8)
    assert (set_base.scale, set_base.margin) == (8.0, 0.2)
    assert (default_base.scale, default_base.margin) == (alone.scale, alone.margin)
    with pytest.raises(ValueError, match=r"'scale' is 8.0, which counts with .* only; base is 'proxy_nca'"):
        create_loss("nir", num_classes=5, dim=8, base="proxy_nca", scale=8.0)


def test_one_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="dim=1; allowed: at least 2"):
        create_loss("nir", num_classes=C, dim=1)


@pytest.mark.parametrize("option", ["scale", "margin"])
def test_the_losses_whose_option_can_be_set_through_another_one_are_those_that_have_it(option: str) -> None:
    """Options of NIR and of EL-nivMF name the losses inside with which they count."""
    for wrapper, choice, prefix in (("nir", "base", ""), ("el_nivmf", "guidance", "guide_")):
        options = REGISTRY.options(wrapper)
        inner = [name for name in options[choice].choices if name != "none" and option in REGISTRY.options(name)]
        assert sorted(options[prefix + option].when[choice]) == sorted(inner)
