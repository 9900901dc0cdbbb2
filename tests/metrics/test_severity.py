import numpy as np
import pytest
from scipy.stats import rankdata

from probmetric.metrics.severity import by_severity


def test_bins_hold_as_many_answers_each_and_their_means():
    generator = np.random.default_rng(0)
    strength, own, stated = generator.random(80), generator.random(80), generator.random(80)
    right = generator.random(80) < 0.6
    found = by_severity(strength, right, own, stated, bins=4)
    order = np.argsort(strength).reshape(4, 20)
    assert found["answers"] == [20.0] * 4
    assert by_severity(np.arange(10.0), np.ones(10), own[:10], bins=4)["answers"] == [3.0, 2.0, 3.0, 2.0]
    assert found["strength"] == pytest.approx(strength[order].mean(axis=1), abs=1e-6)
    assert found["wrong"] == pytest.approx(1 - right[order].mean(axis=1), abs=1e-6)
    assert found["stated"] == pytest.approx(1 - stated[order].mean(axis=1), abs=1e-6)
    assert found["rank"] == pytest.approx(((rankdata(own) - 1) / 79)[order].mean(axis=1), abs=1e-6)


def test_few_strengths_are_their_own_bins_and_unknown_ones_are_left_out():
    found = by_severity([0.5, 0.5, np.nan, 1.5], [1, 0, 0, 1], [1.0, 2.0, 9.0, 3.0])
    assert found["strength"] == [0.5, 1.5]
    assert found["wrong"] == [0.5, 0.0]
    assert found["rank"] == [0.25, 1.0]
    assert "stated" not in found
    assert by_severity([np.nan, np.nan], [1, 0], [1.0, 2.0]) == {}


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="doubt has 1 entries, expected 2"):
        by_severity([0.1, 0.2], [1, 0], [1.0])
