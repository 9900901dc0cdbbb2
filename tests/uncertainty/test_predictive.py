"""Class probabilities are predictive or absent, variances in closed form are those of the draws."""

import pytest
import torch
import torch.nn.functional as F

from probmetric.losses import create_loss
from probmetric.testing.uncertainties import TinyEncoder, tiny_batches, trained_objective
from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty.laplace.posterior import stored_sampler


def bound(name, loss, **options):
    encoder = TinyEncoder().eval()
    uncertainty = create_uncertainty(name, samples=200, keep_samples=True, **options)
    posterior = None
    if uncertainty.fits:
        generator = torch.Generator().manual_seed(0)
        posterior = uncertainty.fit(encoder, tiny_batches(), loss=loss, generator=generator)
    return encoder, uncertainty.bind(encoder, loss=loss, posterior=posterior, seed=0)


def softmax_loss():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return create_loss("softmax", num_classes=4, dim=4)  # its classifier reads lengths


@pytest.mark.parametrize(("name", "options"), [("pfe", {"epochs": 1}), ("vmf", {})])
def test_they_average_the_classifier_at_the_length_it_was_trained_with(name, options):
    loss, images = softmax_loss(), tiny_batches(1)[0][0]
    encoder, predictor = bound(name, loss, **options)
    batch = predictor(images)
    with torch.no_grad():
        length = encoder(images).norm(dim=1)
        plain = loss.probabilities(encoder(images))
        expected = torch.stack([loss.probabilities(length[:, None] * u) for u in batch.samples.unbind(1)]).mean(0)
    assert torch.allclose(batch.probabilities, expected, atol=1e-5)
    assert not torch.allclose(batch.probabilities, plain, atol=1e-3)


def test_laplace_averages_over_the_weights_drawn():
    loss, images = softmax_loss(), tiny_batches(1)[0][0]
    encoder, predictor = bound("laplace", loss, prior_precision=5.0)
    with torch.no_grad():
        features = encoder.features(images)
        std = stored_sampler(encoder.head, predictor.posterior).std
        generator = torch.Generator().manual_seed(0)
        noise = ([torch.randn(4, size, generator=generator) for size in (6, 1)] for _ in range(200))
        steps = ((weight * std[:, :6], (bias * std[:, 6:]).squeeze(1)) for weight, bias in noise)
        drawn = [
            loss.logits(F.linear(features, encoder.head.weight + weight, encoder.head.bias + bias)).softmax(1)
            for weight, bias in steps
        ]
    assert torch.allclose(predictor(images).probabilities, torch.stack(drawn).mean(0), atol=1e-5)


def test_hib_has_none_for_its_classifier_was_never_trained():
    encoder = TinyEncoder()
    hib = create_uncertainty("hib", samples=4)
    objective = trained_objective(hib, encoder)
    for name in ("hib", "norm"):
        uncertainty = create_uncertainty(name, **({"samples": 4} if name == "hib" else {}))
        predictor = uncertainty.bind(encoder, loss=objective, posterior=objective.variance.tensors(), seed=0)
        assert predictor(tiny_batches(1)[0][0]).probabilities is None


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
def test_the_variance_of_laplace_is_that_of_its_draws(structure):
    images = tiny_batches(1)[0][0]
    encoder, predictor = bound("laplace", softmax_loss(), prior_precision=5.0, structure=structure)
    with torch.no_grad():
        features = encoder.features(images)
        moves = torch.stack(list(stored_sampler(encoder.head, predictor.posterior).moves(features, 4000, 1)))
        expected = moves.var(0) / encoder(images).square().sum(1, keepdim=True)
    assert torch.allclose(predictor(images).variance, expected, rtol=0.15)


def test_the_variance_of_pfe_is_its_heads():
    images = tiny_batches(1)[0][0]
    _, predictor = bound("pfe", softmax_loss(), epochs=1)
    batch = predictor(images)
    assert batch.variance.shape == batch.mean.shape
    spread = batch.samples.var(1).sum(1)
    assert torch.corrcoef(torch.stack([spread, batch.variance.sum(1)]))[0, 1] > 0.5
