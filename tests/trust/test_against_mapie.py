"""MAPIE as an independent reference, where it has the procedure: conformal sets, binomial tests, fixed sequences."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from probmetric.trust.certificates import certify, errors_allowed
from probmetric.trust.sets import coverage_sets

pytest.importorskip("mapie", reason="MAPIE is not installed: `make env`")
from mapie.classification import SplitConformalClassifier
from mapie.risk_control import control_fwer
from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value


class Stated(ClassifierMixin, BaseEstimator):
    """A classifier whose input (N, C) is what it states."""

    def __init__(self, classes=4):
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, rows, labels):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, rows):
        return rows

    def predict(self, rows):
        return rows.argmax(axis=1)


@pytest.mark.parametrize(("miss", "count"), [(0.1, 200), (0.25, 57), (0.03, 400)])
def test_sets_are_those_of_mapie(miss, count):
    generator = np.random.default_rng(count)
    stated = generator.dirichlet(np.ones(4), 2 * count)
    labels = np.array([generator.choice(4, p=row) for row in stated])
    reference = SplitConformalClassifier(Stated(), confidence_level=1 - miss, conformity_score="lac", prefit=True)
    reference.conformalize(stated[:count], labels[:count])
    expected = reference.predict_set(stated[count:])[1][:, :, 0]
    sets = coverage_sets(1 - stated[:count], labels[:count], miss=miss)
    assert np.array_equal(sets.members(1 - stated[count:]), expected)


def p_values(errors, answers, risk):
    shares = np.asarray(errors) / np.asarray(answers)
    return compute_hoeffding_bentkus_p_value(np.maximum(shares - 1e-12, 0.0), np.asarray(answers), risk, binary=True)[
        :, 0
    ]


@pytest.mark.parametrize(("risk", "delta"), [(0.05, 0.1), (0.2, 0.01)])
def test_as_many_errors_pass_as_mapies_test_lets_pass(risk, delta):
    for answers in (10, 60, 300):
        errors = np.arange(1, answers)
        passed = p_values(errors, np.full(len(errors), answers), risk) <= delta
        assert np.array_equal(errors[passed], errors[errors <= errors_allowed(np.array([answers]), risk, delta)[0]])


def test_the_threshold_is_that_of_mapies_fixed_sequence():
    first, count, certified = 100, 800, []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        doubt = generator.random(count)
        right = generator.random(count) >= 0.5 * doubt**2
        order = np.argsort(doubt)
        answers = np.arange(first, len(order) + 1)
        errors = np.cumsum(~right[order])[first - 1 :]
        rejected = control_fwer(p_values(errors, answers, 0.1), 0.1, "fixed_sequence")
        given = int(answers[rejected[-1]]) if len(rejected) else 0
        threshold = certify(doubt, right, risk=0.1).threshold
        certified.append(given)
        assert (0 if threshold is None else int((doubt <= threshold).sum())) == given
    assert 100 < np.median(certified) < 720
