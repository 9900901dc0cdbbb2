"""A hundred ways to a certificate by mistake: each is refused with a sentence, marked, or keeps its promise."""

import dataclasses
import json
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
import scipy
from scipy.stats import binom, norm, poisson

from probmetric import trust
from probmetric.io import FileError, signed, write_json
from probmetric.trust.certificates import Certificate, CertificateError, class_importance
from probmetric.trust.copies import burst_sentence, copies_of, copy_groups, distinct
from probmetric.trust.deployed import calibration_answers, certify_record
from probmetric.trust.spot_check import checks_needed, running_evidence, spot_checks

N = 300
DOUBT = np.random.default_rng(0).random(N)
RIGHT = np.random.default_rng(1).random(N) >= 0.5 * DOUBT
SAME = np.arange(N) < 100


def at_most(share, repeats):
    """The largest share of violations that a rule with the true share `share` shows, but for one time in a thousand."""
    return share + 3.1 * np.sqrt(share * (1 - share) / repeats)


def changed(values, place, value):
    """A copy of an array as floats with one entry changed."""
    copy = np.array(values, dtype=float)
    copy[place] = value
    return copy


BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
R = {"risk": 0.2}
REFUSED = {
    # numbers that are none, in every argument of every promise
    **{f"certify, doubt {n}": (lambda v=v: trust.certify(changed(DOUBT, 3, v), RIGHT, **R)) for n, v in BAD.items()},
    **{f"certify, right {n}": (lambda v=v: trust.certify(DOUBT, changed(RIGHT, 3, v), **R)) for n, v in BAD.items()},
    **{
        f"pairs, similarity {n}": (lambda v=v: trust.certify_pairs(changed(DOUBT, 3, v), SAME, false_accept=0.1))
        for n, v in BAD.items()
    },
    **{
        f"strangers, {n}": (lambda v=v: trust.certify_strangers(DOUBT, changed(DOUBT, 3, v), false_accept=0.1))
        for n, v in BAD.items()
    },
    **{
        f"known, {n}": (lambda v=v: trust.certify_strangers(changed(DOUBT, 3, v), DOUBT, false_accept=0.1))
        for n, v in BAD.items()
    },
    **{
        f"batch, {n}": (lambda v=v: trust.select_matches(changed(DOUBT, 3, v), (DOUBT, RIGHT), fdr=0.1))
        for n, v in BAD.items()
    },
    **{
        f"batch calibration, {n}": (lambda v=v: trust.select_matches(DOUBT, (changed(DOUBT, 3, v), RIGHT), fdr=0.1))
        for n, v in BAD.items()
    },
    **{f"sets, {n}": (lambda v=v: trust.coverage_sets(np.full((4, 2), v), [0, 1, 0, 1])) for n, v in BAD.items()},
    **{f"monitor, {n}": (lambda v=v: trust.monitor(DOUBT, changed(DOUBT, 3, v))) for n, v in BAD.items()},
    **{f"reference, {n}": (lambda v=v: trust.monitor(changed(DOUBT, 3, v), DOUBT)) for n, v in BAD.items()},
    **{f"checks, {n}": (lambda v=v: spot_checks(changed(RIGHT, 3, v), risk=0.1)) for n, v in BAD.items()},
    **{
        f"importance, {n}": (lambda v=v: trust.certify(DOUBT, RIGHT, risk=0.2, importance=changed(DOUBT, 3, v)))
        for n, v in {**BAD, "negative": -1.0}.items()
    },
    # shares that are none
    **{f"risk {s}": (lambda s=s: trust.certify(DOUBT, RIGHT, risk=s)) for s in (0, 1, -0.1, 1.5, np.nan)},
    **{
        f"confidence {s}": (lambda s=s: trust.certify(DOUBT, RIGHT, risk=0.2, confidence=s))
        for s in (0, 1, -0.1, 90, np.nan)
    },
    **{f"false_accept {s}": (lambda s=s: trust.certify_pairs(DOUBT, SAME, false_accept=s)) for s in (0, 1, np.nan)},
    **{f"fdr {s}": (lambda s=s: trust.select_matches(DOUBT, (DOUBT, RIGHT), fdr=s)) for s in (0, 1, np.nan)},
    **{f"miss {s}": (lambda s=s: trust.coverage_sets(np.eye(2), [0, 1], miss=s)) for s in (0, 1, np.nan)},
    **{f"checked risk {s}": (lambda s=s: spot_checks([0, 1], risk=s)) for s in (0, 1, np.nan, 1e-300)},
    # counts and lengths
    **{f"tries {s}": (lambda s=s: trust.certify(DOUBT, RIGHT, risk=0.2, tries=s)) for s in (0, -1, 1.5, "8")},
    "truth shorter": lambda: trust.certify(DOUBT, RIGHT[:-1], risk=0.2),
    "groups shorter": lambda: trust.certify(DOUBT, RIGHT, risk=0.2, groups=np.arange(N - 1)),
    "importance shorter": lambda: trust.certify(DOUBT, RIGHT, risk=0.2, importance=np.ones(N - 1)),
    "importance of nobody": lambda: trust.certify(DOUBT, RIGHT, risk=0.2, importance=np.zeros(N)),
    "scores of two lengths": lambda: trust.certify({"a": DOUBT, "b": DOUBT[:-1]}, RIGHT, risk=0.2),
    "no scores": lambda: trust.certify({}, RIGHT, risk=0.2),
    "no queries": lambda: trust.certify([], [], risk=0.2),
    "labels for truth": lambda: trust.certify(DOUBT, np.arange(N), risk=0.2),
    "a matrix of doubts": lambda: trust.certify(DOUBT[:, None], RIGHT, risk=0.2),
    "text for doubts": lambda: trust.certify(np.array(["low"] * N), RIGHT, risk=0.2),
    "stranger groups shorter": lambda: trust.certify_strangers(DOUBT, DOUBT, false_accept=0.1, groups=[1, 2]),
    "identities shorter": lambda: trust.certify_pairs(DOUBT, SAME, false_accept=0.1, identities=[["a", "b"]]),
    "identities against the truth": lambda: trust.certify_pairs(
        DOUBT, SAME, false_accept=0.1, identities=np.array([["a", "b"]] * N)
    ),
    "monitor groups shorter": lambda: trust.monitor(DOUBT, DOUBT, groups=[1]),
    # too little to say anything
    "a risk nobody can certify": lambda: trust.certify(DOUBT, RIGHT, risk=1e-9),
    "a confidence nobody can have": lambda: trust.certify(DOUBT, RIGHT, risk=0.01, confidence=1 - 1e-12),
    "five queries": lambda: trust.certify(DOUBT[:5], RIGHT[:5], risk=0.05),
    "queries of one person": lambda: trust.certify(DOUBT, RIGHT, risk=0.2, groups=np.zeros(N)),
    "more tries than the set can pay": lambda: trust.certify(DOUBT[:30], RIGHT[:30], risk=0.1, tries=1000),
    "three strangers": lambda: trust.certify_strangers(DOUBT, DOUBT[:3], false_accept=0.01),
    "three hundred images of one stranger": lambda: trust.certify_strangers(
        DOUBT, DOUBT, false_accept=0.05, groups=np.zeros(N)
    ),
    "no genuine pairs": lambda: trust.certify_pairs(DOUBT, np.zeros(N), false_accept=0.1),
    "no impostors": lambda: trust.certify_pairs(DOUBT, np.ones(N), false_accept=0.1),
    "pairs of two people": lambda: trust.certify_pairs(
        DOUBT, SAME, false_accept=0.05, identities=np.where(SAME[:, None], "a", np.array([["a", "b"]]))
    ),
    "nothing to compare with": lambda: trust.monitor([], DOUBT),
    "patience without end": lambda: trust.monitor(DOUBT, DOUBT, patience=np.inf),
    "shares of other classes": lambda: class_importance(["a", "b"], {"a": 1.0}),
    "shares of classes not shown": lambda: class_importance(["a"], {"a": 0.5, "c": 0.5}),
    "training images of another model": lambda: copies_of(np.eye(3), np.eye(2)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_misuse_is_refused_with_a_sentence(case):
    with pytest.raises(ValueError, match=r"\w{3}") as error:
        REFUSED[case]()
    assert len(str(error.value)) > 20


FIELDS = {
    "threshold": ["low", True, [1], {}, "nan"],
    "risk": [0, 1, -1, None, "x"],
    "confidence": [0, 1, None, []],
    "coverage": [-0.1, 1.1, None],
    "risk_bound": [2, "x"],
    "queries": [-1, 0.5, None],
    "tries": [-1, "x"],
    "weighted": ["yes", 1],
    "unit": [3],
    "gallery": [None, 5],
    "reference": [5, ["x"], [[1]], "abc"],
    "p_right": [5, "x", [], {"kind": "logistic"}, {"scores": ["a"], "weights": ["b"]}],
    "unknown": [1],
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
def test_a_certificate_with_another_field_is_refused(tmp_path, field, value):
    path = tmp_path / "certificate.json"
    certificate = trust.certify(DOUBT, RIGHT, risk=0.2)
    certificate.save(path)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {field: value}))  # edited by hand
    with pytest.raises((CertificateError, FileError), match=r"certificate\.json"):
        Certificate.load(path)
    del values["digest"]
    write_json(path, signed(values | {field: value}))  # by somebody who signs
    with pytest.raises(CertificateError, match=r"certificate\.json is (no certificate|damaged)"):
        Certificate.load(path)


def test_a_map_with_a_missing_weight_is_refused():
    fitted = trust.fit_p_right({"a": DOUBT, "b": DOUBT**2}, RIGHT)
    certificate = dataclasses.asdict(trust.certify(DOUBT, RIGHT, risk=0.2))
    for damage in ({"weights": [1.0]}, {"scale": [1.0, "x"]}, {"bias": None}, {"centre": [1.0, float("inf")]}):
        with pytest.raises(CertificateError, match=r"p_right is .* which is no map"):
            Certificate.of(certificate | {"p_right": fitted.plain() | damage})


# promises that used to break


def violated(make, *, repeats=200, risk=0.1, seed=0):
    """Share of certificates, of `make(generator)` with doubts uniform and P(wrong | doubt) = .4 doubt, that break."""
    generator = np.random.default_rng(seed)
    certificates = [make(generator) for _ in range(repeats)]
    return np.mean([c.threshold is not None and 0.2 * min(c.threshold, 1.0) > risk for c in certificates])


def drawn(generator, count=N):
    doubt = generator.random(count)
    return doubt, generator.random(count) >= 0.4 * doubt


@pytest.mark.parametrize("times", [2, 10])
def test_copies_of_queries_are_counted_once(times):
    def make(generator, once):
        doubt, right = drawn(generator)
        rows = generator.normal(size=(N, 16))
        rows = np.repeat(rows / np.linalg.norm(rows, axis=1, keepdims=True), times, axis=0)
        rows += 1e-5 * generator.normal(size=rows.shape)
        kept = distinct(rows) if once else np.arange(len(rows))
        return trust.certify(np.repeat(doubt, times)[kept], np.repeat(right, times)[kept], risk=0.1)

    assert violated(lambda generator: make(generator, True), repeats=100) <= at_most(0.1, 100)
    if times == 10:
        assert violated(lambda generator: make(generator, False), repeats=100) > at_most(0.1, 100)


def shopped(generator, tries):
    """The best of eight certificates by scores that say nothing, of answers wrong a little more often than allowed."""
    right = generator.random(N) >= 0.103
    return [trust.certify(generator.random(N), right, risk=0.1, tries=tries).threshold is not None for _ in range(8)]


def test_eight_scores_tried_keep_the_promise_where_tries_are_paid_for():
    generator = np.random.default_rng(5)
    free = np.mean([any(shopped(generator, 1)) for _ in range(60)])
    paid = np.mean([any(shopped(generator, 8)) for _ in range(60)])
    assert free > at_most(0.1, 60)
    assert paid <= at_most(0.1, 60)


def looked(generator, tries):
    """Whether any of eight certificates, each from 100 more queries than the one before, promises too much."""
    right = generator.random(8 * 100) >= 0.103
    doubt = generator.random(len(right))
    looks = [trust.certify(doubt[:n], right[:n], risk=0.1, tries=tries) for n in range(100, len(right) + 1, 100)]
    return any(look.threshold is not None for look in looks)


def test_a_look_after_each_hundred_more_labels_keeps_the_promise_where_looks_are_paid_for():
    generator = np.random.default_rng(7)
    free = np.mean([looked(generator, 1) for _ in range(60)])
    paid = np.mean([looked(generator, 8) for _ in range(60)])
    assert free > at_most(0.1, 60)
    assert paid <= at_most(0.1, 60)


def test_the_pilot_may_choose_among_scores_for_nothing():
    generator = np.random.default_rng(6)
    broken, names = [], []
    for _ in range(150):
        right = generator.random(N) >= 0.103
        scores = {str(number): generator.random(N) for number in range(8)}
        broken.append(trust.certify(scores, right, risk=0.1).threshold is not None)
        useful = {**scores, "useful": (1.0 - right) + 0.8 * generator.random(N)}
        names.append(trust.certify(useful, right, risk=0.05).score)
    assert np.mean(broken) <= at_most(0.1, 150)
    assert names.count("useful") > 75


def test_bursts_keep_the_promise_as_groups_and_are_seen_without():
    def make(generator, named):
        groups = np.repeat(np.arange(60), 20)
        doubt = generator.random(60)[groups]
        wrong = (generator.random(60) < 0.103)[groups]
        return trust.certify(doubt, ~wrong, risk=0.1, groups=groups if named else None)

    def share(named):
        generator = np.random.default_rng(7)
        return np.mean([make(generator, named).threshold is not None for _ in range(100)])

    assert share(True) <= at_most(0.1, 100) < share(False)


def test_a_long_tail_keeps_the_promise_with_importance():
    generator = np.random.default_rng(8)
    classes = np.arange(10)
    shares = 1.0 / (1 + classes)
    shares /= shares.sum()
    rates = np.where(classes == 0, 0.2, 0.02)  # the class that is most frequent in deployment is the hardest
    assert rates.mean() < 0.06 < shares @ rates
    kept = {True: [], False: []}
    for _ in range(100):
        labels = np.repeat(classes, 40)
        right = generator.random(400) >= rates[labels]
        weights = class_importance(labels, dict(zip(classes.tolist(), shares, strict=True)))
        for weighted in kept:
            options = {"importance": weights} if weighted else {}
            made = trust.certify(generator.random(400), right, risk=0.06, **options)
            kept[weighted].append(made.threshold is not None)
            assert made.weighted == weighted
    assert np.mean(kept[True]) <= at_most(0.1, 100) < np.mean(kept[False])


def test_equal_weights_certify_what_single_queries_as_groups_do():
    weighted = trust.certify(DOUBT, RIGHT, risk=0.2, importance=np.full(N, 3.0))
    grouped = trust.certify(DOUBT, RIGHT, risk=0.2, groups=np.arange(N))
    assert (weighted.threshold, weighted.risk_bound) == (grouped.threshold, grouped.risk_bound)


# copies and bursts


def rows_of(generator, count, width=128):
    rows = generator.normal(size=(count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_copies_are_those_of_a_comparison_of_all_with_all():
    generator = np.random.default_rng(9)
    rows = rows_of(generator, 200)
    rows = rows[generator.integers(0, 200, 400)] + 0.0008 * generator.normal(size=(400, 128))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    near = np.linalg.norm(rows[:, None] - rows[None], axis=2) <= 0.03
    groups = copy_groups(rows)
    assert np.array_equal(near, groups[:, None] == groups[None])
    assert np.array_equal(distinct(rows), np.flatnonzero(~np.tril(near, -1).any(axis=1)))
    assert np.array_equal(copies_of(rows, rows[:50]), near[:, :50].any(axis=1))


def test_a_crowd_of_copies_takes_no_more_memory_than_its_rows():
    generator = np.random.default_rng(11)
    chain = np.eye(2, 64)[0] + 0.02 * np.arange(30)[:, None] * np.eye(2, 64)[1]
    dark = rows_of(generator, 1, 64) + 0.0005 * generator.normal(size=(3000, 64))
    beside = dark[:20] + 0.1 * rows_of(generator, 20, 64)
    rows = np.concatenate([chain, dark, beside, rows_of(generator, 200, 64)]).astype(np.float32)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True))[generator.permutation(len(rows))]
    tracemalloc.start()
    groups = copy_groups(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * rows.nbytes  # the pairs of the crowd alone: 90 times
    wide = rows.astype(np.float64)
    near = 2 - 2 * wide @ wide.T <= 0.03**2
    expected = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_array(near), directed=False)[1]
    assert np.array_equal(groups[:, None] == groups[None], expected[:, None] == expected[None])


def test_bursts_are_seen_and_an_order_by_class_is_none():
    generator = np.random.default_rng(10)
    classes = np.repeat(np.arange(10), 30)
    centres = rows_of(generator, 10)
    by_class = centres[classes] + 0.08 * generator.normal(size=(300, 128))
    assert burst_sentence(by_class, classes) == ""
    frames = np.repeat(rows_of(generator, 60), 5, axis=0) + 0.03 * generator.normal(size=(300, 128))
    assert "look like bursts of one source" in burst_sentence(frames)
    assert burst_sentence(1e30 * frames) == burst_sentence(frames)
    assert burst_sentence(frames[generator.permutation(300)]) == ""
    assert "column 'Session' says what queries share" in burst_sentence(by_class, classes, ["label", "Session"])


def world(generator, count):
    """Unit rows of ten classes with their labels."""
    labels = np.arange(count) % 10
    rows = np.random.default_rng(99).normal(size=(10, 64))[labels] + 2.5 * generator.normal(size=(count, 64))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return {"mean": rows, "uncertainty": np.zeros(count, dtype=np.float32)}, labels


def test_training_images_are_refused_or_calibrate_nothing(caplog):
    generator = np.random.default_rng(11)
    gallery, queries = world(generator, 200), world(generator, 100)
    trained_on = np.concatenate([gallery[0]["mean"][:150], world(generator, 5)[0]["mean"]])
    assert len(calibration_answers(*gallery, *queries, trained_on=trained_on).right) == 100
    with pytest.raises(CertificateError, match="7 of 100 calibration images are images that the model was trained on"):
        calibration_answers(*gallery, *queries, trained_on=queries[0]["mean"][:7])
    answers = calibration_answers(*gallery, trained_on=trained_on)
    assert len(answers.right) == 50
    assert "150 of 200 images of the gallery were trained on and calibrate nothing" in caplog.text
    with pytest.raises(CertificateError, match="no image of the gallery can calibrate"):
        calibration_answers(*gallery, trained_on=gallery[0]["mean"])


def test_copies_among_calibration_queries_count_once_and_are_told(caplog):
    generator = np.random.default_rng(12)
    gallery, (queries, labels) = world(generator, 200), world(generator, 60)
    copied = np.repeat(np.arange(60), 10)
    twice = {name: values[copied] for name, values in queries.items()}
    answers = calibration_answers(*gallery, twice, labels[copied])
    assert len(answers.right) == 60
    assert "540 of 600 calibration images are copies of others; each counts once" in caplog.text
    assert certify_record(answers.tensors(), gallery[1], risk=0.3).queries == 60


# after the certificate


def test_bursts_do_not_alarm_where_sources_are_named():
    generator = np.random.default_rng(13)
    alarms = {True: 0, False: 0}
    for _ in range(25):
        groups = np.repeat(np.arange(300), 20)
        doubts = generator.normal(size=300)[groups] + 0.1 * generator.normal(size=6000)
        for named in alarms:
            report = trust.monitor(generator.normal(size=1000), doubts, groups=groups if named else None)
            alarms[named] += report.alarm is not None
    assert alarms[False] > 20
    assert alarms[True] <= 1  # 300 groups at a patience of 100,000: .003 of each run


def test_an_alarm_of_groups_names_the_query():
    generator = np.random.default_rng(14)
    groups = np.repeat(np.arange(400), 5)
    doubts = np.r_[generator.normal(size=1000), 2 + generator.normal(size=1000)]
    report = trust.monitor(generator.normal(size=500), doubts, groups=groups)
    assert report.alarm.query > 1000
    assert report.alarm.query % 5 == 1


def test_spot_checks_alarm_as_seldom_as_promised_and_as_soon_as_can_be():
    generator = np.random.default_rng(15)
    clean = [spot_checks(generator.random(1500) < 0.1, risk=0.1).alarm is not None for _ in range(400)]
    assert np.mean(clean) <= at_most(0.01, 400)
    for risk, factor, beyond in ((0.05, 1.5, 1.3), (0.2, 1.5, 1.3), (0.1, 2.0, 1.9), (0.05, 3.0, 1.9)):
        runs = [spot_checks(generator.random(1500) < factor * risk, risk=risk).alarm or 1501 for _ in range(100)]
        bound = checks_needed(factor * risk, risk=risk)
        assert 0.9 * bound < np.median(runs) <= beyond * bound
    assert checks_needed(0.05, risk=0.05) == np.inf


def test_no_test_needs_fewer_checks_than_the_best_of_one_size():
    for risk in (0.05, 0.1, 0.2):
        least = checks_needed(1.5 * risk, risk=risk)
        for count in range(1, least):
            errors = binom.isf(0.01, count, risk) + 1  # the fewest that are significant
            assert binom.sf(errors - 1, count, 1.5 * risk) < 0.5
    assert checks_needed(0.3, risk=0.2) == 99


def test_the_evidence_of_spot_checks_has_mean_false_alarms():
    # all sequences of ten checks: every martingale keeps its mean, whatever its horizon
    total = 0.0
    for number in range(2**10):
        wrong = np.array([number >> place & 1 for place in range(10)], dtype=float)
        chance = 0.3 ** wrong.sum() * 0.7 ** (10 - wrong.sum())
        last = [spot_checks_evidence(wrong[:count]) for count in (1, 10)]
        total += chance * np.array(last)
    assert total == pytest.approx(np.array([0.01, 0.01]), rel=1e-9)
    assert "1 of 3 checked answers are wrong; the promise may hold" in spot_checks([0, 1, 0], risk=0.3).text


def test_small_risks_want_as_many_errors_and_no_time():
    """Rare errors come as Poisson's: the fewest checks are a number of expected errors over the risk."""
    start = time.process_time()
    expected = [risk * checks_needed(2 * risk, risk=risk) for risk in (1e-3, 1e-6, 1e-9)]
    assert time.process_time() - start < 2
    np.testing.assert_allclose(expected, expected[-1], rtol=0.01)
    wrong = next(c for c in range(1, 50) if poisson.sf(c - 1, expected[-1]) <= 0.01)
    assert poisson.sf(wrong - 1, 2 * expected[-1]) == pytest.approx(0.5, abs=0.01)


def test_shares_near_the_risk_want_many_checks_and_no_time():
    """By the normal approximation: checks = p (1 - p) (z / gap)^2 at a chance of one half."""
    for share, risk in ((0.309, 0.30866), (0.5002, 0.5), (0.05001, 0.05)):
        start = time.process_time()
        needed = checks_needed(share, risk=risk)
        assert time.process_time() - start < 1
        assert needed == pytest.approx(risk * (1 - risk) * (norm.isf(0.01) / (share - risk)) ** 2, rel=0.03)
    assert checks_needed(0.3000001, risk=0.3) == np.inf


def spot_checks_evidence(wrong):
    """The evidence at the last of the checks."""
    return running_evidence(wrong, 0.3, 0.01)[-1]


def test_checks_of_one_source_count_once():
    wrong, sources = np.repeat([1, 0, 1, 1], 30), np.repeat(np.arange(4), 30)
    assert spot_checks(wrong, risk=0.1).alarm is not None
    report = spot_checks(wrong, risk=0.1, groups=sources)
    assert (report.checks, report.errors, report.alarm) == (4, 3, None)


def test_trust_imports_numpy_and_scipy_only_and_at_once():
    code = (
        "import sys, time; start = time.process_time(); import probmetric.trust; took = time.process_time() - start; "
        "import numpy, scipy; heavy = [name for name in sys.modules if name in "
        "('torch', 'pandas', 'pyarrow', 'sklearn', 'numba', 'scipy.spatial', 'scipy.sparse', 'scipy.optimize')]; "
        "print(took); sys.exit(str(heavy) if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 1.0  # .25 s on an idle core; here only what an import of PyTorch would break


def test_there_are_a_hundred_cases():
    assert len(REFUSED) + sum(map(len, FIELDS.values())) >= 100


def test_copies_of_one_picture_need_no_memory_for_all_their_pairs():
    """600 frames of a still video have 180,000 pairs: 370 MB of their rows alone."""
    rows = np.ones((600, 512)) + 1e-4 * np.random.default_rng(0).normal(size=(600, 512))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    tracemalloc.start()
    assert copy_groups(rows).max() == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6
