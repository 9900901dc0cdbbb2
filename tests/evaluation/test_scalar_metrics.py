import math
import subprocess
import sys

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings

from probmetric.evaluation import (
    agreement,
    auroc,
    bootstrap_interval,
    calibration_error,
    classification_metrics,
    clustering_metrics,
    holm,
    image_variance,
    mean_interval,
    nearest_neighbours,
    ood_metrics,
    paired_test,
    reliability,
    roc_curve,
    seeds_needed,
    sparsification,
    spearman,
)

coarse = st.integers(-3, 3).map(float)
scores = hnp.arrays(np.float64, st.integers(1, 40), elements=coarse)


@settings(max_examples=100, deadline=None)
@given(scores, scores)
def test_ood_metrics_equal_scikit_learn(inside, outside):
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score

    truth, score = np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]
    found = ood_metrics(inside, outside)
    precision, recall, _ = precision_recall_curve(truth, score)
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, score), abs=1e-12)
    assert found["auprc"] == pytest.approx(average_precision_score(truth, score), abs=1e-12)
    assert found["auprc_trapezoid"] == pytest.approx(auc(recall, precision), abs=1e-12)
    assert found["base_rate"] == pytest.approx(truth.mean())
    flags = [np.mean(inside >= t) for t in np.unique(outside) if np.mean(outside >= t) >= 0.95]
    assert found["fpr_at_95"] == pytest.approx(min(flags))
    rates = roc_curve(inside, outside)
    assert np.trapezoid(rates["tpr"], rates["fpr"]) == pytest.approx(found["auroc"], abs=1e-12)


def test_thinned_roc_keeps_its_ends_and_its_area():
    generator = np.random.default_rng(0)
    inside, outside = generator.normal(size=3000), generator.normal(size=2000) + 1
    rates = roc_curve(inside, outside, points=200)
    assert len(rates["fpr"]) <= 200
    assert (rates["fpr"][0], rates["tpr"][0], rates["fpr"][-1], rates["tpr"][-1]) == (0, 0, 1, 1)
    assert np.trapezoid(rates["tpr"], rates["fpr"]) == pytest.approx(auroc(inside, outside), abs=2e-3)


def test_sparsification_by_hand():
    curve, area = sparsification(np.arange(100.0), np.r_[np.ones(50), np.zeros(50)])
    kept = 100 - np.arange(99)
    np.testing.assert_allclose(curve.accuracy, np.minimum(1.0, 50 / kept))
    assert area == pytest.approx(np.trapezoid(np.minimum(1.0, 50 / kept), dx=1 / 98))
    everything_right = sparsification(np.arange(7.0), np.ones(7))[1]
    assert everything_right == pytest.approx(1.0)
    assert sparsification(np.arange(7.0), np.ones(7), scaling="as_published")[1] == pytest.approx(98 / 99)


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float64, 12, elements=coarse), hnp.arrays(np.bool_, 12), st.randoms())
def test_sparsification_does_not_depend_on_input_order(doubt, correct, random):
    order = random.sample(range(12), 12)
    here, there = sparsification(doubt, correct), sparsification(doubt[order], correct[order])
    np.testing.assert_allclose(here[0].accuracy, there[0].accuracy, atol=1e-12)
    assert here[1] == pytest.approx(there[1])


def test_sparsification_of_ties_is_the_mean_over_orders():
    curve, _ = sparsification(np.zeros(10), np.r_[np.ones(3), np.zeros(7)])
    np.testing.assert_allclose(curve.accuracy, 0.3)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.sampled_from(["l1", "l2"]))
def test_calibration_error_by_definition(seed, bins, norm):
    generator = np.random.default_rng(seed)
    sure = generator.random(generator.integers(1, 60))
    right = generator.random(len(sure)) < sure
    width = [min(int(c * bins), bins - 1) for c in sure]
    mass = [math.floor(rank * bins / len(sure)) for rank in np.argsort(np.argsort(sure))]
    for scheme, index in (("equal_width", width), ("equal_mass", mass)):
        total = 0.0
        for b in range(bins):
            mine = np.array(index) == b
            if mine.any():
                gap = abs(right[mine].mean() - sure[mine].mean())
                total += mine.mean() * (gap if norm == "l1" else gap**2)
        expected = total if norm == "l1" else math.sqrt(total)
        assert calibration_error(sure, right, bins=bins, scheme=scheme, norm=norm) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_equals_torchmetrics():
    import torch
    from torchmetrics.functional.classification import binary_calibration_error

    generator = np.random.default_rng(3)
    sure = generator.random(500).astype(np.float32)
    right = generator.random(500) < sure
    for ours, theirs in (("l1", "l1"), ("l2", "l2")):
        peer = binary_calibration_error(torch.from_numpy(sure), torch.from_numpy(right).int(), n_bins=15, norm=theirs)
        assert calibration_error(sure, right, scheme="equal_width", norm=ours) == pytest.approx(float(peer), abs=1e-6)


def test_open_last_bin_drops_certain_answers():
    sure, right = np.r_[np.ones(40), np.full(60, 0.5)], np.r_[np.zeros(40), np.ones(30), np.zeros(30)]
    options = {"bins": 10, "scheme": "equal_width"}
    assert calibration_error(sure, right, **options) == pytest.approx(0.4)
    assert calibration_error(sure, right, **options, last_bin="open") == 0.0
    with pytest.raises(ValueError, match="drops them all"):
        reliability(np.ones(3), np.ones(3), last_bin="open")


def test_classification_metrics_equal_scikit_learn():
    from sklearn.metrics import accuracy_score, log_loss

    generator = np.random.default_rng(4)
    probabilities = generator.dirichlet(np.ones(5), size=200)
    labels = generator.integers(0, 5, 200)
    found = classification_metrics(probabilities, labels)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, probabilities.argmax(1)))
    assert found["nll"] == pytest.approx(log_loss(labels, probabilities, labels=range(5)))
    assert found["brier"] == pytest.approx(((probabilities - np.eye(5)[labels]) ** 2).sum(1).mean())
    with pytest.raises(ValueError, match="labels: entry 0 is 9, but probabilities have 5 columns"):
        classification_metrics(probabilities, np.full(200, 9))
    with pytest.raises(ValueError, match="row 0 sums to"):
        classification_metrics(probabilities * 3, labels)


partitions = st.integers(1, 40).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 5), min_size=n, max_size=n)] * 2))


@settings(max_examples=100, deadline=None)
@given(partitions)
def test_agreement_equals_scikit_learn(pair):
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import pair_confusion_matrix

    a, b = map(np.array, pair)
    found = agreement(a, b)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(a, b), abs=1e-9)
    assert found["ami"] == pytest.approx(adjusted_mutual_info_score(a, b), abs=1e-7)
    (_, fp), (fn, tp) = pair_confusion_matrix(a, b)
    identical = fp == fn == 0
    assert found["f1"] == pytest.approx(1.0 if identical else 2 * tp / (2 * tp + fp + fn), abs=1e-12)


def test_clustering_of_separate_groups_is_perfect_and_seeded():
    generator = np.random.default_rng(5)
    rows = np.repeat(np.eye(4), 10, axis=0) + 0.01 * generator.normal(size=(40, 4))
    labels = np.repeat(np.arange(4), 10)
    assert clustering_metrics(rows, labels, seed=3) == clustering_metrics(rows, labels, seed=3)
    assert max(clustering_metrics(rows, labels, seed=s)["nmi"] for s in range(5)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="clusters is 41; expected 1 to 40"):
        clustering_metrics(rows, labels, clusters=41)


@pytest.mark.parametrize("count", [1, 10])
def test_faiss_and_exact_neighbours_are_the_same_lists(count):
    generator = np.random.default_rng(6)
    rows = generator.normal(size=(300, 16)).astype(np.float32)
    rows = np.concatenate([rows, rows[:50], rows[:50]])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    exact = nearest_neighbours(rows, k=count, method="exact")
    fast = nearest_neighbours(rows, k=count, method="faiss")
    np.testing.assert_array_equal(exact.indices, fast.indices)
    np.testing.assert_array_equal(exact.similarity, fast.similarity)
    cosines = rows.astype(float) @ rows.astype(float).T
    np.fill_diagonal(cosines, -2)
    np.testing.assert_allclose(exact.similarity, -np.sort(-cosines, axis=1)[:, :count], atol=1e-7)
    assert not (exact.indices == np.arange(len(rows))[:, None]).any()
    with pytest.raises(ValueError, match="k is 400"):
        nearest_neighbours(rows, k=400)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float64, 15, elements=coarse), hnp.arrays(np.float64, 15, elements=coarse))
def test_spearman_equals_scipy(a, b):
    found = spearman(a, b)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)


def test_intervals_and_tests_equal_scipy():
    generator = np.random.default_rng(7)
    a, b = generator.normal(size=5), generator.normal(size=5) + 0.3
    mean, half = mean_interval(a, 0.9)
    low, high = scipy.stats.t.interval(0.9, 4, loc=a.mean(), scale=scipy.stats.sem(a))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    found, peer = paired_test(a, b), scipy.stats.ttest_rel(a, b)
    assert found.p_value == pytest.approx(peer.pvalue)
    assert found.effect_size * math.sqrt(5) == pytest.approx(peer.statistic)
    assert math.isnan(mean_interval([1.0])[1])
    assert math.isnan(paired_test([1.0], [2.0]).p_value)
    assert paired_test([1.0, 2.0], [1.0, 2.0]).p_value == 1.0
    equal = paired_test([2.0, 3.0, 4.0], [1.9, 2.9, 3.9])
    assert equal.p_value == pytest.approx(2 * scipy.stats.t.sf(0.1 * math.sqrt(3) / 0.1, 2))
    assert math.isnan(paired_test([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).p_value)
    with pytest.raises(ValueError, match="b has 4 entries, expected 5"):
        paired_test(a, b[:4])


def test_the_variance_due_to_images_is_found_among_seeds():
    """Simulated seeds x images: the estimate's mean is Var(image) / N, whatever seeds and rest add."""
    generator = np.random.default_rng(2)
    shape, found = (5, 60), []
    for _ in range(400):
        parts = 0.5 * generator.normal(size=(5, 1)), 0.3 * generator.normal(size=(1, 60)), generator.normal(size=shape)
        found.append(image_variance(sum(parts)))
    truth = 0.09 / 60
    assert np.mean(found) == pytest.approx(truth, rel=0.15)
    assert image_variance(np.ones((3, 1))) == 0.0
    assert image_variance([[0.0, 3.0, 6.0]]) == pytest.approx(9.0 / 3)  # one seed: all spread counts
    assert image_variance([[0.0, 1.0], [1.0, 0.0]]) == 0.0  # no image is better in both seeds
    with pytest.raises(ValueError, match=r"expected \(seeds, images\)"):
        image_variance([1.0, 2.0])


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(0, 1)))
def test_holm_by_definition(p_values):
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    expected, running = np.empty(len(p_values)), 0.0
    for step, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[i]))
        expected[i] = running
    np.testing.assert_allclose(holm(p_values), expected)


def test_holm_leaves_missing_tests_out():
    np.testing.assert_allclose(holm([0.02, np.nan, 0.03]), [0.04, np.nan, 0.04])


def test_bootstrap_covers_the_mean_and_is_seeded():
    values = np.random.default_rng(8).random(400)
    low, high = bootstrap_interval(values, seed=1)
    assert (low, high) == bootstrap_interval(values, seed=1)
    mean, half = mean_interval(values)
    assert low == pytest.approx(mean - half, abs=0.2 * half)
    assert high == pytest.approx(mean + half, abs=0.2 * half)


@pytest.mark.parametrize(("count", "resamples"), [(7, 50), (1, 3), (3_000_000, 3)])
def test_bootstrap_by_definition(count, resamples):
    """One resample after the other, whatever the blocks; of three million values a block is one resample."""
    values = np.random.default_rng(count).random(count)
    generator = np.random.default_rng(5)
    means = [values[generator.integers(0, count, count)].mean() for _ in range(resamples)]
    expected = np.quantile(means, [0.1, 0.9])
    assert bootstrap_interval(values, confidence=0.8, resamples=resamples, seed=5) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("wrong", [{"confidence": 0.0}, {"confidence": 1.0}, {"resamples": 0}])
def test_bootstrap_refuses(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is {next(iter(wrong.values()))}; expected"):
        bootstrap_interval([1.0, 2.0], **wrong)
    assert bootstrap_interval([1.0, 1.0], resamples=1) == (1.0, 1.0)


@pytest.mark.parametrize("level", [0.05, 0.005])
@pytest.mark.parametrize("power", [0.8, 0.95])
@pytest.mark.parametrize("effect", [0.3, -0.3, 0.8, 2.0, 5.0])
def test_seeds_needed_by_the_noncentral_t_distribution(effect, power, level):
    def power_of(count: int) -> float:
        critical = scipy.stats.t.ppf(1 - level / 2, count - 1)
        return float(scipy.stats.nct.sf(critical, count - 1, abs(effect) * math.sqrt(count)))

    needed = seeds_needed(effect, level=level, power=power)
    assert power_of(needed) >= power
    assert needed == 3 or power_of(needed - 1) < power
    assert seeds_needed(effect, level=level, power=power, most=needed) == needed
    assert needed == 3 or seeds_needed(effect, level=level, power=power, most=needed - 1) is None


def test_no_effect_needs_no_number_of_seeds():
    assert seeds_needed(0.0) is None
    assert seeds_needed(float("nan")) is None


def test_small_evaluation_loads_no_heavy_package():
    code = (
        "import sys, numpy as np, probmetric.evaluation as e; x = np.eye(4); y = [0, 0, 1, 1]; "
        "e.retrieval_metrics(x, y); e.ood_metrics([0.], [1.]); e.sparsification([0., 1.], [1, 0]); "
        "e.clustering_metrics(x, y); e.nearest_neighbours(x); "
        "print([m for m in ('torch', 'sklearn', 'pandas', 'scipy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
