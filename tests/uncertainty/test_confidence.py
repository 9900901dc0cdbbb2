"""Norm, softmax confidence and temperature scaling."""

import math

import pytest
import torch
from scipy import special
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.directional import concentration_from_resultant, mean_resultant_length
from probmetric.losses import create_loss
from probmetric.metrics import fit_temperature
from probmetric.uncertainty import DirectionalBatch, Uncertainty, create_uncertainty
from probmetric.uncertainty._base import UncertaintyError
from probmetric.uncertainty.mc_dropout import DropoutObjective
from probmetric.uncertainty.softmax import doubt
from probmetric.uncertainty.vmf import draws_its_own


def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return create_loss("cosine", num_classes=4, dim=4)


def images():
    return tiny_batches(1)[0][0]


def test_norm_is_the_length_of_the_embedding():
    encoder = TinyEncoder().eval()
    z = encoder(images()).detach()
    batch = create_uncertainty("norm").bind(encoder, seed=0)(images())
    assert torch.allclose(batch.concentration, z.norm(dim=1))
    assert torch.allclose(batch.uncertainty, 1 / z.norm(dim=1))
    assert torch.allclose(batch.mean, z / z.norm(dim=1, keepdim=True))
    assert batch.probabilities is None
    loss = classifier()
    with_loss = create_uncertainty("norm").bind(encoder, loss=loss, seed=0)(images())
    assert torch.allclose(with_loss.probabilities, loss.logits(z).softmax(1).detach())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_softmax_is_the_tempered_classifier(temperature):
    encoder, loss = TinyEncoder().eval(), classifier()
    batch = create_uncertainty("softmax", temperature=temperature).bind(encoder, loss=loss, seed=0)(images())
    expected = (loss.logits(encoder(images())) / temperature).softmax(1).detach()
    assert torch.allclose(batch.probabilities, expected, atol=1e-6)
    assert torch.allclose(batch.uncertainty, 1 - expected.max(1).values, atol=1e-6)


def test_doubt_by_hand_and_without_saturation():
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [1.0, 3e-20, 1e-20]])
    entropy = doubt(probabilities, "entropy")
    assert float(entropy[0]) == pytest.approx(1.5 * math.log(2))
    confidence = doubt(probabilities, "confidence")
    assert float(confidence[0]) == pytest.approx(0.5)
    assert float(confidence[1]) == pytest.approx(4e-20)


def test_best_temperature_recovers_the_scale_of_the_logits():
    """Labels drawn from softmax(logits); logits multiplied by 4 are over-confident by T = 4."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(20000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    assert fit_temperature((4 * logits).log_softmax(1), labels) == pytest.approx(4.0, rel=0.05)


def test_temperature_minimises_validation_likelihood():
    encoder, loss = TinyEncoder().eval(), classifier()
    with torch.no_grad():
        predicted = [(x, loss.logits(encoder(x)).argmax(1)) for x, _ in tiny_batches(3, seed=5)]
    validation = [(x, torch.where(torch.arange(16) % 4 == 0, (y + 1) % 4, y)) for x, y in predicted]
    uncertainty = create_uncertainty("temperature")
    posterior = uncertainty.fit(encoder, [], loss=loss, generator=torch.Generator(), validation=validation)

    @torch.no_grad()
    def likelihood(temperature):
        values = [
            torch.nn.functional.cross_entropy(loss.logits(encoder(x)) / temperature, y, reduction="sum")
            for x, y in validation
        ]
        return float(sum(values))

    result = float(posterior["temperature"])
    assert likelihood(result) <= min(likelihood(result * 1.02), likelihood(result / 1.02), likelihood(1.0))


def test_errors_name_the_remedy():
    encoder = TinyEncoder()
    plain = create_loss("contrastive", num_classes=4, dim=4)
    with pytest.raises(ValueError, match="defines no class probabilities"):
        create_uncertainty("softmax").bind(encoder, loss=plain, seed=0)(images())
    with pytest.raises(ValueError, match="defines no class probabilities"):
        create_uncertainty("softmax").bind(encoder, seed=0)(images())
    options = {"loss": classifier(), "generator": torch.Generator()}
    with pytest.raises(ValueError, match="pass validation="):
        create_uncertainty("temperature").fit(encoder, [], **options)
    with pytest.raises(ValueError, match="closed-set"):
        create_uncertainty("temperature").fit(encoder, [], validation=[(images(), torch.full((16,), 9))], **options)
    with pytest.raises(ValueError, match="'temperature' is 0"):
        create_uncertainty("softmax", temperature=0)


@pytest.mark.parametrize(
    ("part", "broken", "message"),
    [
        ("uncertainty", lambda each: each[:, None], r"uncertainty of shape \(16, 1\); expected \(16,\)"),
        ("concentration", lambda each: each[:, None], r"concentration of shape \(16, 1\); expected \(16,\)"),
        ("variance", lambda each: each, r"variance of shape \(16,\); expected \(16, 4\)"),
        ("samples", lambda each: each[:3, None, None], r"samples of shape \(3, 1, 1\); expected \(16, 1, 1\)"),
        ("uncertainty", lambda each: torch.where(each == each[2], torch.nan, each), "as uncertainty of image 2"),
        ("mean", lambda each: torch.eye(4).repeat(4, 1) * 2, "a mean of length 2; means are unit vectors"),
    ],
)
@pytest.mark.parametrize("reads_images", [False, True])
def test_a_record_that_breaks_the_contract_names_its_uncertainty(part, broken, message, reads_images):
    class Mine(Uncertainty):
        def describe(self, rows, predictor):
            record = DirectionalBatch(torch.nn.functional.normalize(rows), torch.arange(len(rows)) / 1.0)
            setattr(record, part, broken(record.uncertainty))
            return record

        def represent(self, images, predictor):
            rows = predictor.encoder(images)
            return self.describe(rows, predictor) if reads_images else rows

    with pytest.raises(UncertaintyError, match=f"uncertainty 'Mine' gave .*{message}"):
        Mine().bind(TinyEncoder(), seed=0)(images())


def test_vmf_samples_follow_the_norm():
    """Mean cosine of the samples to the embedding is A_M(|z|)."""
    encoder = TinyEncoder().eval()
    batch = create_uncertainty("vmf", samples=4000).bind(encoder, seed=0)(images())
    assert torch.allclose(batch.samples.norm(dim=-1), torch.ones(16, 4000), atol=1e-5)
    cosine = torch.einsum("bsm,bm->bs", batch.samples, batch.mean).mean(1)
    kappa = batch.concentration.double()
    numerator, denominator = (torch.from_numpy(special.ive(order, kappa.numpy())) for order in (2, 1))  # M = 4
    assert torch.allclose(cosine.double(), numerator / denominator, atol=0.03)


@pytest.mark.parametrize("name", ["vmf", "el_nivmf", "sample_proxy"])
def test_concentrations_are_those_that_the_loss_trained(name):
    """A warm start scales embeddings of any length to A_M = 0.7: so are the samples and what wraps the loss."""
    encoder = TinyEncoder().eval()
    z = encoder(images()).detach()
    loss = create_loss(name, num_classes=4, dim=4, resultant=0.7)
    loss.warm_start(z, torch.arange(16) % 4)
    kappa = concentration_from_resultant(torch.tensor(0.7), 4)
    for whole in (loss, DropoutObjective(loss, 0.2)):
        for uncertainty in (create_uncertainty("norm"), create_uncertainty("vmf", samples=500)):
            batch = uncertainty.bind(encoder, loss=whole, seed=0)(images())
            torch.testing.assert_close(batch.concentration, kappa * z.norm(dim=1) / z.norm(dim=1).mean())
    cosine = torch.einsum("bsm,bm->bs", batch.samples, batch.mean).mean(1)
    torch.testing.assert_close(cosine, mean_resultant_length(batch.concentration, 4), rtol=0, atol=0.1)


def test_a_loss_that_draws_is_known_below_all_that_wraps_it():
    wrapped = [
        create_loss("threshold_consistent", num_classes=3, dim=4, base="cosine"),
        create_loss("vmf", num_classes=3, dim=4),
    ]
    assert [draws_its_own(loss) for loss in wrapped] == [False, True]
    assert [draws_its_own(DropoutObjective(loss, 0.2)) for loss in wrapped] == [False, True]
    assert not draws_its_own(None)


def test_vmf_probabilities_average_the_classifier_over_samples():
    encoder, loss = TinyEncoder(), classifier()
    batch = create_uncertainty("vmf", samples=6, probabilities="sampled").bind(encoder, loss=loss, seed=0)(images())
    expected = torch.stack([loss.probabilities(batch.samples[:, s]).detach() for s in range(6)]).mean(0)
    assert torch.allclose(batch.probabilities, expected, atol=1e-6)
