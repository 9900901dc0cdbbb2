"""The vMF loss, the sample-proxy distances and EL-nivMF beyond the shared contract."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from references_vmf import log_c, log_nivmf, resultant
from torch import Tensor

from probmetric.directional import log_normalizer, mean_resultant_length
from probmetric.directional.normalizer import log_normalizer_of_square
from probmetric.losses import REGISTRY, create_loss
from probmetric.losses import _nivmf as nivmf
from probmetric.losses import el_nivmf as el_nivmf_module
from probmetric.losses._released_vmf import (
    bounds_log_normalizer,
    bounds_scaled_ratio,
    quadratic_log_normalizer,
    released_samples,
)
from probmetric.registry import OptionValueError

DOUBLE = torch.float64
DISTANCES = ("cos", "l2", "nivmf", "b_vmf", "el_vmf", "kl_vmf")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(dim: int = 6, classes: int = 4, size: int = 8) -> tuple[Tensor, Tensor]:
    z = 5 * torch.randn(size, dim, generator=seeded(1), dtype=DOUBLE)
    return z.requires_grad_(), torch.arange(size) % classes


@pytest.mark.parametrize(
    ("dim", "kappa", "error", "tolerance"),
    [
        (128, 75, -1.05, 0.01),
        (128, 200, -40.6, 0.1),
        (512, 150, -0.67, 0.01),
        (512, 400, -27.0, 0.5),
        (512, 30, 0.03, 0.01),
    ],
)
def test_released_quadratic_is_wrong_where_it_is_known_to_be(
    dim: int, kappa: float, error: float, tolerance: float
) -> None:
    kappas = torch.tensor(float(kappa), dtype=DOUBLE)
    result = quadratic_log_normalizer(kappas**2, dim) - log_normalizer(kappas, dim)
    assert result.item() == pytest.approx(error, abs=tolerance)


def test_released_bounds_are_wrong_where_they_are_known_to_be() -> None:
    kappas = torch.tensor([0.0, 0.1, 1.0, 5.0], dtype=DOUBLE)
    ratio = bounds_scaled_ratio(kappas**2, 3) * kappas / mean_resultant_length(kappas, 3)
    assert ratio[1:].tolist() == pytest.approx([1.25, 1.155, 1.002], abs=3e-3)
    drift = bounds_log_normalizer(kappas**2, 3) - log_normalizer(kappas, 3)
    assert (drift - drift[0]).tolist()[2:] == pytest.approx([-0.03, -0.11], abs=6e-3)


@pytest.mark.parametrize(
    ("dim", "kappa", "released"),
    [
        (128, 9.9, 0.080),
        (128, 20.0, -0.225),
        (128, 100.0, 0.516),
        (512, 11.0, -0.841),
        (512, 200.0, 0.220),
        (3, 20.0, 0.95),
    ],
)
def test_released_sampler_gives_the_known_mean_cosines(dim: int, kappa: float, released: float) -> None:
    loc = torch.nn.functional.normalize(torch.randn(1, dim, generator=seeded(2), dtype=DOUBLE), dim=1)
    samples = released_samples(loc, torch.tensor([kappa], dtype=DOUBLE), 8000, seeded())
    cosine = (samples * loc).sum(-1)
    assert cosine.mean().item() == pytest.approx(released, abs=0.002 + 4.5 * cosine.std().item() / 8000**0.5)


def test_released_b_and_el_distances_degenerate() -> None:
    """Under the quadratic log C, B-vMF is a scaled l2 and EL-vMF, up to its small linear term, a scaled dot product."""
    z, _ = batch()
    b = create_loss("sample_proxy", num_classes=4, dim=6, distance="b_vmf", fidelity="as_published").double()
    l2 = create_loss("sample_proxy", num_classes=4, dim=6, distance="l2", concentration=10.0).double()
    with torch.no_grad():
        l2.proxies.copy_(b.proxies)
        difference = b.logits(z) - 0.0009685 / 4 * l2.logits(z)
        difference = difference - difference.mean(dim=1, keepdim=True)
        spread = b.logits(z).std()
    assert difference.abs().max() < 0.1 * spread


def own_cosine_slope(fidelity: str) -> float:
    """Derivative of the KL loss along turning the embedding towards its own proxy."""
    loss = create_loss("sample_proxy", num_classes=4, dim=6, distance="kl_vmf", fidelity=fidelity).double()
    z, y = batch()
    (gradient,) = torch.autograd.grad(loss(z[:1], y[:1]), z)
    return float(gradient[0] @ loss.proxies[y[0]].detach())


def test_released_kl_repels_an_image_from_its_own_proxy() -> None:
    assert own_cosine_slope("corrected") < 0 < own_cosine_slope("as_published")


@pytest.mark.parametrize(("dim", "value", "start"), [(3, 0.4, 0.952), (128, 0.4, 60.5), (512, 0.7, 701.5)])
def test_vmf_initialisation(dim: int, value: float, start: float) -> None:
    torch.manual_seed(0)
    released = create_loss("vmf", num_classes=3000, dim=dim, resultant=value, fidelity="as_published")
    assert released.target == pytest.approx(start, rel=1e-3)
    assert released.weight.square().sum(1).mean().sqrt().item() == pytest.approx(start, rel=0.03)
    exact = create_loss("vmf", num_classes=3, dim=dim, resultant=value)
    assert mean_resultant_length(torch.tensor(exact.target, dtype=DOUBLE), dim).item() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(("fidelity", "excess"), [("corrected", 1.0), ("as_published", math.sqrt(math.pi / 2))])
def test_vmf_warm_start_sets_the_scale_of_the_embeddings(fidelity: str, excess: float) -> None:
    loss = create_loss("vmf", num_classes=3, dim=64, fidelity=fidelity)
    z = 0.03 * torch.randn(4000, 64, generator=seeded())
    loss.warm_start(z, torch.zeros(4000, dtype=torch.long))
    assert (loss.alpha * z).norm(dim=1).mean().item() / loss.target == pytest.approx(excess, rel=0.01)
    assert "alpha" in loss.state_dict()


def test_vmf_warm_start_takes_embeddings_of_nearly_no_length() -> None:
    """A_2(kappa*) = 0.4 at kappa* = 0.87, which is above the largest float32 in units of 1e-39."""
    loss = create_loss("vmf", num_classes=2, dim=2)
    loss.warm_start(torch.tensor([[1e-39, 0.0]]), torch.zeros(1, dtype=torch.long))
    assert loss.alpha.item() == torch.finfo(torch.float32).max


def sphere(polar: int = 60, azimuth: int = 80) -> tuple[Tensor, Tensor]:
    """Quadrature points (K, 3) and weights (K,) on the unit sphere."""
    cosine, weight = np.polynomial.legendre.leggauss(polar)
    phi = 2 * np.pi * np.arange(azimuth) / azimuth
    sine = np.sqrt(1 - cosine**2)
    height = np.outer(cosine, np.ones(azimuth))
    points = np.stack([np.outer(sine, np.cos(phi)), np.outer(sine, np.sin(phi)), height], -1)
    return torch.from_numpy(points.reshape(-1, 3)), torch.from_numpy(np.repeat(weight, azimuth) * 2 * np.pi / azimuth)


def density(nu: Tensor, points: Tensor) -> Tensor:
    return (log_c((nu * nu).sum().sqrt(), 3) + points @ nu).exp()


def test_vmf_value_and_gradient_are_those_of_the_expectation() -> None:
    """The sampled loss against the integral over the sphere that its draws estimate."""
    points, weights = sphere()
    loss = REGISTRY.get("vmf")(num_classes=3, dim=3, samples=60_000, scale=4.0, resultant=0.8).double()
    z = torch.tensor([[1.0, -2.0, 2.5]], dtype=DOUBLE, requires_grad=True)
    w, beta = loss.weight.detach(), 4.0

    def expectation(nu: Tensor) -> Tensor:
        terms = [log_c(v.norm(), 3) - torch.stack([log_c((v + beta * x).norm(), 3) for x in points]) for v in w]
        partition = (weights * density(nu, points) * torch.stack(terms).logsumexp(0)).sum()
        a = resultant(nu.norm(), 3) * resultant(w[1].norm(), 3)
        return partition - beta * a * torch.nn.functional.cosine_similarity(nu, w[1], dim=0)

    value = loss(z, torch.tensor([1]), generator=seeded())
    expected = expectation(z[0])
    assert value.item() == pytest.approx(expected.item(), abs=0.02)
    (result,), (exact,) = torch.autograd.grad(value, z), torch.autograd.grad(expected, z)
    torch.testing.assert_close(result, exact, atol=0.01, rtol=0.03)


def test_vmf_probabilities_integrate_over_images_and_classes() -> None:
    points, weights = sphere(16, 20)
    torch.manual_seed(3)
    loss = REGISTRY.get("vmf")(num_classes=2, dim=3, samples=40_000, scale=3.0, resultant=0.7).double()
    z = torch.tensor([[0.5, 1.0, -1.0]], dtype=DOUBLE)
    image, first, second = (weights * density(nu, points) for nu in (z[0], *loss.weight.detach()))
    expected = 0.0
    for x, mass in zip(points, image, strict=True):
        cosine = points @ x
        expected += float(mass * (first @ torch.sigmoid(3 * (cosine[:, None] - cosine)) @ second))
    result = loss.probabilities(z, generator=seeded())
    assert result[0, 0].item() == pytest.approx(expected, abs=0.01)


def test_el_nivmf_estimates_the_expected_likelihood() -> None:
    points, weights = sphere()
    loss = REGISTRY.get("el_nivmf")(num_classes=3, dim=3, samples=240_000, concentration=3.0, temperature=1.0).double()
    with torch.no_grad():
        loss.concentration += 0.4 * torch.randn(3, 3, generator=seeded(), dtype=DOUBLE)
    z = torch.tensor([[1.0, -2.0, 2.5]], dtype=DOUBLE, requires_grad=True)
    kappa = loss.concentration.detach().exp()
    directions = torch.nn.functional.normalize(loss.proxies.detach(), dim=1)
    likelihoods = [
        torch.stack([log_nivmf(x, p, k) for x in points]).exp() for p, k in zip(directions, kappa, strict=True)
    ]
    p_z = weights * density(z[0], points)
    expected = -torch.stack([(p_z * value).sum().log() for value in likelihoods]).log_softmax(0)[2]
    value = loss(z, torch.tensor([2]), generator=seeded())
    assert value.item() == pytest.approx(expected.item(), abs=0.02)  # four standard errors
    (result,), (exact,) = torch.autograd.grad(value, z), torch.autograd.grad(expected, z)
    torch.testing.assert_close(result, exact, atol=0.01, rtol=0.03)


def test_el_nivmf_in_blocks_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = create_loss("el_nivmf", num_classes=4, dim=6).double()
    z, y = batch()

    def run() -> tuple[Tensor, ...]:
        value = loss(z, y, generator=seeded())
        return value, *torch.autograd.grad(value, [z, *loss.parameters()])

    whole = run()
    monkeypatch.setattr(el_nivmf_module, "_LARGEST", 3 * 5 * 4)
    for block, expected in zip(run(), whole, strict=True):
        torch.testing.assert_close(block, expected)


@pytest.mark.parametrize("normalizer", ["exact", "paper", "none"])
@pytest.mark.parametrize("count", [1, 3])
def test_classes_in_blocks_equal_the_whole(normalizer: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.nn.functional.normalize(torch.randn(count, 5, 6, generator=seeded(1), dtype=DOUBLE), dim=-1)
    proxies, logs = torch.randn(2, 37, 6, generator=seeded(2), dtype=DOUBLE)
    inputs = [tensor.requires_grad_() for tensor in (draws, proxies, logs)]

    def run() -> tuple[Tensor, ...]:
        value = nivmf.nivmf_log_likelihoods(*inputs, log_normalizer_of_square, normalizer)
        return value, *torch.autograd.grad(value.square().sum(), inputs)

    whole = run()
    monkeypatch.setattr(nivmf, "_CACHE_BLOCK", 1)
    for block, expected in zip(run(), whole, strict=True):
        torch.testing.assert_close(block, expected)
    classes = list(zip(proxies / proxies.norm(dim=1, keepdim=True), logs.exp(), strict=True))
    densities = torch.stack([log_nivmf(x, p, k, normalizer) for x in draws[:, 0] for p, k in classes])
    expected = densities.unflatten(0, (count, 37)).logsumexp(0) - math.log(count)
    difference = whole[0][0] - expected
    torch.testing.assert_close(difference, difference[:1].expand(37))


@pytest.mark.parametrize("fidelity", ["corrected", "as_published"])
@pytest.mark.parametrize("guidance", ["proxy_anchor", "proxy_anchor_nca", "proxy_nca", "proxy_nca_pp", "soft_triple"])
def test_guiding_loss_shares_the_proxies(guidance: str, fidelity: str) -> None:
    options = {"fidelity": fidelity, "temperature": 1.0}
    inherited = {"fidelity": fidelity} if "fidelity" in REGISTRY.options(guidance) else {}
    loss = create_loss("el_nivmf", num_classes=4, dim=6, guidance=guidance, guidance_weight=2.0, **options).double()
    alone = create_loss("el_nivmf", num_classes=4, dim=6, **options).double()
    alone.load_state_dict({name: value for name, value in loss.state_dict().items() if "guidance" not in name})
    z, y = batch()
    guided = loss(z, y, generator=seeded()) - alone(z, y, generator=seeded())
    bare = create_loss(guidance, num_classes=4, dim=6, **inherited).double()
    with torch.no_grad():
        bare.proxies.copy_(loss.guidance.proxies if guidance == "soft_triple" else loss.proxies)
    torch.testing.assert_close(guided, 2 * bare(z, y))
    listed = [id(p) for group in loss.optimizer_groups() for p in group["params"]]
    assert sorted(listed) == sorted(map(id, loss.parameters()))
    pointers = [value.data_ptr() for value in loss.state_dict().values()]
    assert len(set(pointers)) == len(pointers)


def test_prior_pulls_concentrations_towards_their_mean_over_the_classes() -> None:
    loss = create_loss("el_nivmf", num_classes=4, dim=6, prior_strength=3.0).double()
    with torch.no_grad():
        loss.concentration += torch.arange(4, dtype=DOUBLE)[:, None]
    assert loss.prior().item() == pytest.approx(1.5 * 1.25)
    (gradient,) = torch.autograd.grad(loss.prior(), loss.concentration)
    assert (gradient[0] < 0).all()
    assert (gradient[3] > 0).all()
    torch.testing.assert_close(gradient.sum(0), torch.zeros(6, dtype=DOUBLE), atol=1e-15, rtol=0)


@pytest.mark.parametrize("name", ["sample_proxy", "el_nivmf"])
def test_warm_start_points_proxies_at_class_means_and_measures_the_scale(name: str) -> None:
    loss = create_loss(name, num_classes=5, dim=6, resultant=0.6).double()
    z, y = batch(classes=4)
    before = loss.proxies.detach().clone()
    loss.warm_start(z.detach(), y)
    mean = z.detach()[y == 2].sum(0)
    torch.testing.assert_close(loss.proxies[2] / loss.initial, mean / mean.norm())
    assert torch.equal(loss.proxies[4], before[4])
    reached = mean_resultant_length((loss.embedding_scale * z.detach()).norm(dim=1).mean(), 6)
    assert reached.item() == pytest.approx(0.6, abs=1e-9)
    fixed = create_loss(name, num_classes=5, dim=6, embedding_scale=30.0)
    fixed.warm_start(z.detach().float(), y)
    assert fixed.embedding_scale.item() == 30.0


@pytest.mark.parametrize("distance", DISTANCES)
def test_released_distances_warm_start_only_where_the_release_does(distance: str) -> None:
    released = create_loss("sample_proxy", num_classes=3, dim=6, distance=distance, fidelity="as_published")
    assert released.wants_warm_start == (distance in ("b_vmf", "el_vmf"))
    assert create_loss("sample_proxy", num_classes=3, dim=6, distance=distance).wants_warm_start


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("options", [{"distance": distance} for distance in DISTANCES] + [{}], ids=str)
def test_logits_start_a_standard_deviation_apart(options: dict[str, str], size: float) -> None:
    """Whatever the size of the network's outputs, of the concentrations and of the dimension."""
    name = "sample_proxy" if options else "el_nivmf"
    for dim, concentration in ((6, 5.0), (64, 50.0)):
        torch.manual_seed(0)
        loss = create_loss(name, num_classes=20, dim=dim, concentration=concentration, **options)
        y = torch.arange(400) % 20
        z = size * (torch.randn(20, dim)[y] + torch.randn(400, dim))
        loss.warm_start(z, y)
        with torch.no_grad():
            spread = loss.similarities(z, seeded()).std(dim=1, correction=0).mean()
        assert spread.item() == pytest.approx(1, rel=0.05)
        assert loss(z, y, generator=seeded()).item() < 2 * math.log(20)


@pytest.mark.parametrize("dim", [3, 64, 512])
def test_class_weights_of_vmf_turn_as_fast_as_those_of_a_linear_classifier(dim: int) -> None:
    """A step of Adam, the same for every coordinate, relative to the coordinates' standard deviation."""
    torch.manual_seed(0)
    loss, linear = create_loss("vmf", num_classes=2000, dim=dim), torch.nn.Linear(dim, 2000)
    steps = [group["lr_multiplier"] for group in loss.optimizer_groups() if "lr_multiplier" in group]
    assert steps[0] / loss.weight.std().item() == pytest.approx(1 / linear.weight.std().item(), rel=0.05)
    published = create_loss("vmf", num_classes=4, dim=dim, fidelity="as_published").optimizer_groups()
    assert published[0]["lr_multiplier"] == 1


def test_one_zero_embedding_leaves_the_others_their_gradient() -> None:
    """In 64 dimensions the stretched length of a zero vector, to the power -64, is beyond any float."""
    torch.manual_seed(0)
    loss = create_loss("sample_proxy", num_classes=4, dim=64, distance="nivmf")
    z, y = torch.randn(8, 64), torch.arange(8) % 4
    z[3] = 0
    z.requires_grad_()
    value = loss(z, y)
    (gradient,) = torch.autograd.grad(value, z)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    assert not gradient[3].any()
    alone = torch.cat([z[:3], z[4:]]).detach().requires_grad_()
    (expected,) = torch.autograd.grad(loss(alone, torch.cat([y[:3], y[4:]])), alone)
    torch.testing.assert_close(gradient[4:] * 8 / 7, expected[3:])


def test_a_given_temperature_is_kept() -> None:
    z, y = batch(classes=4)
    loss = create_loss("el_nivmf", num_classes=5, dim=6, temperature=0.003)
    loss.warm_start(z.detach().float(), y)
    assert loss.diagnostics()["temperature"] == pytest.approx(0.003)


def test_as_published_has_the_constants_of_the_released_scripts() -> None:
    """Initial temperature and its absolute learning rate: 500 or 200 times 1e-5."""
    expected = {"cos": 1 / 256, "l2": 1.0, "nivmf": 1 / 32, "b_vmf": 1.0, "el_vmf": 1.0, "kl_vmf": 1.0}
    z, y = batch(classes=4)
    for distance, temperature in expected.items():
        loss = create_loss("sample_proxy", num_classes=5, dim=6, distance=distance, fidelity="as_published")
        loss.warm_start(z.detach().float(), y)
        assert loss.temperature.item() == pytest.approx(temperature)
        assert loss.optimizer_groups()[2]["lr"] == pytest.approx(0.005)
    loss = create_loss("el_nivmf", num_classes=5, dim=6, fidelity="as_published")
    loss.warm_start(z.detach().float(), y)
    assert loss.temperature.item() == pytest.approx(0.003)
    assert loss.optimizer_groups()[2]["lr"] == pytest.approx(0.002)


def test_scale_and_margin_of_the_guiding_loss_are_settable() -> None:
    loss = create_loss(
        "el_nivmf", num_classes=4, dim=6, guidance="proxy_anchor", guide_scale=20.0, guide_margin=0.2
    ).double()
    z, y = batch()
    bare = create_loss("proxy_anchor", num_classes=4, dim=6, scale=20.0, margin=0.2).double()
    with torch.no_grad():
        bare.proxies.copy_(loss.proxies)
    alone = loss(z, y, generator=seeded())
    loss.guidance_weight = 0.0
    torch.testing.assert_close(alone - loss(z, y, generator=seeded()), bare(z, y))
    with pytest.raises(OptionValueError, match=r"'guide_scale' is 2.0, which .* only; guidance is 'proxy_nca_pp'"):
        create_loss("el_nivmf", num_classes=4, dim=6, guidance="proxy_nca_pp", guide_scale=2.0)


@pytest.mark.parametrize("guidance", ["proxy_anchor", "proxy_nca", "soft_triple"])
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_guiding_loss_pulls_as_hard_as_the_likelihood_at_the_start(guidance: str, temperature: float) -> None:
    torch.manual_seed(0)
    y = torch.arange(120) % 20
    z = (torch.randn(20, 16)[y] + torch.randn(120, 16)).requires_grad_()
    options = {"temperature": temperature, "guidance": guidance}
    loss = create_loss("el_nivmf", num_classes=20, dim=16, **options)
    loss.warm_start(z.detach(), y)

    def pull(weight: float) -> torch.Tensor:
        loss.guidance_weight = weight
        return torch.autograd.grad(loss(z, y, generator=seeded()), z)[0]

    guide = (pull(1.0) - pull(0.0)).norm()
    assert guide.item() == pytest.approx(pull(0.0).norm().item(), rel=0.3)
    published = create_loss("el_nivmf", num_classes=20, dim=16, fidelity="as_published", **options)
    published.warm_start(z.detach(), y)
    assert published.guidance_scale.item() == 1


def test_learning_rates_are_relative_steps() -> None:
    options = {"concentration": 20.0, "temperature": 0.003, "concentration_lr": 0.01, "temperature_lr": 0.5}
    logs = create_loss("el_nivmf", num_classes=3, dim=6, **options).optimizer_groups()
    raw = create_loss("el_nivmf", num_classes=3, dim=6, fidelity="as_published", **options).optimizer_groups()
    assert [group["lr"] for group in logs] == [0.05, 0.01, 0.5]
    assert [group["lr"] for group in raw] == pytest.approx([0.05, 0.2, 0.0015])


@pytest.mark.parametrize("concentration", [0.0, 6.0, 50.0])
@pytest.mark.parametrize("distance", [*DISTANCES, "el_nivmf"])
def test_rates_that_are_not_named_are_those_of_the_scripts_or_a_hundredth(distance: str, concentration: float) -> None:
    """The scripts: base rate 1e-5 times 5000, 50000 and 500 (figure 5); 5000, 20000 and 200 (tables 1 and 2)."""
    name = distance if distance == "el_nivmf" else "sample_proxy"
    options = {} if name == distance else {"distance": distance}
    options |= {"concentration": concentration} if concentration else {}
    expected = [0.05, 0.2, 0.002] if name == distance else [0.05, 0.5, 0.005]
    for fidelity, rates in (("as_published", expected), ("corrected", [0.05, 0.01, 0.01])):
        groups = create_loss(name, num_classes=3, dim=6, fidelity=fidelity, **options).optimizer_groups()
        assert [group["lr"] for group in groups] == pytest.approx(rates)


@pytest.mark.parametrize("distance", DISTANCES)
def test_training_reduces_the_loss(distance: str) -> None:
    torch.manual_seed(0)
    loss = create_loss("sample_proxy", num_classes=4, dim=6, distance=distance)
    z, y = batch()
    points = torch.nn.Parameter(z.detach().float())
    loss.warm_start(points.detach(), y)
    optimizer = torch.optim.Adam([{"params": [points], "lr": 0.05}, *loss.optimizer_groups()])
    first = loss(points, y).item()
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(points, y)
        value.backward()
        optimizer.step()
    assert value.item() < 0.5 * first


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"\'resultant\' is 1\.5; allowed: a number above 0, below 1"):
        create_loss("vmf", num_classes=3, dim=6, resultant=1.5)
    with pytest.raises(ValueError, match=r"'elvmf'; allowed: 'cos', 'l2'"):
        create_loss("sample_proxy", num_classes=3, dim=6, distance="elvmf")
    with pytest.raises(ValueError, match="'samples' is 0; allowed: a number at least 1"):
        create_loss("el_nivmf", num_classes=3, dim=6, samples=0)
    with pytest.raises(ValueError, match=r"'temperature' is -1.0"):
        create_loss("el_nivmf", num_classes=3, dim=6, temperature=-1.0)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
def test_log_normalizer_has_second_derivatives_vmap_and_forward_mode() -> None:
    """The contract of docs/reference/losses.md: a right number, or an error, never a wrong number."""
    kappa = torch.tensor([1.0, 5.0, 50.0], dtype=DOUBLE)
    second = torch.autograd.functional.hessian(lambda k: log_normalizer(k, 16).sum(), kappa).diagonal()
    slope = mean_resultant_length(kappa + 1e-5, 16) - mean_resultant_length(kappa - 1e-5, 16)
    torch.testing.assert_close(second, -slope / 2e-5, rtol=1e-6, atol=1e-9)
    each = torch.func.vmap(lambda k: log_normalizer(k, 16))(kappa)
    torch.testing.assert_close(each, log_normalizer(kappa, 16), rtol=1e-12, atol=0)
    _, forward = torch.func.jvp(lambda k: log_normalizer(k, 16), (kappa,), (torch.ones_like(kappa),))
    torch.testing.assert_close(forward, -mean_resultant_length(kappa, 16), rtol=1e-10, atol=0)
    with pytest.raises(RuntimeError, match="does not have vmap support"):
        torch.func.vmap(torch.func.grad(lambda k: log_normalizer(k, 16)))(kappa)
