import json

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from probmetric.trust.p_right import (
    PRIOR,
    SQUARED_FROM,
    PRight,
    added_auroc,
    class_folds,
    cross_fitted,
    ece_floor,
    fit_p_right,
    p_right_metrics,
)


def answers(count=600, seed=0):
    generator = np.random.default_rng(seed)
    cosine, gap = generator.random(count), generator.exponential(size=count)
    right = generator.random(count) < 1 / (1 + np.exp(2 - 3 * cosine - gap))
    return {"cosine": cosine, "gap": gap}, right, generator.integers(0, 30, count)


@pytest.mark.parametrize("count", [499, 600])
def test_the_logistic_map_has_the_greatest_penalised_likelihood(count):
    scores, right, _ = answers(count)
    fitted = fit_p_right(scores, right)
    columns = np.stack(list(scores.values()), axis=1)
    z = (columns - columns.mean(0)) / columns.std(0)
    z = np.hstack([z, z**2]) if count >= SQUARED_FROM else z

    def loss(w):
        p = 1 / (1 + np.exp(-(w[0] + z @ w[1:])))
        return -np.log(np.where(right, p, 1 - p)).sum() + PRIOR / 2 * w[1:] @ w[1:]

    best = minimize(loss, np.zeros(1 + z.shape[1]), method="BFGS", options={"gtol": 1e-7}).x
    assert [fitted.bias, *fitted.weights, *fitted.squares] == pytest.approx(best, abs=1e-4)
    assert fitted.probability(scores).mean() == pytest.approx(right.mean(), abs=1e-6)


def test_separable_answers_get_a_finite_map():
    fitted = fit_p_right({"cosine": np.arange(100.0)}, np.arange(100) >= 50)
    stated = fitted.probability({"cosine": np.array([0.0, 99.0])})
    assert 0 < stated[0] < 0.01
    assert 0.99 < stated[1] < 1


def alike(count, seed):
    """Five scores of one cause, and answers that are right the more often the larger that is."""
    generator = np.random.default_rng(seed)
    cause = generator.normal(size=count)
    scores = {f"score {k}": cause + 0.7 * generator.normal(size=count) for k in range(5)}
    return scores, generator.random(count) < 1 / (1 + np.exp(-1 - 1.5 * cause))


@pytest.mark.parametrize(("count", "most"), [(60, 0.05), (120, 0.03)])
def test_a_map_of_few_answers_is_not_too_sure_of_new_ones(count, most):
    """By a prior of .01, answers of 1.00 on 120 test images were right in .75; here .978 was .912 by 60 answers."""
    stated, right = [], []
    for seed in range(60):
        asked, truth = alike(500, 1000 + seed)
        values = fit_p_right(*alike(count, seed)).probability(asked)
        stated.append(values[values > 0.95])
        right.append(truth[values > 0.95])
    assert abs(np.concatenate(stated).mean() - np.concatenate(right).mean()) < most


def test_a_recalibrated_map_keeps_the_order_and_states_what_is_true():
    scores, right = alike(2000, 0)
    few = fit_p_right({name: values[:40] for name, values in scores.items()}, right[:40])
    again = few.recalibrated({name: values[:1000] for name, values in scores.items()}, right[:1000])
    asked = {name: values[1000:] for name, values in scores.items()}
    before, after = few.probability(asked), again.probability(asked)
    assert np.argsort(after).tolist() == np.argsort(before).tolist()
    assert p_right_metrics(after, right[1000:])["ece"] < 0.7 * p_right_metrics(before, right[1000:])["ece"]
    turned = few.recalibrated(scores, ~right).probability(scores)  # a slope below 0 would turn the order round
    assert np.argsort(turned).tolist() == np.argsort(few.probability(scores)).tolist()
    assert turned.mean() == pytest.approx((~right).mean(), abs=1e-3)


def test_the_numbers_are_those_of_scikit_learn():
    scores, right, _ = answers()
    stated = fit_p_right(scores, right).probability(scores)
    found = p_right_metrics(stated, right)
    assert found["nll"] == pytest.approx(log_loss(right, stated))
    assert found["brier"] == pytest.approx(brier_score_loss(right, stated))


def test_true_probabilities_err_as_much_as_their_floor():
    generator = np.random.default_rng(1)
    stated = generator.random(2000)
    floor = ece_floor(stated)
    errors = [p_right_metrics(stated, generator.random(2000) < stated)["ece"] for _ in range(20)]
    assert np.mean(errors) == pytest.approx(floor, rel=0.15)
    assert p_right_metrics(stated, generator.random(2000) < stated**2)["ece"] > 3 * floor


def test_no_answer_is_judged_by_a_map_that_saw_its_class():
    # each class has a score of its own and a coin for its truth: only a leak can tell them apart
    generator = np.random.default_rng(2)
    groups = np.repeat(np.arange(40), 10)
    right = generator.integers(0, 2, 40)[groups]
    scores = {"class": groups.astype(float)}
    stated = cross_fitted(scores, right, groups)
    assert roc_auc_score(right, stated) < 0.65
    part = class_folds(groups)
    assert len(np.unique(part)) == 5
    assert all(len(np.unique(part[groups == c])) == 1 for c in range(40))


def test_what_a_score_adds_is_found_and_noise_adds_nothing():
    scores, right, groups = answers(3000)
    noise = np.random.default_rng(5).random(3000)
    useful = added_auroc({"cosine": scores["cosine"]}, {"gap": scores["gap"]}, right, groups)
    assert useful["added"] == pytest.approx(useful["both"] - useful["free"])
    assert 0.03 < useful["added_low"] < useful["added"] < useful["added_high"]
    none = added_auroc(scores, {"noise": noise}, right, groups)
    assert none["added_low"] < 0.003
    assert abs(none["added"]) < 0.01


def test_the_interval_is_that_of_classes_drawn_again():
    # few levels, so that there are ties between right and wrong answers
    scores, right, groups = answers(300)
    free = {"cosine": np.round(scores["cosine"], 1)}
    both = {**free, "gap": np.round(scores["gap"], 1)}
    found = added_auroc(free, {"gap": both["gap"]}, right, groups, resamples=30, seed=4)
    stated = [cross_fitted(used, right, groups, seed=4) for used in (free, both)]
    generator, names = np.random.default_rng(4), np.unique(groups)
    added = []
    for _ in range(30):
        chosen = names[generator.integers(0, len(names), len(names))]
        rows = np.concatenate([np.flatnonzero(groups == name) for name in chosen])
        alone, together = (roc_auc_score(right[rows], p[rows]) for p in stated)
        added.append(together - alone)
    expected = np.percentile(added, [2.5, 97.5])
    np.testing.assert_allclose([found["added_low"], found["added_high"]], expected, atol=1e-12)
    assert found["free"] == pytest.approx(roc_auc_score(right, stated[0]), abs=1e-12)


def test_a_map_is_read_as_it_was_written_and_asks_for_its_scores():
    scores, right, _ = answers(200)
    fitted = fit_p_right(scores, right)
    again = PRight.of(json.loads(json.dumps(fitted.plain())))
    assert again == fitted
    assert again.probability(scores) == pytest.approx(fitted.probability(scores), abs=0)
    with pytest.raises(ValueError, match="fitted with the score 'cosine'"):
        fitted.probability({"gap": scores["gap"]})


@pytest.mark.parametrize(
    ("scores", "right", "message"),
    [
        ({}, [1, 0], "no scores"),
        ({"cosine": [0.1, np.nan]}, [1, 0], "cosine: entry 1 is not finite"),
        ({"cosine": [0.1, 0.2]}, [1, 1], "all 2 answers are right"),
        ({"cosine": [0.1, 0.2], "gap": [1.0]}, [1, 0], "gap has 1 entries"),
    ],
)
def test_bad_input_is_named(scores, right, message):
    with pytest.raises(ValueError, match=message):
        fit_p_right(scores, right)


def test_one_class_cannot_be_cross_fitted():
    with pytest.raises(ValueError, match="groups name 1 class"):
        cross_fitted({"cosine": [0.1, 0.2]}, [1, 0], [3, 3])


def test_curved_answers_get_a_curved_map_that_ends_where_it_was_fitted():
    generator = np.random.default_rng(11)
    score = generator.normal(size=4000)
    truth = 1 / (1 + np.exp(-(1.5 - score**2)))
    right = generator.random(4000) < truth
    fitted = fit_p_right({"a": score}, right)
    asked = np.linspace(-2, 2, 9)
    assert fitted.probability({"a": asked}) == pytest.approx(1 / (1 + np.exp(-(1.5 - asked**2))), abs=0.05)
    ends = fitted.probability({"a": [score.min(), score.min() - 5]})
    assert ends[0] == ends[1]
    assert len(fit_p_right({"a": score[:499]}, right[:499]).squares) == 0


def test_scores_beyond_float32_count_as_its_largest():
    right = [1, 1, 0, 0, 1, 0]
    huge, largest = ({"a": np.array([1, 1, -1, -1, 1, 1.0]) * size} for size in (1e300, float(np.finfo("f4").max)))
    np.testing.assert_array_equal(
        fit_p_right(huge, right).probability(huge), fit_p_right(largest, right).probability(largest)
    )
    with pytest.raises(ValueError, match="gap has shape"):
        fit_p_right({"gap": 0.5}, right)


def test_a_score_that_is_constant_but_for_rounding_has_no_say():
    """The entropy of ten neighbours of ten images differs by 1e-17: every new query was surely right, or wrong."""
    generator = np.random.default_rng(0)
    entropy = np.log(10) + 1e-16 * generator.integers(-2, 3, size=40)
    fitted = fit_p_right({"entropy": entropy}, np.arange(40) % 10 < 7)
    assert fitted.probability({"entropy": [0.0, 1.0, np.log(10)]}) == pytest.approx(0.7, abs=1e-6)


def test_a_map_is_corrected_where_other_answers_refute_it_and_not_where_it_is_true():
    generator = np.random.default_rng(31)
    cosine = generator.normal(size=2000)
    fitted = fit_p_right({"cosine": cosine}, generator.random(2000) < 1 / (1 + np.exp(-2 * cosine)))
    kept = 0
    for _ in range(100):
        scores = {"cosine": generator.normal(size=300)}
        kept += fitted.corrected(scores, generator.random(300) < fitted.probability(scores)) is fitted
    assert kept >= 95 - 3.1 * np.sqrt(100 * 0.05 * 0.95), "in 5 of 100 it is refuted by chance"
    scores = {"cosine": generator.normal(size=1000)}
    right = generator.random(1000) < fitted.probability(scores) / 2
    corrected = fitted.corrected(scores, right)
    assert corrected.probability(scores).mean() == pytest.approx(right.mean(), abs=1e-3)
    assert np.array_equal(np.argsort(corrected.probability(scores)), np.argsort(fitted.probability(scores)))
    for alike, share in ((np.ones(1000), 1000.5 / 1001), (np.zeros(1000), 0.5 / 1001)):
        assert fitted.corrected(scores, alike).probability(scores).mean() == pytest.approx(share, rel=1e-9)
    few = {"cosine": np.full(3, 2.0)}
    assert fitted.corrected(few, np.ones(3)) is fitted, "three right answers do not refute .98"
