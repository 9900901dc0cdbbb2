"""Every registered uncertainty, new ones included, keeps the interface. Nothing here names a method."""

import subprocess
import sys

import pytest
import torch
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.registry import UnknownNameError
from probmetric.testing import UncertaintyContract, cases
from probmetric.uncertainty import REGISTRY, create_uncertainty

NAMES = REGISTRY.names()
FITTED = [name for name in NAMES if REGISTRY.get(name).fits and not REGISTRY.get(name).trains_encoder]
globals().update(cases(UncertaintyContract, NAMES))


def test_names_and_options_are_read_without_torch():
    code = (
        "import sys; from probmetric.uncertainty import REGISTRY, list_uncertainties;"
        "[REGISTRY.options(name) for name in list_uncertainties()]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
    encoder, uncertainty, arguments = cases(UncertaintyContract, [name])[f"Test_{name}"]().prepared()
    images = tiny_batches(1)[0][0]
    expected = uncertainty.bind(encoder, **arguments, seed=0)(images)
    encoder.cuda()
    arguments["loss"].cuda()
    result = uncertainty.bind(encoder, **arguments, seed=0)([images.cuda()])
    assert result.mean.device.type == "cpu"
    assert torch.allclose(result.mean, expected.mean, atol=1e-3)
    assert torch.allclose(result.uncertainty, expected.uncertainty, rtol=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_runs_in_float32_inside_autocast(name):
    contract = cases(UncertaintyContract, [name])[f"Test_{name}"]()
    encoder, uncertainty, arguments = contract.prepared()
    images = tiny_batches(1)[0][0]
    expected = uncertainty.bind(encoder, **arguments, seed=0)(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        record = uncertainty.bind(encoder, **arguments, seed=0)(images)
        fitted = uncertainty.fit if uncertainty.fits and not uncertainty.trains_encoder else None
        options = {"loss": arguments["loss"], "validation": tiny_batches(1)}
        again = fitted and fitted(encoder, tiny_batches(), generator=torch.Generator().manual_seed(0), **options)
    for key, value in expected.tensors().items():
        assert torch.equal(record.tensors()[key], value), key
    for key, value in (again or {}).items():
        assert torch.equal(arguments["posterior"][key], value), key


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_encoder_of_half_precision_is_refused_and_images_of_it_are_read(dtype):
    encoder, uncertainty = TinyEncoder(), create_uncertainty("norm")
    images = tiny_batches(1)[0][0].to(dtype)
    assert uncertainty.bind(encoder, seed=0)(images).mean.dtype == torch.float32
    with pytest.raises(TypeError, match=rf"TinyEncoder computes in {dtype}.*Call encoder.float\(\)"):
        uncertainty.bind(encoder.to(dtype), seed=0)(images)


@pytest.mark.parametrize("name", ["softmax", "loss_prediction"])
def test_a_missing_loss_is_asked_for(name):
    uncertainty, batches = create_uncertainty(name), tiny_batches()

    def used():
        if uncertainty.fits:
            return uncertainty.fit(TinyEncoder(), batches, generator=torch.Generator())
        return uncertainty.bind(TinyEncoder(), seed=0)(batches[0][0])

    with pytest.raises(ValueError, match=r"loss.* defines no class probabilities; .* pass loss="):
        used()


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize(
    "batches", [[], [(torch.empty(0, 1, 8, 8), torch.empty(0, dtype=torch.int64))]], ids=["none", "empty"]
)
def test_nothing_to_fit_to_is_refused(name, batches):
    """The fit of what trains its encoder takes what training learnt, and needs no image."""
    encoder, uncertainty, arguments = cases(UncertaintyContract, [name])[f"Test_{name}"]().prepared()
    with pytest.raises(ValueError, match="fit got no images: the set it is fitted to is empty"):
        uncertainty.fit(encoder, batches, loss=arguments["loss"], generator=torch.Generator(), validation=batches)
