"""An image whose embedding is zero has no direction: every uncertainty is least sure of it, and says so in numbers."""

import pytest
import torch
from torch import nn

from probmetric.losses import create_loss
from probmetric.testing.uncertainties import tiny_batches, trained_objective
from probmetric.uncertainty import create_uncertainty, list_uncertainties
from probmetric.uncertainty._base import LEAST_SURE, DirectionalBatch, polar
from probmetric.uncertainty.ensemble import EncoderEnsemble


class DeadEncoder(nn.Module):
    """An encoder that gives zeros for images of zeros, from the first layer on."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(12, 40, bias=False), nn.ReLU())
            self.head = nn.Linear(40, 4, bias=False)

    def features(self, images):
        return self.trunk(images)

    def forward(self, images):
        return self.head(self.features(images))


def predictor(name, **options):
    uncertainty = create_uncertainty(name, **options)
    members = [DeadEncoder(seed) for seed in range(uncertainty.members)]
    encoder = EncoderEnsemble(members) if len(members) > 1 else members[0]
    loss = trained_objective(uncertainty, encoder)
    posterior = None
    if uncertainty.fits:
        generator = torch.Generator().manual_seed(0)
        batches, validation = tiny_batches(), tiny_batches(1)
        posterior = uncertainty.fit(encoder, batches, loss=loss, generator=generator, validation=validation)
    return uncertainty.bind(encoder, loss=loss, posterior=posterior, seed=0)


@pytest.mark.parametrize("name", list_uncertainties())
def test_no_image_is_less_sure_than_one_without_direction(name):
    images = torch.cat([tiny_batches(1)[0][0], torch.zeros(1, 3, 2, 2)])
    record = predictor(name)(images)
    assert not record.mean[-1].any()
    torch.testing.assert_close(record.mean[:-1].norm(dim=1), torch.ones(16))
    assert record.uncertainty[-1] == LEAST_SURE > record.uncertainty[:-1].max()
    assert all(torch.isfinite(value).all() for value in record.tensors().values())
    if record.concentration is not None:
        assert record.concentration[-1] < record.concentration[:-1].min()


def test_samples_of_an_embedding_without_direction_are_unit_vectors():
    record = predictor("vmf", samples=5)(torch.zeros(2, 3, 2, 2))
    torch.testing.assert_close(record.samples.norm(dim=2), torch.ones(2, 5))


@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e-13, 1e19, 1e30])
def test_directions_survive_lengths_whose_squares_do_not(scale):
    vectors = torch.tensor([[3.0, -4.0], [0.0, 0.0]]) * scale
    direction, length = polar(vectors)
    torch.testing.assert_close(direction, torch.tensor([[0.6, -0.8], [0.0, 0.0]]), rtol=1e-4, atol=0)
    torch.testing.assert_close(length, torch.tensor([5.0, 0.0]) * scale, rtol=1e-4, atol=0)
    record = DirectionalBatch.of_lengths(vectors).settled()
    assert all(torch.isfinite(value).all() for value in record.tensors().values())


def test_class_probabilities_of_an_embedding_without_direction_are_even():
    loss = create_loss("cosine", num_classes=4, dim=4)
    record = create_uncertainty("softmax").bind(DeadEncoder(), loss=loss, seed=0)(torch.zeros(1, 3, 2, 2))
    torch.testing.assert_close(record.probabilities, torch.full((1, 4), 0.25))
