import json

import numpy as np
import pytest
from scipy.stats import binomtest

from probmetric.evaluation.certificates import (
    EVERYTHING,
    Certificate,
    CertificateError,
    certify,
    least_units,
    upper_bound,
)
from probmetric.io import FileError


def drawn(generator, count, worst=0.7):
    """Doubts and right answers whose risk below t is worst * t / 2, in closed form."""
    doubt = generator.random(count)
    return doubt, generator.random(count) >= worst * doubt


def true_risk(threshold, worst=0.7):
    return worst * min(threshold, 1.0) / 2


@pytest.mark.parametrize(("errors", "answers"), [(0, 10), (1, 10), (7, 200), (199, 200), (5, 5)])
def test_the_bound_is_clopper_and_pearsons(errors, answers):
    # the upper end of the two-sided interval at 2 gamma - 1 is the one-sided bound at gamma
    expected = binomtest(errors, answers).proportion_ci(confidence_level=0.8, method="exact").high
    assert upper_bound(errors, answers, 0.9) == pytest.approx(expected, abs=1e-9)


def certified(doubt, right, risk):
    return certify(doubt, right, risk=risk).threshold


def best_of_many(doubt, right, risk):
    """The largest threshold whose own bound is below the risk, for the rank of every doubt."""
    order = np.argsort(doubt)
    wrong = np.cumsum(~right[order])
    passed = [k for k in range(1, len(doubt) + 1) if upper_bound(int(wrong[k - 1]), k, 0.9) <= risk]
    return doubt[order[passed[-1] - 1]] if passed else None


def at_most(share, repeats):
    """The largest share of violations that a rule with the true share `share` shows, but for one time in a thousand."""
    return share + 3.1 * np.sqrt(share * (1 - share) / repeats)


def test_certificates_hold_as_often_as_they_say():
    generator = np.random.default_rng(0)
    thresholds = [certified(*drawn(generator, 400), 0.15) for _ in range(400)]
    broken = [found is not None and true_risk(found) > 0.15 for found in thresholds]
    assert np.mean(broken) <= at_most(0.1, 400)


def test_a_doubt_that_says_nothing_is_not_certified_by_trying_often():
    generator = np.random.default_rng(1)
    broken = {certified: 0, best_of_many: 0}
    for _ in range(100):
        doubt, right = generator.random(400), generator.random(400) >= 0.151  # above the risk at every threshold
        for rule in broken:
            broken[rule] += rule(doubt, right, 0.15) is not None
    assert broken[certified] / 100 <= at_most(0.1, 100)
    assert broken[best_of_many] / 100 > at_most(0.1, 100)


def classes_of_their_own(generator, classes, each):
    """Every class has its own rate of errors, .15 on average, whatever the doubt."""
    groups = np.repeat(np.arange(classes), each)
    rates = generator.beta(0.15, 0.85, size=classes)
    return generator.random(len(groups)), generator.random(len(groups)) >= rates[groups], groups


def test_classes_never_seen_need_classes_as_units():
    generator = np.random.default_rng(2)
    kept = {"query": 0, "group": 0}
    for _ in range(200):
        doubt, right, groups = classes_of_their_own(generator, 40, 25)
        kept["query"] += certify(doubt, right, risk=0.145).threshold is not None
        kept["group"] += certify(doubt, right, risk=0.145, groups=groups).threshold is not None
    assert kept["group"] / 200 <= at_most(0.1, 200)
    assert kept["query"] / 200 > at_most(0.1, 200)


def test_a_clear_case_is_certified_and_used():
    generator = np.random.default_rng(3)
    doubt, right = drawn(generator, 3000, worst=0.4)
    groups = np.arange(3000) // 30
    for found in (certify(doubt, right, risk=0.15), certify(doubt, right, risk=0.2, groups=groups)):
        answered = found.answers(doubt)
        assert found.coverage == pytest.approx(answered.mean())
        assert found.coverage > 0.5
        assert found.errors == np.sum(~right[answered])
        assert found.errors / found.answered <= found.risk_bound <= found.risk
    assert certify(doubt, np.ones(3000), risk=0.15).threshold == EVERYTHING
    nothing = certify(doubt, np.zeros(3000), risk=0.15)
    assert nothing.threshold is None
    assert nothing.coverage == 0.0
    assert not nothing.answers(doubt).any()


def test_ties_are_answered_together():
    doubt = np.repeat([0.0, 0.5], 500)
    right = np.r_[np.ones(500), np.arange(500) % 2]
    found = certify(doubt, right, risk=0.1)
    assert found.threshold == 0.0
    assert found.coverage == 0.5


def test_the_least_calibration_set_is_the_least():
    needed = least_units(0.05, 0.9)
    doubt = np.arange(float(needed))
    assert certify(doubt, np.ones(needed), risk=0.05).threshold is not None
    with pytest.raises(CertificateError, match=f"calibration has {needed - 1} labelled queries.*at least {needed}"):
        certify(doubt[1:], np.ones(needed - 1), risk=0.05)
    with pytest.raises(CertificateError, match="2 classes"):
        certify(doubt, np.ones(needed), risk=0.05, groups=np.arange(needed) % 2)


@pytest.mark.parametrize(
    ("doubt", "right", "options", "message"),
    [
        ([0.1, np.nan], [1, 0], {}, "doubt: entry 1 is not finite"),
        ([0.1, 0.2], [1], {}, "correct has 1 entries, expected 2"),
        ([0.1, 0.2], [1, 2], {}, "expected only 0 .wrong. and 1 .right."),
        ([], [], {}, "doubt is empty"),
        ([0.1], [1], {"risk": 1.5}, "risk is 1.5, confidence is 0.9; both are shares between 0 and 1"),
        ([0.1], [1], {"confidence": 1.0}, "confidence is 1;"),
        ([0.1] * 9, [1] * 9, {"groups": [0] * 9}, "calibration has 1 class; a risk of 0.1"),
        ([0.1], [1], {"groups": [1, 2]}, "groups has shape"),
    ],
)
def test_bad_input_is_named(doubt, right, options, message):
    with pytest.raises(ValueError, match=message):
        certify(doubt, right, **({"risk": 0.1} | options))


def test_a_certificate_is_read_as_it_was_written_and_refuses_what_it_is_not_for(tmp_path):
    doubt, right = drawn(np.random.default_rng(4), 500)
    found = certify(doubt, right, risk=0.2, score="cosine", gallery="a1" * 32, weights="b2" * 32)
    found.save(tmp_path / "certificate.json")
    assert Certificate.load(tmp_path / "certificate.json") == found
    found.check(gallery="a1" * 32, weights="b2" * 32)
    with pytest.raises(CertificateError, match="is for gallery a1a1a1a1a1a1, here is cccc"):
        found.check(gallery="c" * 64, weights="b2" * 32)
    with pytest.raises(CertificateError, match="is for weights"):
        found.check(gallery="a1" * 32, weights="")
    with pytest.raises(ValueError, match="not finite"):
        found.answers([0.1, np.inf])
    assert found.answers([]).shape == (0,)


@pytest.mark.parametrize("change", [{"threshold": "low"}, {"risk": None}, {"unknown": 1}])
def test_a_damaged_certificate_is_refused(tmp_path, change):
    doubt, right = drawn(np.random.default_rng(4), 500)
    path = tmp_path / "certificate.json"
    certify(doubt, right, risk=0.2).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CertificateError, match=r"certificate\.json"):
        Certificate.load(path)
    with pytest.raises(FileError, match="missing"):
        Certificate.load(tmp_path / "none.json")
