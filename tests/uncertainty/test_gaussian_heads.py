"""PFE and HIB: losses against their formulas, frozen means, KL, and noise of each image's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.losses import create_loss
from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty._gaussian import LogVarianceHead, image_noise, stored_head
from probmetric.uncertainty.pfe import constant_log_variance, pair_loss


def fit_pfe(encoder, batches, **options):
    uncertainty = create_uncertainty("pfe", **({"epochs": 3} | options))
    return uncertainty, uncertainty.fit(encoder, batches, generator=torch.Generator().manual_seed(0))


def hib(encoder, **options):
    loss = create_loss("contrastive", num_classes=4, dim=4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return create_uncertainty("hib", **options).objective(encoder, loss, num_images=48)


def test_pair_loss_by_hand():
    means = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    log_variance = torch.tensor([[0.0, 1.0], [0.5, 0.0], [-1.0, 2.0]])
    pairs, weights = torch.tensor([[0, 1], [0, 2]]), torch.tensor([1.0, 3.0])
    expected = 0.0
    for (i, j), w in zip(pairs.tolist(), weights.tolist(), strict=True):
        terms = []
        for d in range(2):
            v = math.exp(log_variance[i, d]) + math.exp(log_variance[j, d])
            terms.append(float(means[i, d] - means[j, d]) ** 2 / v + math.log(v))
        expected += w * sum(terms) / 2 / 4
    assert float(pair_loss(log_variance, means, pairs, weights)) == pytest.approx(expected, rel=1e-6)


def test_pfe_leaves_every_encoder_tensor_and_its_batchnorm_alone():
    encoder = TinyEncoder().train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    fit_pfe(encoder, tiny_batches())
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_pfe_learns_where_positive_pairs_disagree():
    """Images of half of the classes are scattered; their learnt variance is larger."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 3, 2, 2, generator=generator)
    batches = []
    for _ in range(8):
        labels = torch.arange(32) % 4
        noise = torch.where(labels < 2, 0.05, 1.0)[:, None, None, None]
        batches.append((centres[labels] + noise * torch.randn(32, 3, 2, 2, generator=generator), labels))
    encoder = TinyEncoder()
    uncertainty, posterior = fit_pfe(encoder, batches, epochs=40, learning_rate=0.01, margin=2.0)
    images, labels = batches[0]
    result = uncertainty.bind(encoder, posterior=posterior, seed=0)(images).uncertainty
    assert result[labels >= 2].mean() > 1.5 * result[labels < 2].mean()


def test_pfe_starts_at_the_best_constant_variance():
    means = F.normalize(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    pairs, weights = torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.tensor([1.0, 2.0, 5.0])
    start = constant_log_variance([(means, pairs[:2], weights[:2]), (means, pairs[2:], weights[2:])])

    def loss(log_variance: torch.Tensor) -> float:
        return float(pair_loss(log_variance.expand(6, 5), means, pairs, weights))

    assert loss(start) < min(loss(start - 0.05), loss(start + 0.05))


def test_pfe_retrieves_by_its_frozen_mean():
    """In many dimensions the samples' mean still points where the encoder does."""
    encoder = TinyEncoder(dim=64)
    uncertainty, posterior = fit_pfe(encoder, tiny_batches(), samples=30)
    images, _ = tiny_batches(1)[0]
    with torch.no_grad():
        frozen = F.normalize(encoder.eval()(images), dim=1)
    mean = uncertainty.bind(encoder, posterior=posterior, seed=0)(images).mean
    assert float((mean * frozen).sum(1).min()) > 0.95


def test_stored_head_computes_what_the_trained_one_does():
    with torch.random.fork_rng():
        head = LogVarianceHead(6, 4)
    head(torch.randn(32, 6, generator=torch.Generator().manual_seed(0)))
    head.eval()
    features = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(stored_head(head.tensors(), features)(features), head(features))


def test_noise_belongs_to_the_image():
    images = tiny_batches(1)[0][0]
    noise = image_noise(images, (3, 4), seed=1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    assert torch.equal(image_noise(images[order], (3, 4), seed=1), noise[order])
    assert not torch.equal(image_noise(images, (3, 4), seed=2), noise)
    many = image_noise(torch.arange(400.0)[:, None], (20,), seed=0)
    assert abs(float(many.mean())) < 0.03
    assert abs(float(many.std()) - 1) < 0.03
    assert len(torch.unique(many[:, 0])) == 400


@pytest.mark.parametrize("fidelity", ["corrected", "as_published"])
def test_hib_of_one_image_is_its_divergence_alone(fidelity):
    """One image has no pair, and its batch no spread to be normalised by: PyTorch refused it."""
    objective = hib(TinyEncoder(), fidelity=fidelity, kl_weight=0.5)
    head = torch.nn.Linear(6, 5)
    objective.variance = LogVarianceHead(6, 5)
    features = torch.randn(1, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value = objective.from_features(features, head, torch.tensor([1]), generator=torch.Generator().manual_seed(1))
    value.backward()
    assert torch.isfinite(features.grad).all()
    assert all(part.training for part in objective.variance.modules())
    with torch.no_grad():
        mean, log_variance = head(features), objective.variance.eval()(features)
        mean = F.normalize(mean, dim=1) if fidelity == "as_published" else mean
        assert float(value.detach()) == pytest.approx(0.5 * float(objective.divergence(mean, log_variance)), rel=1e-5)


def test_hib_likelihood_by_enumeration():
    objective = hib(TinyEncoder(), train_samples=3)
    with torch.no_grad():
        objective.sharpness.fill_(0.7)
        objective.offset.fill_(-0.2)
    samples = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        match, mismatch = objective.double().log_probabilities(samples)
    slope = math.log1p(math.exp(0.7))
    for i in range(4):
        for j in range(4):
            p = [
                1 / (1 + math.exp(slope * float((samples[a, i] - samples[b, j]).norm()) + 0.2))
                for a in range(3)
                for b in range(3)
            ]
            assert float(match[i, j]) == pytest.approx(math.log(sum(p) / 9), abs=1e-6)
            assert float(mismatch[i, j]) == pytest.approx(math.log(1 - sum(p) / 9), abs=1e-6)


def test_published_hib_likelihood_by_enumeration():
    """Squared distances and the mean of log-probabilities, as the authors' code has it."""
    objective = hib(TinyEncoder(), train_samples=2, fidelity="as_published").double()
    samples = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        match, mismatch = objective.log_probabilities(samples)
    slope = math.log1p(math.exp(1.0))
    for i in range(3):
        for j in range(3):
            p = [
                1 / (1 + math.exp(slope * float((samples[a, i] - samples[b, j]).square().sum())))
                for a in range(2)
                for b in range(2)
            ]
            assert float(match[i, j]) == pytest.approx(sum(math.log(q) for q in p) / 4, abs=1e-6)
            assert float(mismatch[i, j]) == pytest.approx(sum(math.log(1 - q) for q in p) / 4, abs=1e-6)


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_hib_starts_in_proportion_to_the_embeddings(scale):
    """After the warm start two samples of one image are nearer than the distance at which p = 1/2, at any scale."""
    objective = hib(TinyEncoder(dim=4))
    generator = torch.Generator().manual_seed(0)
    embeddings = scale * torch.randn(200, 4, generator=generator)
    assert objective.wants_warm_start
    objective.warm_start(embeddings, torch.zeros(200, dtype=torch.long))
    std = (0.5 * objective.variance.shift).exp().detach()
    samples = F.normalize(embeddings + std * torch.randn(2, 200, 4, generator=generator), dim=-1)
    between = (samples[0] - samples[1]).norm(dim=1).median()
    threshold = (objective.offset / F.softplus(objective.sharpness)).detach()
    assert 0.1 < float(between) < float(threshold) < 2**0.5
    assert not hib(TinyEncoder(), fidelity="as_published").wants_warm_start


def test_hib_log_probabilities_survive_certainty():
    objective = hib(TinyEncoder(), train_samples=2)
    with torch.no_grad():
        objective.offset.fill_(200.0)
        _, mismatch = objective.log_probabilities(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.isfinite(mismatch).all()
    assert mismatch.max() < -150


def test_true_divergence_is_the_gaussian_one_and_the_published_is_unbounded():
    mean = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    log_variance = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    q = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(1)
    corrected = hib(TinyEncoder())
    assert torch.allclose(corrected.divergence(mean, log_variance), expected, rtol=1e-5)
    published = hib(TinyEncoder(), fidelity="as_published")
    values = [float(published.divergence(mean, torch.full_like(mean, v)).sum()) for v in (0.0, -4.0, -8.0)]
    assert values[2] < values[1] < values[0] < 0


def test_hib_trains_encoder_variance_and_calibration():
    encoder = TinyEncoder()
    objective = hib(encoder)
    images, labels = tiny_batches(1)[0]
    generator = torch.Generator().manual_seed(0)
    objective.from_features(encoder.features(images), encoder.head, labels, generator=generator).backward()
    trained = [p for group in objective.optimizer_groups() for p in group["params"]]
    assert {id(objective.sharpness), id(objective.offset)} <= {id(p) for p in trained}
    for parameter in [*encoder.parameters(), objective.variance.layers[0].weight, objective.sharpness]:
        assert torch.isfinite(parameter.grad).all()
    assert encoder.head.weight.grad.abs().sum() > 0
    assert objective.variance.layers[3].weight.grad.abs().sum() > 0


def test_posterior_spread_is_the_heads_variance():
    """For a narrow posterior, tangential variance of unit samples is σ² / |μ|² per dimension."""
    encoder = TinyEncoder()
    uncertainty, posterior = fit_pfe(encoder, tiny_batches(), samples=4000, keep_samples=True)
    posterior["variance.shift"] = torch.tensor(-12.0)
    posterior["variance.scale"] = torch.tensor(0.0)
    images = tiny_batches(1)[0][0]
    batch = uncertainty.bind(encoder, posterior=posterior, seed=0)(images)
    total = batch.samples.var(1).sum(1)
    assert torch.allclose(total, torch.full_like(total, 3 * math.exp(-12.0)), rtol=0.08)
    assert torch.allclose(batch.mean, F.normalize(encoder.eval()(images), dim=1), atol=1e-3)


def test_errors_name_the_remedy():
    with pytest.raises(ValueError, match="objective: hib"):
        create_uncertainty("hib").fit(TinyEncoder(), [], generator=torch.Generator())
    with pytest.raises(ValueError, match="no batch had a mined positive pair"):
        fit_pfe(TinyEncoder(), [(torch.randn(4, 3, 2, 2), torch.arange(4))])
    with pytest.raises(ValueError, match="'epochs' is 0"):
        create_uncertainty("pfe", epochs=0)
    with pytest.raises(ValueError, match="'kl_weight' is -1"):
        create_uncertainty("hib", kl_weight=-1.0)
