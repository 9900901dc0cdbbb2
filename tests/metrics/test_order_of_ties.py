"""Metrics do not depend on the order in which images of equal confidence happen to come."""

from __future__ import annotations

import numpy as np
import pytest

from probmetric.metrics.calibration import calibration_error, reliability


@pytest.mark.parametrize("scheme", ["equal_mass", "equal_width"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_calibration_of_equal_confidences(scheme: str, norm: str) -> None:
    """Bins of equal mass cut through runs of equal confidences: 7 values among 60 images, 5 bins."""
    rng = np.random.default_rng(0)
    confidence, correct = rng.integers(1, 8, size=60) / 8, rng.random(60) < 0.5
    by_right, by_wrong = np.lexsort([correct, confidence]), np.lexsort([~correct, confidence])
    orders = [by_right, by_wrong, *(rng.permutation(60) for _ in range(5))]
    found = [calibration_error(confidence[o], correct[o], bins=5, scheme=scheme, norm=norm) for o in orders]
    assert found == pytest.approx([found[0]] * len(found), abs=1e-12)
    curves = [reliability(confidence[o], correct[o], bins=5, scheme=scheme) for o in orders]
    for curve in curves[1:]:
        np.testing.assert_allclose(curve.accuracy, curves[0].accuracy, atol=1e-12)
