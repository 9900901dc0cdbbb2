"""Every registered uncertainty, new ones included, keeps the interface. Nothing here names a method."""

import subprocess
import sys

import pytest
import torch
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.losses import create_loss
from probmetric.registry import UnknownNameError
from probmetric.uncertainty import REGISTRY, create_uncertainty, list_uncertainties
from probmetric.uncertainty.ensemble import EncoderEnsemble

NAMES = list_uncertainties()


def trained_objective(uncertainty, encoder):
    """The loss an encoder is trained with: the uncertainty's objective, after three steps, or a plain classifier."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss = create_loss("cosine", num_classes=4, dim=4)
        objective = uncertainty.objective(encoder, loss, num_images=48)
    if objective is None:
        return loss
    generator = torch.Generator().manual_seed(0)
    groups = [{"params": group["params"]} for group in objective.optimizer_groups()]
    optimizer = torch.optim.SGD([{"params": list(encoder.parameters())}, *groups], lr=0.01)
    encoder.train()
    objective.train()
    for images, labels in tiny_batches():
        value = objective.from_features(encoder.features(images), encoder.head, labels, generator=generator)
        assert value.ndim == 0
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return objective


def prepared(name):
    """Encoder, uncertainty and the arguments of `embed`: posterior (None where it does not fit) and loss."""
    uncertainty = create_uncertainty(name)
    members = [TinyEncoder(seed=seed) for seed in range(uncertainty.members)]
    encoder = EncoderEnsemble(members) if len(members) > 1 else members[0]
    loss = trained_objective(uncertainty, encoder)
    posterior = None
    if uncertainty.fits:
        generator = torch.Generator().manual_seed(0)
        posterior = uncertainty.fit(
            encoder, tiny_batches(), loss=loss, generator=generator, device="cpu", validation=tiny_batches(1)
        )
    return encoder, uncertainty, {"posterior": posterior, "loss": loss}


def test_names_and_options_are_read_without_torch():
    code = (
        "import sys; from probmetric.uncertainty import REGISTRY, list_uncertainties;"
        "[REGISTRY.options(name) for name in list_uncertainties()]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_embedding_is_a_directional_distribution(name):
    encoder, uncertainty, given = prepared(name)
    images = tiny_batches(1)[0][0]
    batch = uncertainty.bind(encoder, **given, seed=0)(images)
    size = len(images)
    assert len(batch) == size
    assert batch.mean.ndim == 2
    assert torch.allclose(batch.mean.norm(dim=1), torch.ones(size), atol=1e-5)
    assert batch.uncertainty.shape == (size,)
    assert batch.uncertainty.std() > 0
    for value in batch.tensors().values():
        assert value.shape[0] == size
        assert torch.isfinite(value).all()
        assert value.dtype == torch.float32
        assert not value.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_record_for_any_batch_size(name):
    encoder, uncertainty, given = prepared(name)
    images = tiny_batches(1)[0][0]
    whole = uncertainty.bind(encoder, **given, seed=1)(images)
    parts = uncertainty.bind(encoder, **given, seed=1)(images.split(5))
    for key, value in whole.tensors().items():
        assert torch.allclose(value, parts.tensors()[key], rtol=1e-3, atol=1e-5), key


@pytest.mark.parametrize("name", NAMES)
def test_embedding_changes_nothing(name):
    encoder, uncertainty, given = prepared(name)
    encoder.train()
    images = tiny_batches(1)[0][0]
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    state = torch.get_rng_state()
    given["loss"].train()
    uncertainty.bind(encoder, **given, seed=0)(images)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for part in (encoder, given["loss"]) for module in part.modules())
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_fitting_depends_on_the_generator_only(name):
    uncertainty = create_uncertainty(name)
    if not uncertainty.fits:
        with pytest.raises(TypeError, match="fits nothing"):
            uncertainty.fit(TinyEncoder(), tiny_batches(), generator=torch.Generator(), device="cpu")
        return
    first = prepared(name)[2]["posterior"]
    torch.rand(3)
    second = prepared(name)[2]["posterior"]
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) and first[key].device.type == "cpu" for key in first)
    assert all(first[key].is_contiguous() for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options_are_answered(name):
    with pytest.raises(UnknownNameError, match="has no option 'smaples'"):
        create_uncertainty(name, smaples=3)
    assert isinstance(REGISTRY.options(name), dict)


def test_unknown_name_is_answered():
    with pytest.raises(UnknownNameError, match="did you mean 'laplace'"):
        create_uncertainty("laplce")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_cuda_gives_the_cpu_record(name):
    """Weight draws and per-image noise are made on the CPU, so both devices see the same ones."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    encoder, uncertainty, given = prepared(name)
    images = tiny_batches(1)[0][0]
    expected = uncertainty.bind(encoder, **given, seed=0)(images)
    encoder.cuda()
    given["loss"].cuda()
    found = uncertainty.bind(encoder, **given, seed=0)([images.cuda()])
    assert found.mean.device.type == "cpu"
    assert torch.allclose(found.mean, expected.mean, atol=1e-3)
    assert torch.allclose(found.uncertainty, expected.uncertainty, rtol=1e-2)
