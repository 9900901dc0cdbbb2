"""Fitting, prior precision, sampling and the files of the post-hoc Laplace approximation."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty._summary import Sampled, unit_deviation
from probmetric.uncertainty.laplace import posterior as _sampling
from probmetric.uncertainty.laplace.model import evidence_precision, sparsification_area


def fitted(encoder=None, **options):
    encoder = TinyEncoder() if encoder is None else encoder
    uncertainty = create_uncertainty("laplace", **({"samples": 20, "margin": 1.0} | options))
    posterior = uncertainty.fit(
        encoder,
        tiny_batches(),
        generator=torch.Generator().manual_seed(0),
        validation=tiny_batches(2, seed=7),
    )
    return encoder, uncertainty, posterior


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pairs", ["mined", "dataset"])
def test_fit_streams_over_batches(bias, pairs):
    encoder = TinyEncoder(bias=bias)
    _, uncertainty, posterior = fitted(encoder, pairs=pairs, approximation="full")
    encoder.eval()
    with torch.no_grad():
        parts = []
        for images, labels in tiny_batches():
            features = encoder.features(images)
            inputs = torch.cat([features, torch.ones(len(images), 1)], dim=1) if bias else features
            parts.append(uncertainty.rule.curvature(inputs, encoder.head(features), labels)[0].double())
    expected = sum(parts) / (len(parts) if pairs == "dataset" else 1)
    assert torch.allclose(posterior["weight_curvature"].double(), expected, rtol=1e-6)
    assert posterior["weight_curvature"].shape == (4, 6 + bias)


def test_batches_without_mined_pairs_are_skipped_and_none_at_all_is_an_error():
    encoder = TinyEncoder()
    uncertainty = create_uncertainty("laplace", margin=1.0)
    single = (torch.randn(4, 3, 2, 2), torch.zeros(4, dtype=torch.long))
    options = {"generator": torch.Generator()}
    without = uncertainty.fit(encoder, tiny_batches(), **options)
    within = uncertainty.fit(encoder, [single, *tiny_batches()], **options)
    assert torch.equal(without["weight_curvature"], within["weight_curvature"])
    with pytest.raises(ValueError, match="no batch had a contributing pair"):
        uncertainty.fit(encoder, [single], **options)


def test_fit_leaves_the_encoder_as_it_was():
    encoder = TinyEncoder().train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    fitted(encoder)
    assert encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_round_trip_through_safetensors_gives_the_same_embeddings(tmp_path):
    encoder, uncertainty, posterior = fitted(prior="marginal_likelihood")
    save_file(posterior, tmp_path / "posterior.safetensors")
    images = tiny_batches(1)[0][0]
    first = uncertainty.bind(encoder, posterior=posterior, seed=3)(images)
    second = uncertainty.bind(encoder, posterior=load_file(tmp_path / "posterior.safetensors"), seed=3)(images)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.uncertainty, second.uncertainty)


def test_draws_do_not_depend_on_the_batch_size():
    encoder, uncertainty, posterior = fitted(keep_samples=True)
    images = tiny_batches(1)[0][0]
    whole = uncertainty.bind(encoder, posterior=posterior, seed=5)(images)
    for size in (1, 5):
        parts = uncertainty.bind(encoder, posterior=posterior, seed=5)(images.split(size))
        pieces = [uncertainty.bind(encoder, posterior=posterior, seed=5)(part) for part in images.split(size)]
        assert torch.allclose(parts.samples, whole.samples, atol=2e-6)
        assert torch.allclose(torch.cat([piece.samples for piece in pieces]), whole.samples, atol=2e-6)
        assert torch.allclose(parts.uncertainty, whole.uncertainty, rtol=1e-4)
    other = uncertainty.bind(encoder, posterior=posterior, seed=6)(images)
    assert not torch.allclose(other.samples, whole.samples, atol=1e-3)


def test_blocks_of_rows_repeat_the_draws(monkeypatch):
    encoder, uncertainty, posterior = fitted(keep_samples=True)
    images = tiny_batches(1)[0][0]
    whole = uncertainty.bind(encoder, posterior=posterior, seed=5)(images)
    monkeypatch.setattr(_sampling, "_ROWS", 3)
    blocks = uncertainty.bind(encoder, posterior=posterior, seed=5)(images)
    assert torch.allclose(blocks.samples, whole.samples, atol=2e-6)


def peak_megabytes(work):
    """Highest resident memory of this process during `work`, above what it had before."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("needs a resettable peak of resident memory (Linux)")
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def resident(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def test_hundred_samples_in_2048_dimensions_need_the_memory_of_a_few():
    """Kept, the samples of these 300 images would take 235 MB."""
    encoder = TinyEncoder(dim=2048)
    images = torch.randn(300, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    posterior = {"weight_curvature": torch.ones(2048, 7), "prior_precision": torch.tensor(1.0)}
    result = []
    laplace = create_uncertainty("laplace", samples=100)
    peak = peak_megabytes(lambda: result.append(laplace.bind(encoder, posterior=posterior, seed=0)(images)))
    assert result[0].mean.shape == (300, 2048)
    assert result[0].samples is None
    assert peak < 80


def test_summary_equals_statistics_of_the_kept_samples():
    encoder, uncertainty, posterior = fitted(keep_samples=True, score="std_sum")
    batch = uncertainty.bind(encoder, posterior=posterior, seed=0)(tiny_batches(1)[0][0])
    samples = batch.samples.double()
    assert torch.allclose(samples.norm(dim=-1), torch.ones(samples.shape[:2], dtype=torch.float64), atol=1e-6)
    mean = samples.mean(1)
    length = mean.norm(dim=1)
    assert torch.allclose(batch.mean.double(), F.normalize(mean, dim=1), atol=1e-6)
    assert torch.allclose(batch.uncertainty.double(), samples.std(1).sum(-1), rtol=1e-5)
    kappa = length * (4 - length**2) / (1 - length**2)
    assert torch.allclose(batch.concentration.double(), kappa, rtol=1e-4)


def test_scores_agree_with_the_concentration():
    encoder, uncertainty, posterior = fitted()
    batch = uncertainty.bind(encoder, posterior=posterior, seed=0)(tiny_batches(1)[0][0])
    assert torch.allclose(batch.uncertainty, 1 / batch.concentration)
    assert batch.samples is None


def test_tiny_posterior_spread_is_resolved():
    """Steps of 1e-6: the estimate equals float64, where 1 − R̄² from float32 samples would be noise."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(5, 8, generator=generator)
    steps = 1e-6 * torch.randn(50, 5, 8, generator=generator)
    draws = ((unit_deviation(z, step), z + step) for step in steps)
    summary = Sampled().summarise(F.normalize(z, dim=1), draws, None)
    samples = F.normalize(z.double() + steps.double(), dim=-1)
    length = samples.mean(0).norm(dim=1)
    spread = (samples - samples.mean(0)).square().sum((0, 2)) / 50
    expected = length * (8 - length**2) / spread
    assert torch.allclose(summary.concentration.double(), expected, rtol=1e-3)


def test_sampler_has_the_posterior_standard_deviation():
    head = torch.nn.Linear(1, 2)
    curvature = {"weight_curvature": torch.tensor([[3.0, -5.0], [0.0, 99.0]]), "prior_precision": torch.tensor(1.0)}
    sampler = _sampling.stored_sampler(head, curvature)
    bias, both = (list(sampler.moves(torch.tensor([[h]]), 4000, seed=0)) for h in (0.0, 1.0))
    draws = torch.stack([torch.cat([two - one, one]).T for one, two in zip(bias, both, strict=True)]).detach()
    expected = torch.tensor([[0.5, 1.0], [1.0, 0.1]])
    assert torch.allclose(draws.std(0), expected, rtol=0.05)
    assert torch.allclose(draws.mean(0), torch.zeros(2, 2), atol=0.06)


def test_evidence_precision_is_the_maximum():
    generator = torch.Generator().manual_seed(0)
    h = torch.rand(30, generator=generator, dtype=torch.float64) * 10
    theta = torch.randn(30, generator=generator, dtype=torch.float64)

    def evidence(delta):
        return -0.5 * delta * theta.square().sum() + 15 * math.log(delta) - 0.5 * (h + delta).log().sum()

    best = evidence_precision(h, theta)
    assert evidence(best) >= max(evidence(best * 1.01), evidence(best / 1.01))


def test_validation_prior_is_the_best_candidate():
    encoder, uncertainty, posterior = fitted(prior="validation")
    images, labels = (torch.cat(column) for column in zip(*tiny_batches(2, seed=7), strict=True))
    seed = int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(0)))

    def area(precision):
        stored = posterior | {"prior_precision": torch.tensor(precision)}
        batch = uncertainty.bind(encoder, posterior=stored, seed=seed)(images)
        return sparsification_area(batch.mean, labels, batch.uncertainty)

    chosen = float(posterior["prior_precision"])
    assert area(chosen) == pytest.approx(max(area(10.0**power) for power in range(-3, 9)), abs=1e-9)


def test_the_record_says_how_much_of_the_posterior_is_its_prior(caplog):
    """Share of prior-dominated weights and resultant of the draws, counted by hand; a warning where they are bad."""
    _, _, sound = fitted(geometry="euclidean", approximation="positive", scale=1e3)
    assert not caplog.messages
    assert float(sound["prior_share"]) < 0.5
    assert float(sound["mean_resultant_length"]) > 0.9
    encoder, _, posterior = fitted(prior_precision=1e-3)
    _, _, drowned = fitted(prior_precision=1e6)
    assert float(drowned["prior_share"]) == 1.0
    assert "isotropic noise" in caplog.text
    for fit, precision in ((posterior, 1e-3), (drowned, 1e6)):
        entries = fit["weight_curvature"].flatten()
        assert float(fit["prior_share"]) == pytest.approx(sum(h < precision for h in entries.tolist()) / len(entries))
    assert 0.0 < float(posterior["prior_share"]) < 0.5
    assert float(drowned["mean_resultant_length"]) == pytest.approx(1.0, abs=1e-4)
    seed = int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(0)))
    keeper = create_uncertainty("laplace", samples=20, margin=1.0, keep_samples=True)
    images = torch.cat([images for images, _ in tiny_batches()])
    samples = keeper.bind(encoder, posterior=posterior, seed=seed)(images).samples
    assert float(posterior["mean_resultant_length"]) == pytest.approx(
        float(samples.mean(1).norm(dim=1).mean()), rel=1e-4
    )


def test_draws_that_scatter_are_warned_of(caplog):
    """A posterior a thousand times wider than its weights: the mean of its draws is chance."""
    _, _, posterior = fitted(prior_precision=1e-9, scale=1e-9)
    assert float(posterior["mean_resultant_length"]) < 0.5
    assert "scatter over the sphere" in caplog.text


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
def test_the_control_has_the_same_mean_variance_and_no_curvature(bias, structure):
    encoder = TinyEncoder(bias=bias)
    _, _, posterior = fitted(encoder, structure=structure)
    _, _, control = fitted(encoder, structure=structure, noise="isotropic")
    variance = (1 / (posterior["weight_curvature"].double().clamp_min(0) + 1.0)).mean()
    assert float(control["prior_precision"]) == pytest.approx(float(1 / variance))
    assert not control["weight_curvature"].any()
    if structure == "diagonal":
        images = tiny_batches(1)[0][0]
        wide = create_uncertainty("laplace", samples=400, margin=1.0, score="std_sum")
        doubt = wide.bind(encoder, posterior=control, seed=0)(images).uncertainty
        with torch.no_grad():
            encoder.eval()
            inputs, outputs = encoder.features(images), encoder(images)
            ratio = (inputs.square().sum(1) + bias).sqrt() / outputs.norm(dim=1)
        ranks = [values.argsort().argsort().float() for values in (doubt, ratio)]
        assert float(torch.corrcoef(torch.stack(ranks))[0, 1]) > 0.95, "all it knows is |h| / |z|"


def test_post_hoc_and_online_have_one_rule_for_the_prior():
    assert float(fitted()[2]["prior_precision"]) == 1.0
    options = {name: create_uncertainty(name).__dict__ for name in ("laplace", "laplace_online")}
    assert {(result["prior"], result["prior_precision"]) for result in options.values()} == {("fixed", 1.0)}
    assert {result["rule"].geometry for result in options.values()} == {"arccos"}


def test_head_inputs_are_the_inputs_of_the_head():
    encoder = TinyEncoder()
    images = tiny_batches(1)[0][0]
    batch = create_uncertainty("head_inputs").bind(encoder, seed=0)(images)
    with torch.no_grad():
        inputs = encoder.eval().features(images)
    assert torch.allclose(batch.mean * batch.concentration[:, None], inputs, atol=1e-6)
    assert torch.allclose(batch.uncertainty, 1 / inputs.norm(dim=1))


def test_sparsification_area_by_hand():
    mean = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), dim=1)
    labels = torch.tensor([0, 0, 1, 2])
    assert sparsification_area(mean, labels, torch.tensor([0.1, 0.2, 0.3, 0.4])) == pytest.approx(
        (1 + 1 + 2 / 3 + 1 / 2) / 4
    )


def test_errors_name_the_remedy():
    encoder, uncertainty, posterior = fitted()
    images = tiny_batches(1)[0][0]
    with pytest.raises(ValueError, match="Run fit"):
        uncertainty.bind(encoder, seed=0)(images)
    with pytest.raises(ValueError, match="fit a posterior for this encoder"):
        uncertainty.bind(TinyEncoder(dim=5), posterior=posterior, seed=0)(images)
    encoder.head = None
    with pytest.raises(ValueError, match=r"needs a torch.nn.Linear"):
        uncertainty.bind(encoder, posterior=posterior, seed=0)(images)
    with pytest.raises(ValueError, match="validation"):
        create_uncertainty("laplace", prior="validation").fit(
            TinyEncoder(), tiny_batches(), generator=torch.Generator()
        )
    with pytest.raises(ValueError, match="prior='fixed' only"):
        create_uncertainty("laplace", prior="validation", prior_precision=3.0)
    with pytest.raises(ValueError, match="at least 2"):
        create_uncertainty("laplace", samples=1)
