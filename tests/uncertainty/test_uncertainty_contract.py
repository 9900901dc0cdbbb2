"""Every registered uncertainty, new ones included, keeps the interface. Nothing here names a method."""

import subprocess
import sys

import pytest
import torch
from uncertainty_helpers import tiny_batches

from probmetric.registry import UnknownNameError
from probmetric.testing import UncertaintyContract, cases
from probmetric.uncertainty import REGISTRY, create_uncertainty

NAMES = REGISTRY.names()
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
