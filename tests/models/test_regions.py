from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from probmetric.models._regions import cosine_regions


class Pooled(nn.Module):
    """A convolution, its mean over positions, and a linear head."""

    def __init__(self, pool: str = "mean", bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.head, self.pool = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5, bias=bias), pool

    def forward(self, images):
        maps = self.convolution(images)
        return self.head(maps.mean((2, 3)) if self.pool == "mean" else maps.amax((2, 3)))


def asked(encoder):
    images, others = torch.rand(2, 2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    units = normalize(encoder(others).detach(), dim=1)
    return images, units, (normalize(encoder(images), dim=1) * units).sum(dim=1)


def test_the_shares_of_a_mean_over_positions_are_the_cosine():
    encoder = Pooled()
    images, units, cosines = asked(encoder)
    shares = cosine_regions(encoder, images, units)
    assert shares.shape == (2, 4, 4)
    torch.testing.assert_close(shares.sum((1, 2)), cosines.detach(), rtol=0, atol=1e-6)
    # by hand: the features of each position, through the head, against the other image
    features = encoder.convolution(images).permute(0, 2, 3, 1) @ encoder.head.weight.T / 16
    expected = (features * units[:, None, None]).sum(-1) / encoder(images).norm(dim=1)[:, None, None]
    torch.testing.assert_close(shares, expected.detach(), rtol=0, atol=1e-6)


def test_what_belongs_to_no_region_is_the_rest():
    encoder = Pooled(bias=True)
    images, units, cosines = asked(encoder)
    shares = cosine_regions(encoder, images, units)
    expected = (units @ encoder.head.bias) / encoder(images).norm(dim=1)
    torch.testing.assert_close(cosines.detach() - shares.sum((1, 2)), expected.detach(), rtol=0, atol=1e-6)


def test_a_maximum_over_positions_counts_only_where_it_is():
    encoder = Pooled("maximum")
    images, units, _ = asked(encoder)
    shares = cosine_regions(encoder, images, units)
    places = encoder.convolution(images).flatten(2).argmax(dim=2)
    for number in range(2):
        assert set(shares[number].flatten().nonzero().flatten().tolist()) <= set(places[number].tolist())


def test_an_encoder_without_maps_has_no_regions():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    images = torch.rand(1, 3, 4, 4)
    assert cosine_regions(encoder, images, normalize(torch.rand(1, 4), dim=1)) is None


def test_tokens_of_patches_lie_on_their_grid():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.tokens = nn.Conv2d(3, 6, 4, 4), nn.Identity()

        def forward(self, images):
            tokens = self.patches(images).flatten(2).transpose(1, 2)
            return self.tokens(torch.cat([tokens.mean(1, keepdim=True), tokens], dim=1))[:, 1:].mean(1)

    encoder = Tokens()
    images, units, cosines = asked(encoder)
    shares = cosine_regions(encoder, images, units)
    assert shares.shape == (2, 4, 4)
    assert shares.sum((1, 2)).tolist() == pytest.approx(cosines.tolist(), abs=1e-6)
