import itertools
import math

import numpy as np
import pytest
import scipy.stats

from probmetric.metrics import (
    classwise_calibration_error,
    fit_temperature,
    proxy_transport,
    scaled_probabilities,
    selective_metrics,
    sparsification,
    structure,
    structure_metrics,
)
from probmetric.metrics.selective import accuracy_by_coverage
from probmetric.retrieval import neighbour_votes, retrieval_metrics, sampled_retrieval_metrics
from probmetric.retrieval.votes import retrieval_votes, vote_reliability


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def space():
    generator = np.random.default_rng(0)
    labels = np.r_[np.repeat(np.arange(6), 7), 6]
    rows = unit(generator.normal(size=(7, 5))[labels] + 0.7 * generator.normal(size=(43, 5)))
    return rows.astype(np.float32), labels


def test_structure_by_definition(space):
    rows, labels = space
    found = structure_metrics(rows, labels)
    x = rows.astype(np.float64)
    s = np.linalg.svd(x, compute_uv=False)
    for name, values in (("richness_kl", s), ("richness_kl_without_first", s[1:])):
        p = values / values.sum()
        assert found[name] == pytest.approx(scipy.stats.entropy(np.full(len(p), 1 / len(p)), p), abs=1e-9)
    pairs = list(itertools.combinations(range(43), 2))
    g2 = np.mean([math.exp(-2 * np.sum((x[i] - x[j]) ** 2)) for i, j in pairs])
    assert found["uniformity"] == pytest.approx(g2, rel=1e-5)
    inner, variance, centres, to_centre = [], [], [], []
    for c in range(7):
        own = x[labels == c]
        centres.append(unit(own.mean(0)))
        distances = [1 - a @ b for a, b in itertools.combinations(own, 2)]
        if distances:
            inner.append(np.mean(distances))
            variance.append(np.var(distances))
            to_centre.append(np.mean(1 - own @ centres[-1]))
    between = np.mean([1 - a @ b for a, b in itertools.combinations(centres, 2)])
    assert found["density"] == pytest.approx(np.mean(inner) / between, rel=1e-5)
    assert found["cluster_diversity"] == pytest.approx(np.mean(variance), rel=1e-5)
    assert found["concentration_variance"] == pytest.approx(np.var(np.array(to_centre) / between), rel=1e-4)
    assert found["concentration_std"] ** 2 == pytest.approx(found["concentration_variance"])


def test_structure_of_more_rows_than_a_block(monkeypatch):
    monkeypatch.setattr(structure, "ROWS", 100)
    rows = unit(np.random.default_rng(2).normal(size=(1100, 3)) * [3, 2, 1]).astype(np.float32)
    found = structure_metrics(rows, np.arange(1100) % 7)
    x, (first, second) = rows.astype(np.float64), np.triu_indices(1100, 1)
    apart = np.exp(-2 * ((x[first] - x[second]) ** 2).sum(axis=1))
    assert found["uniformity"] == pytest.approx(apart.mean(), rel=1e-5)
    s = np.linalg.svd(x, compute_uv=False)
    assert found["richness_kl"] == pytest.approx(scipy.stats.entropy(np.full(3, 1 / 3), s / s.sum()), abs=1e-9)


@pytest.mark.parametrize("zeros", [[0], [3, 20], range(0, 43, 2), range(43)])
def test_uniformity_takes_rows_without_direction_as_they_are(space, zeros):
    rows, labels = space
    rows[list(zeros)] = 0
    x = rows.astype(np.float64)
    expected = np.mean([math.exp(-2 * np.sum((a - b) ** 2)) for a, b in itertools.combinations(x, 2)])
    assert structure_metrics(rows, labels)["uniformity"] == pytest.approx(expected, rel=1e-5)


def test_structure_of_degenerate_spaces():
    alone = structure_metrics(np.eye(3)[:1], [0])
    assert math.isnan(alone["uniformity"])
    assert math.isnan(alone["density"])
    one_class = structure_metrics(np.eye(3), [0, 0, 0])
    assert math.isnan(one_class["density"])
    assert one_class["richness_kl"] == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match="row 0 has norm 2"):
        structure_metrics(2 * np.eye(3), [0, 1, 2])


def test_proxy_transport_is_the_cheapest_assignment():
    generator = np.random.default_rng(1)
    rows, labels = generator.normal(size=(12, 3)), np.repeat([0, 1, 2], 4)
    proxies, owners = generator.normal(size=(6, 3)), np.repeat([0, 1, 2], 2)
    first, second = [], []
    for c in range(3):
        own, mine = rows[labels == c].astype(np.float32), proxies[owners == c].astype(np.float32)
        costs = [np.linalg.norm(mine - own[list(p)], axis=1) for p in itertools.permutations(range(4), 2)]
        first.append(min(cost.mean() for cost in costs))
        second.append(min((cost**2).mean() for cost in costs) ** 0.5)
    found = proxy_transport(rows, labels, proxies, owners)
    assert found["w1"] == pytest.approx(np.mean(first), rel=1e-6)
    assert found["w2"] == pytest.approx(np.mean(second), rel=1e-6)
    assert proxy_transport(rows, labels, rows[::2], labels[::2])["w1"] == 0.0
    with pytest.raises(ValueError, match="no class has both"):
        proxy_transport(rows, labels, proxies, owners + 5)


def test_selective_metrics_by_hand():
    doubt, right = np.array([0.5, 0.4, 0.3, 0.2, 0.1]), np.array([0, 1, 0, 1, 1])
    found = selective_metrics(doubt, right, coverages=(40, 100))
    risks = [0, 0, 1 / 3, 1 / 4, 2 / 5]
    assert found["aurc"] == pytest.approx(np.mean(risks))
    np.testing.assert_allclose(1 - accuracy_by_coverage(doubt, right), risks)
    assert found["error_auroc"] == pytest.approx(5 / 6)
    assert (found["accuracy_at_coverage_40"], found["accuracy_at_coverage_100"]) == (1.0, 0.6)
    assert found["ausc_gap_to_oracle"] == pytest.approx(sparsification(1 - right, right)[1] - found["ausc"])
    assert selective_metrics(1 - right, right)["ausc_gap_to_oracle"] == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(selective_metrics([0.1, 0.2], [1, 1])["error_auroc"])
    with pytest.raises(ValueError, match="coverages contain 0"):
        selective_metrics(doubt, right, coverages=(0,))


def test_error_auroc_is_paper_002s_auroc_of_the_norm():
    from sklearn.metrics import roc_auc_score

    generator = np.random.default_rng(2)
    norm, right = generator.random(80), generator.integers(0, 2, 80)
    assert selective_metrics(-norm, right)["error_auroc"] == pytest.approx(roc_auc_score(right, norm))


def test_temperature_minimises_the_likelihood():
    from scipy.optimize import minimize_scalar

    generator = np.random.default_rng(3)
    labels = generator.integers(0, 6, 400)
    logits = 5 * (generator.normal(size=(400, 6)) + 1.5 * np.eye(6)[labels])

    def loss(log_t):
        z = logits / np.exp(log_t)
        return np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(400), labels])

    best = minimize_scalar(loss, bounds=(-3, 5), method="bounded", options={"xatol": 1e-10})
    assert fit_temperature(logits, labels) == pytest.approx(math.exp(best.x), rel=1e-5)
    assert fit_temperature(logits[:, None].repeat(3, 1), labels) == pytest.approx(math.exp(best.x), rel=1e-5)
    assert fit_temperature([[1.0, 0.0]] * 2, [0, 0]) == pytest.approx(0.01, rel=0.2)
    assert fit_temperature([[1.0, 0.0]] * 2, [1, 1]) == pytest.approx(100, rel=1e-3)
    np.testing.assert_allclose(scaled_probabilities(logits, 2.0).sum(1), 1.0)
    with pytest.raises(ValueError, match="temperature is 0"):
        scaled_probabilities(logits, 0)


def test_classwise_calibration_by_definition():
    generator = np.random.default_rng(4)
    probabilities, labels = generator.dirichlet(np.ones(3), size=90), generator.integers(0, 3, 90)
    total = 0.0
    for c in range(3):
        bins = np.minimum((probabilities[:, c] * 5).astype(int), 4)
        for b in np.unique(bins):
            mine = bins == b
            total += mine.mean() * abs((labels[mine] == c).mean() - probabilities[mine, c].mean()) / 3
    assert classwise_calibration_error(probabilities, labels, bins=5) == pytest.approx(total)


def test_votes_of_sampled_neighbours_by_definition():
    generator = np.random.default_rng(5)
    labels = generator.integers(3, 7, 25)
    samples = unit(generator.normal(size=(25, 9, 4)))
    votes = np.empty((25, 9), dtype=int)
    for s in range(9):
        cosines = samples[:, s] @ samples[:, s].T
        np.fill_diagonal(cosines, -2)
        votes[:, s] = labels[cosines.argmax(1)]
    mode = scipy.stats.mode(votes, axis=1)
    predicted, confidence = neighbour_votes(samples, labels)
    np.testing.assert_array_equal(predicted, mode.mode)
    np.testing.assert_allclose(confidence, mode.count / 9)
    mean = np.mean([retrieval_metrics(samples[:, s], labels, normalize=True)["map_at_r"] for s in range(9)])
    assert sampled_retrieval_metrics(samples, labels)["map_at_r"] == pytest.approx(mean)


def retrieval_calibration(samples, labels):
    return vote_reliability(*retrieval_votes(samples, labels))[0]


def test_unanimous_votes_are_kept_unless_as_published():
    rows = np.repeat(np.eye(4)[[0, 0, 1, 1, 2, 2]][:, None], 5, axis=1)
    found = retrieval_calibration(rows, [0, 0, 1, 2, 1, 2])
    assert found["retrieval_ece"] == pytest.approx(2 / 3)
    assert math.isnan(found["retrieval_ece_as_published"])
    alone = retrieval_calibration(rows, [0, 0, 1, 2, 3, 3])  # 1 and 2 have no right answer to be found
    assert alone["retrieval_ece"] == 0.0
    with pytest.raises(ValueError, match="no class has two images"):
        retrieval_calibration(rows, np.arange(6))
