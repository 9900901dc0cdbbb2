import itertools
import math
import subprocess
import sys

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings

from probmetric.metrics import (
    agreement,
    auroc,
    calibration_error,
    classification_metrics,
    classwise_calibration_error,
    clustering_metrics,
    holm,
    mean_interval,
    ood_metrics,
    paired_test,
    reliability,
    roc_curve,
    seeds_needed,
    selective_metrics,
    sign_flip_test,
    sparsification,
    spearman,
)
from probmetric.metrics.calibration import EqualMass
from probmetric.metrics.pairwise import pairwise_tests
from probmetric.metrics.selective import augrc, coverage_at
from probmetric.metrics.statistics import (
    NO_UNITS,
    Sample,
    UnitVariance,
    shared_unit_variance,
    unit_variance,
)
from probmetric.metrics.units import Images, error_of, of_auroc

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
    np.testing.assert_allclose(curve.removed, np.arange(99) / 100)
    np.testing.assert_allclose(curve.accuracy, np.minimum(1.0, 50 / kept))
    assert area == pytest.approx(np.trapezoid(np.minimum(1.0, 50 / kept), dx=1 / 98))
    right = np.array([1, 1, 0, 1, 0, 0, 1])
    thinned = [right[: 7 - 7 * share // 100].mean() for share in range(99)]
    np.testing.assert_allclose(sparsification(np.arange(7.0), right)[0].accuracy, thinned)
    everything_right = sparsification(np.arange(7.0), np.ones(7))[1]
    assert everything_right == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"^scaling is 'half'"):
        sparsification([0.5], [1], scaling="half")
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


def test_bins_that_are_made_once_are_those_made_for_each_draw():
    generator = np.random.default_rng(0)
    sure, right = generator.integers(0, 40, 300) / 39, generator.integers(0, 2, 300)
    binned = EqualMass(sure, 15)
    for _ in range(20):
        rows = generator.integers(0, 300, 300)
        assert binned.reliability(right, rows).error("l1") == calibration_error(sure[rows], right[rows])


def test_bins_of_more_confidences_than_sixteen_bits_tell_apart():
    generator = np.random.default_rng(1)
    sure, right = generator.permutation(70_000) / 70_000, generator.integers(0, 2, 70_000)
    bins = np.argsort(sure).reshape(10, -1)
    gaps = np.abs(right[bins].mean(axis=1) - sure[bins].mean(axis=1))
    assert calibration_error(sure, right, bins=10) == pytest.approx(gaps.mean())


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
    with pytest.raises(
        ValueError, match=r"^every confidence is exactly 1 and last_bin='open' drops them all; use 'closed'\.$"
    ):
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
    labels = np.argmax(
        generator.random((200, 1)) < probabilities.cumsum(axis=1), axis=1
    )  # some bins too sure, some not
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    for name, options in {"ece": {}, "ece_l2": {"norm": "l2"}, "ece_equal_width": {"scheme": "equal_width"}}.items():
        value = classification_metrics(probabilities, labels, bins=7)[name]
        assert value == calibration_error(sure, right, bins=7, **options), name
    for name, scheme in {"ece_classwise": "equal_width", "ece_adaptive": "equal_mass"}.items():
        value = classification_metrics(probabilities, labels)[name]
        assert value == classwise_calibration_error(probabilities, labels, bins=15, scheme=scheme), name
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


def test_the_variance_due_to_units_is_found_among_seeds():
    """Simulated seeds x units: the estimate's mean is Var(unit) / U, whatever seeds and rest add."""
    generator = np.random.default_rng(2)
    shape, found = (5, 60), []
    for _ in range(400):
        parts = 0.5 * generator.normal(size=(5, 1)), 0.3 * generator.normal(size=(1, 60)), generator.normal(size=shape)
        found.append(unit_variance(sum(parts)).variance)
    truth = 0.09 / 60
    assert np.mean(found) == pytest.approx(truth, rel=0.15)
    assert unit_variance(np.ones((3, 1))) == NO_UNITS
    assert unit_variance([[0.0, 3.0, 6.0]]) == (pytest.approx(9.0 / 3), 2)  # one seed: all spread counts
    assert unit_variance([[0.0, 1.0], [1.0, 0.0]]) == (0.0, 1)  # no unit is better in both seeds
    with pytest.raises(ValueError, match=r"expected \(seeds, units\)"):
        unit_variance([1.0, 2.0])


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


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=coarse))
def test_a_sign_flip_test_by_its_definition(differences):
    def largest(signs):
        means = [
            sum(s * d for s, d in zip(signs, row, strict=True)) / math.sqrt(sum(d * d for d in row))
            if any(row)
            else 0.0
            for row in differences
        ]
        return max(means), means

    flips = [largest(signs)[0] for signs in itertools.product([1, -1], repeat=differences.shape[1])]
    seen = largest([1] * differences.shape[1])[1]
    expected = [np.mean([flip >= mean - 1e-12 for flip in flips]) for mean in seen]
    np.testing.assert_allclose(sign_flip_test(differences), expected)


@pytest.mark.parametrize(("units", "methods", "shared"), [(8, 1, 0.0), (8, 5, 0.9), (30, 1, 0.0), (30, 20, 0.0)])
def test_methods_that_are_no_better_seldom_pass_a_sign_flip_test(units, methods, shared):
    """Whether they differ by themselves or mostly together; copies of one cost nothing."""
    generator, passed = np.random.default_rng(0), 0
    for _ in range(400):
        together, each = generator.normal(size=units), generator.normal(size=(methods, units))
        differences = shared**0.5 * together + (1 - shared) ** 0.5 * each
        p_values = sign_flip_test(differences)
        passed += p_values.min() <= 0.1
        assert sign_flip_test(np.repeat(differences, 2, axis=0))[::2] == pytest.approx(p_values, abs=1e-12)
    assert 0.04 <= passed / 400 <= 0.1 + 3.1 * math.sqrt(0.1 * 0.9 / 400)


def test_a_sign_flip_test_finds_what_is_better():
    generator = np.random.default_rng(0)
    better = generator.normal(0.5, 0.5, size=30)
    p_values = sign_flip_test([better, generator.normal(size=30), -better])
    assert p_values[0] == 1 / 4097  # the differences as they are, and 4,096 flips
    assert p_values[2] == 1
    with pytest.raises(ValueError, match=r"^differences has shape \(3,\); expected \(K, U\)"):
        sign_flip_test([0.1, 0.2, 0.3])


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
        "import sys, numpy as np, probmetric.metrics as m, probmetric.retrieval as r; x = np.eye(4); y = [0, 0, 1, 1]; "
        "r.retrieval_metrics(x, y); m.ood_metrics([0.], [1.]); m.sparsification([0., 1.], [1, 0]); "
        "m.clustering_metrics(x, y); r.search(x); "
        "print([m for m in ('torch', 'sklearn', 'pandas', 'scipy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (mean_interval, "values"),
        (lambda bad: paired_test(bad, [1.0, 2.0]), "a"),
        (lambda bad: paired_test([1.0, 2.0], bad), "b"),
        (lambda bad: reliability(bad, [0, 1]), "confidence"),
        (lambda bad: sparsification(bad, [0, 1]), "uncertainty"),
        (lambda bad: selective_metrics(bad, [0, 1]), "uncertainty"),
    ],
)
def test_the_argument_with_a_number_that_is_none_is_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}: entry 1 is not finite"):
        call([0.5, math.nan])


@pytest.mark.parametrize("call", [reliability, sparsification, selective_metrics])
def test_answers_are_right_or_wrong_one_for_each_doubt(call):
    with pytest.raises(ValueError, match=r"^correct: entry 1 is 2.0"):
        call([0.1, 0.2], [0, 2])
    for wrong in ([1, 0, 1], [1]):
        with pytest.raises(ValueError, match=f"^correct has {len(wrong)} entries, expected 2"):
            call([0.1, 0.2], wrong)


def test_classwise_calibration_error_is_the_mean_over_the_columns():
    generator = np.random.default_rng(11)
    probabilities, labels = generator.dirichlet(np.ones(3), size=200), generator.integers(0, 3, 200)

    def expected(**options):
        columns = [calibration_error(probabilities[:, c], labels == c, **options) for c in range(3)]
        return pytest.approx(np.mean(columns))

    found = classwise_calibration_error(probabilities, labels)
    assert found == expected(bins=15, scheme="equal_width", norm="l1")
    options = {"bins": 7, "scheme": "equal_mass", "norm": "l2"}
    assert classwise_calibration_error(probabilities, labels, **options) == expected(**options)
    assert classwise_calibration_error([[1.0005, 0.0]], [0]) == 0.0, "rounding above 1 is 1"
    with pytest.raises(ValueError, match=r"^labels has shape \(2,\); expected \(200,\), .* row of probabilities"):
        classwise_calibration_error(probabilities, labels[:2])


def test_a_reliability_diagram_by_hand():
    sure, right = [1.0, 0.0, 0.4, 0.5, 0.5, 0.9], [1, 0, 1, 1, 0, 0]
    wide = reliability(sure, right, bins=2, scheme="equal_width")
    assert (wide.confidence.tolist(), wide.accuracy.tolist()) == (pytest.approx([0.2, 0.725]), [0.5, 0.5])
    assert wide.count.tolist() == [2.0, 4.0]
    mass = reliability(sure, right, bins=3)  # the two of confidence .5 share their mean correctness
    assert mass.confidence.tolist() == pytest.approx([0.2, 0.5, 0.95])
    assert mass.accuracy.tolist() == [0.5, 0.5, 0.5]
    open_end = reliability(sure, right, bins=1, scheme="equal_width", last_bin="open")
    assert (open_end.count.tolist(), open_end.accuracy.tolist()) == ([5.0], [0.4])
    generator = np.random.default_rng(12)
    sure, right = generator.random(300), generator.random(300) < 0.5
    assert calibration_error(sure, right) == reliability(sure, right, bins=15, scheme="equal_mass").error("l1")
    assert len(reliability(sure, right).count) == len(reliability(sure, right, bins=15).count)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 0}, "^bins is 0; expected 1 to 1000000"),
        ({"scheme": "wide"}, "^scheme is 'wide'; allowed: 'equal_mass', 'equal_width'"),
        ({"last_bin": "shut"}, "^last_bin is 'shut'; allowed: 'closed', 'open'"),
        ({"norm": "l3"}, "^norm is 'l3'; allowed: 'l1', 'l2'"),
        ({"confidence": [0.5, -1e-9]}, "^confidence: entry 1 is -1e-09; expected numbers between 0 and 1"),
        ({"confidence": [1.00001, 0.5]}, "^confidence: entry 0 is 1.00001; expected"),
    ],
)
def test_calibration_says_what_it_cannot_use(options, message):
    with pytest.raises(ValueError, match=message):
        calibration_error(**{"confidence": [0.5, 0.6], "correct": [0, 1]} | options)
    assert calibration_error([1.0000005, 0.0], [1, 0]) == 0.0, "rounding above 1 is 1"


def test_selective_metrics_by_hand():
    """Ten answers, the surest right, the second wrong, ...: accuracies of the k surest by hand."""
    right = np.array([1, 0, 1, 1, 1, 1, 1, 1, 1, 0])
    found = selective_metrics(np.arange(10.0), right, coverages=(1, 15, 80, 100))
    accuracy = np.cumsum(right) / np.arange(1, 11)
    oracle = np.r_[np.ones(8), 8 / 9, 0.8]
    assert found["aurc"] == pytest.approx(1 - accuracy.mean())
    assert found["e_aurc"] == pytest.approx((oracle - accuracy).mean())
    assert found["risk_at_coverage_80"] == pytest.approx(1 / 8)
    assert found["coverage_at_risk_5"] == 0.1
    assert found["error_auroc"] == pytest.approx((1 + 8) / 16)
    _, area = sparsification(np.arange(10.0), right)
    assert (found["ausc"], found["ausc_as_published"]) == pytest.approx((area, area * 98 / 99))
    assert found["ausc_gap_to_oracle"] == pytest.approx(sparsification(1 - right, right)[1] - area)
    given_and_wrong = np.r_[0.0, np.cumsum(1 - right) / 10]
    assert found["augrc"] == pytest.approx(np.trapezoid(given_and_wrong, dx=0.1))
    assert [found[f"accuracy_at_coverage_{c}"] for c in (1, 15, 80, 100)] == pytest.approx([1.0, 0.5, 7 / 8, 0.8])
    assert selective_metrics(np.arange(9.0), np.arange(9) < 1)["error_auroc"] == 1.0
    assert math.isnan(selective_metrics(np.arange(9.0), np.ones(9))["error_auroc"])
    assert selective_metrics([0.1, 0.2], [1, 0], coverages=())["risk_at_coverage_80"] == 0.5
    assert selective_metrics([0.1], [1])["risk_at_coverage_80"] == 0.0
    hundred = selective_metrics(np.arange(101.0), np.arange(101) < 51, coverages=(51, 100))
    assert hundred["accuracy_at_coverage_100"] == pytest.approx(51 / 101)
    assert hundred["accuracy_at_coverage_51"] == pytest.approx(51 / 52)


@pytest.mark.parametrize("share", [0, 101, -5])
def test_a_coverage_is_a_percentage(share):
    with pytest.raises(ValueError, match=f"^coverages contain {share}; expected percentages above 0 and up to 100"):
        selective_metrics([0.1, 0.2], [1, 0], coverages=(50, share))


def test_the_largest_coverage_at_a_risk_counts_the_risk_itself():
    assert coverage_at(np.array([1.0, 0.9, 0.95, 0.9]), 0.05, np.arange(4.0)) == 0.75
    assert coverage_at(np.array([0.8, 0.95]), 0.05, np.array([2.0, 1.0])) == 1.0
    assert coverage_at(np.array([0.8, 0.9]), 0.05, np.arange(2.0)) == 0.0


def test_a_coverage_at_a_risk_is_one_that_a_threshold_reaches():
    """Forty answers in four levels: the levels answered whole are 10, 20, 30 and 40, whatever their mean order says."""
    doubt, right = np.repeat([0.1, 0.2, 0.3, 0.4], 10), np.ones(40)
    right[[20, 21, 30, 31, 32, 33]] = 0
    assert selective_metrics(doubt, right)["coverage_at_risk_5"] == 0.5
    thresholds = [np.mean(doubt <= level) for level in np.unique(doubt) if right[doubt <= level].mean() >= 0.95]
    assert selective_metrics(doubt, right)["coverage_at_risk_5"] == max(thresholds)
    assert augrc(np.array([0.0, 0.0])) == 0.5
    assert augrc(np.array([0.0, 0.5, 2 / 3])) == pytest.approx((1 / 6 + 1 / 3 + 1 / 3) / 3)


def test_two_seeds_and_two_units_by_hand():
    assert unit_variance([[0.0, 2.0]]) == (1.0, 1)
    # Columns' means 0 and 3: 4.5 / 2 units; the rest is +-0.5 with one degree of freedom: 1 / (2 seeds x 2 units)
    assert unit_variance([[0.0, 4.0], [0.0, 2.0]]).variance == pytest.approx(2.25 - 0.25)
    draws = np.random.default_rng(13).normal(size=(3, 50)).astype(np.float32)
    assert unit_variance(draws) == unit_variance(draws.astype(np.float64))
    with pytest.raises(ValueError, match=r"^contributions has shape \(0, 3\); expected"):
        unit_variance(np.zeros((0, 3)))


def test_defaults_of_the_intervals_are_those_documented():
    values = np.random.default_rng(14).random(30)
    assert mean_interval(values) == mean_interval(values, 0.95)
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"^confidence is {wrong}; expected a share"):
            mean_interval(values, wrong)
    mean, half = mean_interval([1.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(scipy.stats.t.ppf(0.975, 1)))


def t_test(difference, spread):
    """Two-sided p-value, from the definition of the t-statistic."""
    count = len(difference)
    statistic = np.mean(difference) / math.sqrt(spread**2 / count)
    return 2 * scipy.stats.t.sf(abs(statistic), count - 1)


def test_differences_spread_at_least_a_tenth_of_the_values_and_a_thousandth_of_the_largest():
    first = np.array([0.5, 0.7, 0.65])
    own = math.sqrt((first.var(ddof=1) + (2 * first).var(ddof=1)) / 2)
    for a, b in ((first, 2 * first), (2 * first, first)):
        found = paired_test(a, b)
        assert found.p_value == pytest.approx(t_test(a - b, max((a - b).std(ddof=1), own / 10)))
    equal = paired_test(first, first - 0.1)
    assert equal.p_value == pytest.approx(t_test([0.1] * 3, first.std(ddof=1) / 10))
    assert equal.effect_size == pytest.approx(0.1 / (first.std(ddof=1) / 10))
    steps = np.array([100.0, 100.001, 100.002])
    for a, b in ((steps, steps - 0.3), (-steps, 0.3 - steps), (steps - 0.3, steps), (0.3 - steps, -steps)):
        found = paired_test(a, b)
        largest = max(np.abs(a).max(), np.abs(b).max())
        assert found.p_value == pytest.approx(t_test(a - b, largest / 1000))


@pytest.mark.parametrize("variance", [1e-6, 0.02, 0.5, 1e4])
def test_seeds_and_units_have_quantiles_of_their_own(variance):
    """The p-value is the level of the interval that reaches zero; that of the tables is one of 5 %."""
    difference = np.array([3.0, 5.0, 4.5])
    found = paired_test(difference, np.zeros(3), units=UnitVariance(variance))
    of_seeds = difference.var(ddof=1) / 3
    student, normal = scipy.stats.t.isf(found.p_value / 2, 2), scipy.stats.norm.isf(found.p_value / 2)
    assert student**2 * of_seeds + normal**2 * variance == pytest.approx(difference.mean() ** 2)
    statistic = difference.mean() / math.sqrt(of_seeds + variance)
    assert scipy.stats.norm.sf(statistic) <= found.p_value / 2 <= scipy.stats.t.sf(statistic, 2)
    assert found.effect_size == pytest.approx(difference.mean() / difference.std(ddof=1))
    assert (found.difference, found.n) == (pytest.approx(difference.mean()), 3)


@pytest.mark.parametrize("share", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_methods_differ_in_at_most_five_per_cent_of_studies(seeds, share):
    """Student's quantile for both variances would say so as seldom as in .01 %: real differences stay undecided."""
    generator, of_images = np.random.default_rng(seeds), share / seeds
    first = generator.normal(size=(4000, seeds)) + generator.normal(scale=of_images**0.5, size=(4000, 1))
    p_values = [paired_test(row, np.zeros(seeds), units=UnitVariance(of_images)).p_value for row in first]
    rate = np.mean(np.array(p_values) < 0.05)
    assert 0.02 < rate < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize(
    ("mean", "variance", "expected"),
    [
        (1e6, 1e-9, 2 * scipy.stats.t.sf(1e6 / math.sqrt(1e6 / 3), 2)),  # a thousandth of the value is the least spread
        (100.0, 1e-300, 2 * scipy.stats.t.sf(100 * math.sqrt(3), 2)),
        (1e-3, 1e12, 1.0),
        (0.0, 1.0, 1.0),
    ],
)
def test_extreme_differences_have_p_values(mean, variance, expected):
    found = paired_test(np.array([-1.0, 0.0, 1.0]) + mean, np.zeros(3), units=UnitVariance(variance))
    assert found.p_value == pytest.approx(expected, rel=1e-6)


def test_what_too_few_or_equal_values_tell():
    single = paired_test([1.0], [2.0])
    assert (single.difference, single.n, math.isnan(single.p_value), math.isnan(single.effect_size)) == (-1, 1, 1, 1)
    assert paired_test([1.0, 1.0], [1.0, 1.0]) == (0.0, 1.0, 0.0, 2, 0.0)
    unmoved = paired_test([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert (unmoved.difference, unmoved.n) == (1.0, 3)
    assert math.isnan(unmoved.p_value)
    assert math.isnan(unmoved.effect_size)
    assert paired_test([1.0, 2.0], [1.0, 3.0]).p_value == pytest.approx(t_test([0.0, -1.0], math.sqrt(0.5)))
    assert paired_test([0.0, 1e-3], [1.0, 1.0]).p_value < 0.01, "a small spread is one"


def test_all_pairs_are_tested_on_shared_seeds_and_units_and_corrected():
    generator = np.random.default_rng(15)
    units = {name: {seed: generator.random(40) for seed in range(4)} for name in "ab"}
    values = {name: {seed: float(row.mean()) for seed, row in rows.items()} for name, rows in units.items()}
    values["b"][9] = 7.0
    values["c"] = {seed: 0.1 * seed for seed in range(3)}
    values["d"] = {0: 1.0, 1: 2.0}
    values["e"] = {77: 1.0}
    samples = {name: Sample(seeds, units.get(name, {})) for name, seeds in values.items()}
    tests = pairwise_tests(samples)
    variance = unit_variance([units["a"][seed] - units["b"][seed] for seed in range(4)])
    assert variance.variance > 0
    plain = {}
    for a, b in ("ab", "ac", "bc"):
        shared = sorted(set(values[a]) & set(values[b]))
        first, second = ([values[name][seed] for seed in shared] for name in (a, b))
        plain[a, b] = paired_test(first, second, units=variance if (a, b) == ("a", "b") else NO_UNITS)
    adjusted = holm([result.p_value for result in plain.values()])
    for (pair, result), p in zip(plain.items(), adjusted, strict=True):
        assert tests[pair][:2] == (pytest.approx(p), pytest.approx(result.difference))
        assert tests[pair[::-1]][:2] == (pytest.approx(p), pytest.approx(-result.difference))
    assert math.isnan(tests["a", "d"].p_value), "two shared seeds are not tested"
    assert tests["a", "d"].difference == pytest.approx(np.mean([values["a"][s] - values["d"][s] for s in (0, 1)]))
    assert all(map(math.isnan, tests["a", "e"]))
    assert not math.isnan(pairwise_tests(samples, least=2)["a", "d"].p_value)


def test_single_units_say_more_than_standard_errors_and_half_of_either_says_nothing():
    generator = np.random.default_rng(15)
    a, b = ({seed: generator.random(40) for seed in range(4)} for _ in range(2))
    seeds, values = range(4), dict.fromkeys(range(4), 0.0)
    variance = unit_variance([a[seed] - b[seed] for seed in seeds])
    errors = dict.fromkeys(range(5), 0.3), dict.fromkeys(range(5), 0.4)
    assert shared_unit_variance(Sample(values, a), Sample(values, b), seeds) == variance
    assert shared_unit_variance(Sample(values, a, errors[0]), Sample(values, b, errors[1]), seeds) == variance
    both = shared_unit_variance(Sample(values, {}, errors[0], 10), Sample(values, {}, errors[1], 8), range(5))
    assert both == (pytest.approx(0.3**2 + 0.4**2), 7)
    assert shared_unit_variance(Sample(values, a), Sample(values), seeds) is None, "once counted, with a variance of 0"
    assert shared_unit_variance(Sample(values, a), Sample(values, b), range(5)) is None
    assert shared_unit_variance(Sample(values, {}, errors[0]), Sample(values, {}, errors[1]), range(6)) is None
    shorter = b | {2: np.zeros(3)}
    with pytest.raises(ValueError, match="seed 2: the methods were measured on 40 and 3 units; compare methods on the"):
        shared_unit_variance(Sample(values, a), Sample(values, shorter), seeds)


def test_equally_good_scores_of_few_images_are_not_told_apart_by_repeating_the_training():
    """Two scores of equal true AUROC, five seeds, the same 60 images: the seeds agree on what these images are."""
    generator, units = np.random.default_rng(8), np.arange(60)
    rates = {"seeds": 0, "contributions": 0, "errors": 0}
    for _ in range(400):
        samples = []
        wrong = units < 12
        for _ in "ab":
            of_images = generator.normal(size=60) + wrong
            values, errors, contributions = {}, {}, {}
            for seed in range(5):
                doubt = of_images + 0.3 * generator.normal(size=60)
                values[seed] = float((doubt[wrong][:, None] > doubt[~wrong]).mean())
                contributions[seed] = of_auroc(
                    Images(doubt[~wrong], units[~wrong]), Images(doubt[wrong], units[wrong])
                ).values
                errors[seed] = error_of(contributions[seed])
            samples.append((values, contributions, errors))
        for name, parts in (("seeds", (0,)), ("contributions", (0, 1)), ("errors", (0, 2))):
            kept = [[each[part] if part in parts else {} for part in range(3)] for each in samples]
            rates[name] += pairwise_tests({"a": Sample(*kept[0]), "b": Sample(*kept[1])})["a", "b"].p_value < 0.05
    assert rates["seeds"] > 0.5 * 400
    assert max(rates["contributions"], rates["errors"]) <= (0.05 + 0.02) * 400  # two standard deviations of such a rate


def test_holm_takes_probabilities():
    assert holm([0.0, 1.0, 0.9]).tolist() == [0.0, 1.0, 1.0]
    assert holm([]).tolist() == []
    assert holm(np.float32([0.1, 0.3])).dtype == np.float64
    for wrong in (-0.5, 1.5):
        with pytest.raises(ValueError, match=f"^p_values lie between {min(wrong, 0.5)} and {max(wrong, 0.5)}"):
            holm([0.5, wrong, math.nan])
    with pytest.raises(ValueError, match=r"^p_values has shape \(1, 2\); expected a vector"):
        holm([[0.1, 0.2]])


def test_the_number_of_seeds_is_between_three_and_a_thousand():
    assert seeds_needed(50.0) == 3
    assert (seeds_needed(0.08868), seeds_needed(0.08865), seeds_needed(0.08865, most=1001)) == (1000, None, 1001)
    assert seeds_needed(0.0, level=0.5, power=0.3) is None
