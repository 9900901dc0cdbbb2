import numpy as np
import pytest
import torch
from scipy.ndimage import convolve

from probmetric.testing.uncertainties import TinyEncoder
from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty.controls import KERNEL


@pytest.mark.parametrize("statistic", ["noise", "contrast", "low_contrast"])
def test_it_is_the_statistic_of_the_pixels(statistic):
    images = torch.rand(5, 3, 7, 9, generator=torch.Generator().manual_seed(0))
    encoder = TinyEncoder(inputs=3 * 7 * 9).eval()
    result = create_uncertainty("pixel_statistic", statistic=statistic).bind(encoder, seed=0)(images)
    grey = images.numpy().mean(1)
    if statistic == "noise":
        expected = [np.sort(np.abs(convolve(x, np.array(KERNEL), mode="nearest")).ravel())[31] for x in grey]
    else:
        expected = (1 if statistic == "contrast" else -1) * grey.reshape(5, -1).std(1, ddof=1)
    np.testing.assert_allclose(result.uncertainty, expected, rtol=1e-4)
    with torch.no_grad():
        assert torch.allclose(result.mean, torch.nn.functional.normalize(encoder(images), dim=1), atol=1e-6)


def test_smooth_images_have_no_noise():
    ramp = torch.linspace(0, 1, 8).expand(2, 1, 8, 8)
    encoder = TinyEncoder(inputs=64).eval()
    result = create_uncertainty("pixel_statistic").bind(encoder, seed=0)(ramp)
    assert torch.allclose(result.uncertainty, torch.zeros(2), atol=1e-6)


def test_inputs_that_are_no_images_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"pixel_statistic reads images \(B, C, H, W\); these are \(4, 12\)"):
        create_uncertainty("pixel_statistic").bind(TinyEncoder().eval(), seed=0)(torch.rand(4, 12))
