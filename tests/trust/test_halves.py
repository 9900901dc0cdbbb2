"""Each half is answered with the other half's certificate: the promise holds on average, and nothing is invented."""

import numpy as np
import pytest

from probmetric.trust import certify, certify_halves


def queries(count, seed, slope=0.5):
    """Doubts, and answers that are wrong more often where doubt is larger."""
    rng = np.random.default_rng(seed)
    doubt = rng.random(count)
    return doubt, rng.random(count) >= slope * doubt**2


def test_the_risk_is_kept():
    results = [certify_halves(*queries(2000, seed), risk=0.1, seed=seed) for seed in range(40)]
    risks = [result.wrong / result.answered for result in results]
    assert np.mean([risk > 0.1 for risk in risks]) <= 0.2
    assert 0.05 < np.mean(risks) < 0.1
    assert all(result.certified == 2 and 0.5 < result.answered < 0.95 for result in results)


def test_each_half_has_the_threshold_of_the_other():
    doubt, right = queries(1000, 3)
    first = np.zeros(1000, dtype=bool)
    first[np.random.default_rng(7).permutation(1000)[:500]] = True
    thresholds = [certify(doubt[half], right[half], risk=0.1, seed=7).threshold for half in (first, ~first)]
    answered = np.where(first, doubt <= thresholds[1], doubt <= thresholds[0])
    result = certify_halves(doubt, right, risk=0.1, seed=7)
    assert result.answered == answered.mean()
    assert result.wrong == (answered & ~right).mean()


@pytest.mark.parametrize("count", [2, 30])
def test_too_few_certify_nothing(count):
    result = certify_halves(np.arange(count), np.ones(count, dtype=bool), risk=0.05)
    assert (result.answered, result.wrong, result.certified) == (0.0, 0.0, 0)


def test_wrong_input():
    with pytest.raises(ValueError, match="two halves"):
        certify_halves([0.1], [True], risk=0.1)
    with pytest.raises(ValueError, match="right"):
        certify_halves([0.1, 0.2], [True], risk=0.1)
