"""Ensembles: averages of unaligned spaces collapse, the two sane combinations do not."""

import pytest
import torch
import torch.nn.functional as F
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty.ensemble import EncoderEnsemble


def random_rotation(seed, dim=4):
    return torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed)))[0]


def rotated_copies(count=3):
    """The same encoder seen in `count` different coordinate systems."""
    members = []
    for seed in range(count):
        member = TinyEncoder(seed=0)
        rotation = random_rotation(seed)
        with torch.no_grad():
            member.head.weight.copy_(rotation @ member.head.weight)
            member.head.bias.copy_(rotation @ member.head.bias)
        members.append(member)
    return EncoderEnsemble(members)


def embed(ensemble, **options):
    uncertainty = create_uncertainty("ensemble", members=len(ensemble.members), **options)
    posterior = uncertainty.fit(ensemble, tiny_batches(), generator=torch.Generator())
    return uncertainty.bind(ensemble, posterior=posterior, seed=0)(tiny_batches(1)[0][0]), posterior


@pytest.mark.parametrize("combine", ["concatenate", "aligned"])
def test_rotated_copies_agree_completely(combine):
    ensemble = rotated_copies()
    batch, _ = embed(ensemble, combine=combine)
    single = F.normalize(ensemble.members[0].eval()(tiny_batches(1)[0][0]), dim=1)
    assert torch.allclose(batch.mean @ batch.mean.T, single @ single.T, atol=1e-5)
    assert batch.uncertainty.max() < 1e-5


def test_published_average_sees_doubt_where_there_is_none():
    ensemble = rotated_copies()
    aligned, averaged = (embed(ensemble, combine=combine)[0] for combine in ("aligned", "average"))
    assert averaged.uncertainty.min() > 1000 * aligned.uncertainty.max()


def test_published_average_is_the_plain_mean():
    ensemble = EncoderEnsemble([TinyEncoder(seed=seed) for seed in range(3)])
    batch, _ = embed(ensemble, combine="average", score="std_sum", keep_samples=True)
    units = torch.stack([F.normalize(m.eval()(tiny_batches(1)[0][0]), dim=1) for m in ensemble.members]).detach()
    assert torch.allclose(batch.mean, F.normalize(units.mean(0), dim=1), atol=1e-6)
    assert torch.allclose(batch.uncertainty, units.std(0).sum(1), rtol=1e-4)
    assert torch.allclose(batch.samples, units.transpose(0, 1), atol=1e-6)


def test_concatenation_averages_similarities():
    ensemble = EncoderEnsemble([TinyEncoder(seed=seed) for seed in range(4)])
    batch, posterior = embed(ensemble, score="std_sum", keep_samples=True)
    units = torch.stack([F.normalize(m.eval()(tiny_batches(1)[0][0]), dim=1) for m in ensemble.members]).detach()
    assert torch.allclose(batch.mean @ batch.mean.T, (units @ units.transpose(1, 2)).mean(0), atol=1e-5)
    aligned = units @ posterior["rotations"]
    assert torch.allclose(batch.uncertainty, aligned.std(0).sum(1), rtol=1e-4)
    assert torch.allclose(batch.samples, aligned.transpose(0, 1), atol=1e-6)


@pytest.mark.parametrize("combine", ["concatenate", "aligned"])
def test_doubt_is_where_members_disagree(combine):
    """Copies of one encoder, the others' answers to some images replaced by those to another image."""
    ensemble = rotated_copies()
    images = tiny_batches(1)[0][0]
    uncertainty = create_uncertainty("ensemble", members=3, combine=combine)
    posterior = uncertainty.fit(ensemble, tiny_batches(), generator=torch.Generator())
    confused = images[:6].roll(1, dims=0)
    ensemble.members[1].register_forward_pre_hook(lambda _, arguments: (torch.cat([confused, arguments[0][6:]]),))
    result = uncertainty.bind(ensemble, posterior=posterior, seed=0)(images).uncertainty
    assert result[:6].min() > 1000 * result[6:].max()


def test_procrustes_rotations_are_orthogonal_and_the_first_is_the_identity():
    _, posterior = embed(EncoderEnsemble([TinyEncoder(seed=seed) for seed in range(3)]), combine="aligned")
    rotations = posterior["rotations"]
    assert torch.allclose(rotations @ rotations.transpose(1, 2), torch.eye(4).expand(3, 4, 4), atol=1e-5)
    assert torch.allclose(rotations[0], torch.eye(4), atol=1e-5)


def test_one_encoder_is_not_an_ensemble():
    with pytest.raises(ValueError, match="different seeds"):
        create_uncertainty("ensemble", combine="average").bind(TinyEncoder(), seed=0)(tiny_batches(1)[0][0])
    with pytest.raises(ValueError, match="at least 2"):
        create_uncertainty("ensemble", members=1)
    with pytest.raises(ValueError, match="at least 2 encoders"):
        EncoderEnsemble([TinyEncoder()])
