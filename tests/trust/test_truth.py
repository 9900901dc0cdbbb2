import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probmetric.trust.answers import among_others, cross_fitted_free
from probmetric.trust.truth import Truth, truth_metrics


@pytest.fixture(scope="module")
def world():
    """Images whose class really is drawn from a known posterior; near images share it."""
    generator = np.random.default_rng(0)
    angle = np.sort(generator.random(1500))
    share = 0.5 + 0.5 * np.sin(12 * angle)
    posterior = np.stack([share, 1 - share], axis=1) * 0.9 + 0.05
    labels = (generator.random(1500) >= posterior[:, 0]).astype(np.int64)
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    return rows, labels, Truth(posterior, np.array([0, 1]))


def answered(world, own):
    rows, labels, _ = world
    return among_others({"mean": rows, "uncertainty": own.astype(np.float32)}, labels)


def test_an_uncertainty_that_knows_the_posterior_has_no_regret(world):
    truth = world[2]
    first = answered(world, np.zeros(1500))
    exact = 1 - truth.of(first.match.classes[:, 0])
    found = truth_metrics(answered(world, exact), truth)
    assert found["exact/error_auroc"] == pytest.approx(roc_auc_score(~first.right, exact))
    assert found["exact/error_auroc_regret"] == pytest.approx(0, abs=1e-4)
    of_free = roc_auc_score(~first.right, -cross_fitted_free(first))
    assert found["exact/free_auroc_regret"] == pytest.approx(found["exact/error_auroc"] - of_free)
    assert found["exact/bayes_accuracy"] == pytest.approx(truth.posterior.max(axis=1).mean())
    assert found["exact/bayes_ece"] < 0.06
    assert 0 < found["exact/p_right_regret"] < 0.2
    entropy = truth_metrics(answered(world, truth.entropy), truth)
    assert entropy["exact/aleatoric_spearman"] == pytest.approx(1, abs=1e-3)
    assert entropy["exact/image_auroc_regret"] == pytest.approx(0, abs=1e-4)
    assert entropy["exact/image_auroc"] == pytest.approx(roc_auc_score(~first.right, truth.entropy))
    noise = truth_metrics(answered(world, np.random.default_rng(1).random(1500)), truth)
    assert noise["exact/error_auroc_regret"] > 0.15


def test_retrieval_and_uncertainty_have_regrets_of_their_own():
    """Answers drawn at random cost the retrieval, not the uncertainty that knows the noise; its ceiling is not .99."""
    generator = np.random.default_rng(3)
    sure = generator.random(2000)
    posterior = np.stack([0.5 + 0.5 * sure, 0.5 - 0.5 * sure], axis=1)
    truth = Truth(posterior, np.array([0, 1]))
    labels = (generator.random(2000) >= posterior[:, 0]).astype(np.int64)
    rows = generator.normal(size=(2000, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = truth_metrics(among_others({"mean": rows, "uncertainty": truth.entropy}, labels), truth)
    assert found["exact/retrieval_regret"] == pytest.approx(posterior[:, 0].mean() - 0.625, abs=0.03)
    assert found["exact/image_auroc_regret"] == pytest.approx(0, abs=1e-9)
    assert found["exact/error_auroc"] > 0.8 > 0.65 > found["exact/image_auroc"]
    exact = truth_metrics(among_others({"mean": rows, "uncertainty": 1 - posterior[:, 0]}, labels), truth)
    assert exact["exact/retrieval_regret"] == found["exact/retrieval_regret"], "whatever the uncertainty"


def test_a_class_without_a_column_has_probability_zero():
    truth = Truth(np.array([[0.25, 0.75]]), np.array([3, 7]))
    assert truth.of([7]).tolist() == [0.75]
    assert truth.of([5]).tolist() == [0.0]
