"""Tables of many methods and few seeds: equal ones are rarely told apart, different ones mostly are."""

import numpy as np
import pytest
from scipy.special import stdtrit

from probmetric.metrics.pairwise import pairwise_tests, pooled_variances
from probmetric.metrics.statistics import Sample

NOISE = {
    "equal": lambda g, shape: 0.006 * g.normal(size=shape),
    "unequal": lambda g, shape: 0.006 * np.exp(0.8 * g.normal(size=(shape[0], 1))) * g.normal(size=shape),
    "two kinds": lambda g, shape: np.where(g.random((shape[0], 1)) < 0.3, 0.03, 0.004) * g.normal(size=shape),
    "heavy tails": lambda g, shape: 0.006 * g.standard_t(2.5, size=shape),
    "skewed": lambda g, shape: 0.006 * (g.exponential(size=shape) - 1),
    "steps": lambda g, shape: 0.01 * np.round(0.6 * g.normal(size=shape)),
    "collapsing": lambda g, shape: 0.006 * g.normal(size=shape) - 0.1 * (g.random(shape) < 0.05),
}
TOGETHER = {
    "groups": lambda g, shape: 0.01 * (-1.0) ** np.arange(shape[0])[:, None] * g.normal(size=shape[1]),
    "by their own share": lambda g, shape: 0.07 * g.uniform(0.7, 1.3, size=(shape[0], 1)) * g.normal(size=shape[1]),
}
POWER = {"equal": 0.98, "unequal": 0.88, "two kinds": 0.7, "heavy tails": 0.88, "skewed": 0.95, "steps": 0.95}
POWER |= {"collapsing": 0.72}


def worse(values):
    """Which of the methods (K, seeds) lose a pair significantly."""
    names = [str(place) for place in range(len(values))]
    tests = pairwise_tests(
        {name: Sample(dict(enumerate(row.tolist()))) for name, row in zip(names, values, strict=True)}
    )
    return np.array(
        [
            any(test.p_value < 0.05 and test.difference < 0 for (a, _), test in tests.items() if a == name)
            for name in names
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds"), [(8, 3), (20, 3), (20, 5)])
@pytest.mark.parametrize("noise", NOISE)
def test_equal_methods_are_called_worse_in_at_most_five_per_cent_of_tables(noise, methods, seeds):
    """The best of k equal methods is the luckiest: compared with k - 1 others at 5 %, 11 to 15 % were wrong."""
    generator, tables = np.random.default_rng(methods + seeds), 200
    false = np.mean([worse(0.7 + NOISE[noise](generator, (methods, seeds))).any() for _ in range(tables)])
    assert false <= 0.05 + 2 * (0.05 * 0.95 / tables) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "level"), [(3, 0.1), (5, 0.06)])
@pytest.mark.parametrize("together", TOGETHER)
def test_methods_that_gain_and_lose_together_are_called_worse_in_few_tables(together, seeds, level):
    """Their differences spread more than two independent methods would: the level is not quite kept."""
    generator, tables = np.random.default_rng(4), 200
    rest = (0.003 * generator.normal(size=(20, seeds)) for _ in range(tables))
    false = np.mean([worse(0.7 + each + TOGETHER[together](generator, each.shape)).any() for each in rest])
    assert false <= level + 2 * (level * (1 - level) / tables) ** 0.5


def test_what_all_methods_share_in_a_draw_of_the_classes_changes_no_test():
    """Draws that differ by .07 once hid every difference below .2, and a method .03 better on each of three draws."""
    generator = np.random.default_rng(5)
    values = 0.7 + 0.006 * generator.normal(size=(20, 3))
    values[0] += 0.05
    assert worse(values)[1:].all()
    assert worse(values + np.array([-0.07, 0.0, 0.07])).tolist() == worse(values).tolist()


def test_a_seed_that_only_some_methods_have_is_left_out_of_the_variances():
    generator = np.random.default_rng(6)
    samples = {str(k): Sample(dict(enumerate((0.7 + 0.006 * generator.normal(size=3)).tolist()))) for k in range(20)}
    before = pairwise_tests(samples)["1", "2"]
    samples["0"] = Sample(samples["0"].values | {seed: 0.1 * seed for seed in range(3, 9)})
    assert pairwise_tests(samples)["1", "2"] == before


@pytest.mark.parametrize("noise", NOISE)
def test_a_difference_of_five_points_is_found_among_twenty_methods_of_five_seeds(noise):
    """Pair by pair, with each method's own variance, 25 to 60 % of them are."""
    generator, found = np.random.default_rng(0), []
    for _ in range(40):
        values = 0.7 + NOISE[noise](generator, (20, 5))
        values[10:] -= 0.05
        found.append(worse(values)[10:].mean())
    assert np.mean(found) >= POWER[noise]


def test_variances_are_drawn_towards_each_other_and_never_below_what_was_found():
    generator = np.random.default_rng(2)
    raw = 0.01**2 * generator.chisquare(2, size=500) / 2
    pooled, freedom = pooled_variances(raw, np.full(500, 2))
    assert np.all(pooled >= raw)
    assert freedom.min() > 50, "equal variances: nearly all methods say the same"
    unequal = raw * np.exp(1.6 * generator.normal(size=500))
    assert pooled_variances(unequal, np.full(500, 2))[1].max() < freedom.min() / 2


def test_a_small_table_is_tested_pair_by_pair():
    values = {"a": [0.70, 0.71, 0.72], "b": [0.60, 0.61, 0.63]}
    few = {name: Sample(dict(enumerate(row))) for name, row in values.items()}
    noisy = {f"m{k}": Sample(dict(enumerate(0.5 + 0.1 * np.random.default_rng(k).normal(size=3)))) for k in range(7)}
    assert pairwise_tests(few)["a", "b"].p_value < 0.01
    assert pairwise_tests(few | noisy)["a", "b"].p_value > 0.05, "the others say that methods spread by .1"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_detectable_difference_is_found_in_four_of_five_tables(seeds):
    """With a quantile of the normal distribution for the power, three seeds found it in .74 of them."""
    generator, found, tables = np.random.default_rng(seeds), 0, 4000
    noise = generator.normal(size=(tables, 2, seeds))
    for a, b in noise:
        stated = pairwise_tests({"a": Sample(dict(enumerate(a.tolist()))), "b": Sample(dict(enumerate(b.tolist())))})
        spread = np.std(a - b, ddof=1)
        factor = stated["a", "b"].detectable / spread  # of the true spread of the difference, the root of 2
        found += abs(np.mean(a - b) + factor * 2**0.5) > spread * stdtrit(seeds - 1, 0.975) / seeds**0.5
    assert found / tables == pytest.approx(0.8, abs=3 * (0.8 * 0.2 / tables) ** 0.5)
