"""MC dropout: masks, sharing over a pass, and the training objective."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.losses import create_loss
from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty.mc_dropout import thinned_features


class ConvEncoder(nn.Module):
    """An encoder with dropout modules of its own."""

    def __init__(self, rate):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Dropout2d(rate), nn.ReLU(), nn.Flatten(), nn.Dropout(rate))
            self.head = nn.Linear(32, 4)

    def features(self, images):
        return self.body(images)

    def forward(self, images):
        return self.head(self.features(images))


def images():
    return tiny_batches(1)[0][0]


def test_feature_dropout_samples_are_thinned_networks():
    """Every sample is the head applied to features with a subset of units scaled by 1/(1 - rate)."""
    encoder = TinyEncoder().eval()
    batch = create_uncertainty("mc_dropout", rate=0.5, samples=64, keep_samples=True).bind(encoder, seed=0)(images())
    features = encoder.features(images()).detach()
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 2.0])] * 6)
    possible = F.normalize(
        torch.stack([encoder.head(features * mask).detach() for mask in masks]), dim=-1
    )  # (masks, B, M)
    distance = (batch.samples[:, :, None] - possible.transpose(0, 1)[:, None]).norm(dim=-1)  # (B, S, masks)
    assert distance.min(-1).values.max() < 1e-5
    shared = (distance.max(0).values < 1e-5).any(-1)
    assert shared.all(), "one mask must explain a draw for all images of the pass"


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_encoder_dropout_has_its_rate_and_keeps_the_mean(rate):
    encoder = ConvEncoder(rate).eval()
    encoder.body = encoder.body[:2]
    encoder.head = None
    with torch.no_grad():
        clean = encoder.body(images())
        draws = torch.stack([thinned_features(encoder, images(), seed) for seed in range(400)])
    zero = (draws == 0).all(dim=-1).all(dim=-1)  # (S, B, C)
    assert (zero == zero[:, :1]).all()
    assert abs(float(zero.float().mean()) - rate) < 0.05
    kept = draws[~zero] / clean.expand_as(draws)[~zero]
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-4)


def test_mode_is_restored():
    encoder = ConvEncoder(0.5).train()
    create_uncertainty("mc_dropout", samples=3).bind(encoder, seed=0)(images())
    assert all(module.training for module in encoder.modules())


def test_draws_do_not_depend_on_the_batch():
    encoder = ConvEncoder(0.4)
    uncertainty = create_uncertainty("mc_dropout", samples=5, keep_samples=True)
    whole = uncertainty.bind(encoder, seed=2)(images()).samples
    alone = torch.cat([uncertainty.bind(encoder, seed=2)(image[None]).samples for image in images()])
    assert torch.allclose(whole, alone, atol=1e-5)


class Functional(nn.Module):
    """Dropout that is no module."""

    def forward(self, x):
        return F.alpha_dropout(F.dropout(x, 0.3, self.training), 0.2, self.training)


class Paths(nn.Module):
    """A residual path that is left out of a whole image at a time."""

    def forward(self, x):
        return x + x.roll(1, dims=1) * (torch.rand(len(x), 1) > 0.5) if self.training else x


class Attention(nn.Module):
    """Dropout of attention weights, in a layer of the library and in a function."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.3, batch_first=True)

    def forward(self, x):
        tokens = x[:, None] * torch.arange(1.0, 4)[:, None]
        rate = 0.3 if self.training else 0.0
        return F.scaled_dot_product_attention(*[self.layer(tokens)] * 3, dropout_p=rate).mean(1)


class Recurrent(nn.Module):
    """A network that `torch.func.vmap` cannot follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(12, 12, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.layer(x[:, None].repeat(1, 3, 1))[0][:, -1]


class Spectral(nn.Module):
    """A layer whose buffers change while it trains, beside dropout."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 12))

    def forward(self, x):
        return F.dropout(self.layer(x), 0.5, self.training)


KINDS = {
    "AlphaDropout": lambda: nn.AlphaDropout(0.3),
    "FeatureAlphaDropout": lambda: nn.Sequential(nn.Unflatten(1, (12, 1)), nn.FeatureAlphaDropout(0.3), nn.Flatten()),
    "Dropout1d": lambda: nn.Sequential(nn.Unflatten(1, (12, 1)), nn.Dropout1d(0.3), nn.Flatten()),
    "Dropout3d": lambda: nn.Sequential(nn.Unflatten(1, (12, 1, 1, 1)), nn.Dropout3d(0.3), nn.Flatten()),
    "Dropout beside BatchNorm": lambda: nn.Sequential(nn.BatchNorm1d(12), nn.Dropout(0.3)),
    "functional": Functional,
    "attention": Attention,
    "residual paths": Paths,
    "recurrent": Recurrent,
    "spectral norm": Spectral,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_dropout_is_sampled_alike_for_all_images(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = TinyEncoder(features=12)
        encoder.trunk = nn.Sequential(nn.Flatten(), KINDS[kind]())
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    uncertainty = create_uncertainty("mc_dropout", rate=0.0, samples=6, keep_samples=True)
    uncertainty.check(encoder, images())
    before = torch.get_rng_state()
    record = uncertainty.bind(encoder, seed=0)(images())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())
    assert record.samples.std(1).sum(1).min() > 1e-3
    alone = uncertainty.bind(encoder, seed=0)(images()[3:4])
    torch.testing.assert_close(alone.samples[0], record.samples[3], rtol=1e-4, atol=1e-5)


def test_objective_thins_features_while_training_only():
    encoder = TinyEncoder().eval()
    loss = create_loss("cosine", num_classes=4, dim=4)
    objective = create_uncertainty("mc_dropout", rate=0.5).objective(encoder, loss, num_images=8)
    batch, labels = tiny_batches(1)[0]
    features = encoder.features(batch).detach()

    def value(seed):
        return objective.from_features(features, encoder.head, labels, generator=torch.Generator().manual_seed(seed))

    assert value(0) != value(1)
    objective.eval()
    assert torch.equal(value(0), loss(encoder.head(features), labels))


def test_nothing_to_drop_is_an_error():
    with pytest.raises(ValueError, match="drops nothing while it trains"):
        create_uncertainty("mc_dropout", rate=0.0).bind(TinyEncoder(), seed=0)(images())
    with pytest.raises(ValueError, match="set the rate above 0"):
        create_uncertainty("mc_dropout", rate=0.0).check(TinyEncoder().train(), images())
    with pytest.raises(ValueError, match=r"'rate' is 1\.0; allowed: a number at least 0, below 1"):
        create_uncertainty("mc_dropout", rate=1.0)
