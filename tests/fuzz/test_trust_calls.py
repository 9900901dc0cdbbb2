"""Public functions of trust under random arguments, good and bad."""

import inspect

import numpy as np
from calls import fuzz
from test_calls import labelled, probabilities, rows_of

from probmetric import trust

CALLS = 1300


def answers(function, **more):
    """Doubts and whether the answers are right, under the names of the function's first two arguments."""
    first, second = list(inspect.signature(function).parameters)[:2]

    def make(g):
        count = int(g.integers(1, 300))
        doubt = g.random(count).round(3)
        return {first: doubt, second: g.random(count) > doubt / 2, **more}

    return make


def scores(g):
    count = int(g.integers(2, 60))
    return [{"cosine": g.normal(size=count), "gap": g.normal(size=count)}, g.random(count) < 0.7]


def fitted(g):
    return dict(zip(list(inspect.signature(trust.fit_p_right).parameters)[:2], scores(g), strict=True))


def added(g):
    free, right = scores(g)
    values = [free, {"own": g.normal(size=len(right))}, right, g.integers(0, 12, len(right))]
    return dict(zip(list(inspect.signature(trust.added_auroc).parameters)[:4], values, strict=True)) | {"resamples": 10}


def in_groups(g):
    made = answers(trust.certify, risk=0.4)(g)
    return made | {"confidence": 0.6, "groups": g.integers(0, 90, len(next(iter(made.values()))))}


def of_identities(g):
    made = answers(trust.certify_pairs, false_accept=0.3)(g)
    same = made["same"]
    first = g.integers(0, 40, len(same))
    return made | {"identities": np.stack([first, np.where(same, first, first + 40)], axis=1)}


def doubted(g):
    return {"doubt": g.random(g.integers(1, 20)), "calibration": (g.random(30), g.random(30) < 0.7)}


def identified(g):
    return answers(trust.identification_rates)(g) | {"strangers": g.random(g.integers(1, 50))}


def strangers(g):
    return {"known": g.random(9), "strangers": g.random(g.integers(1, 90)), "false_accept": 0.2}


def class_doubts(g):
    made = probabilities(g)
    return {"class_doubt": made["probabilities"], "labels": made["labels"], "per_class": bool(g.random() < 0.5)}


def of_classes(g):
    labels = g.integers(0, 3, g.integers(1, 20))
    classes = np.unique(labels).tolist()
    return {"labels": labels, "shares": dict(zip(classes, g.dirichlet(np.ones(len(classes))).tolist(), strict=True))}


def watched(g):
    doubt = g.random(g.integers(1, 90))
    return {
        "reference": g.random(60),
        "doubt": doubt,
        "groups": g.integers(0, 9, len(doubt)),
        "seed": 3,
    }


def checked(g):
    wrong = g.random(g.integers(1, 90)) < 0.3
    return {"wrong": wrong, "risk": 0.1, "false_alarms": 0.05, "groups": g.integers(0, 40, len(wrong))}


def in_order(g):
    rows = rows_of(g, int(g.integers(1, 30)), 3)
    return {"rows": rows, "labels": g.integers(0, 3, len(rows)), "columns": ["session"]}


TRUST = {
    "burst_sentence": (trust.burst_sentence, in_order),
    "certify": (trust.certify, answers(trust.certify, risk=0.3)),
    "certify in groups": (trust.certify, in_groups),
    "certify_pairs": (trust.certify_pairs, answers(trust.certify_pairs, false_accept=0.2)),
    "certify_pairs of identities": (trust.certify_pairs, of_identities),
    "certify_strangers": (trust.certify_strangers, strangers),
    "class_importance": (trust.class_importance, of_classes),
    "copies_of": (trust.copies_of, lambda g: {"rows": rows_of(g, 4, 3), "others": rows_of(g, 3, 3)}),
    "copy_groups": (trust.copy_groups, lambda g: {"rows": rows_of(g, 6, 2)}),
    "distinct": (trust.distinct, lambda g: {"rows": rows_of(g, 6, 2)}),
    "checks_needed": (trust.checks_needed, lambda g: {"share": float(g.random()), "risk": float(g.random())}),
    "contradictory_copies": (trust.contradictory_copies, labelled),
    "coverage_sets": (trust.coverage_sets, class_doubts),
    "fit_p_right": (trust.fit_p_right, fitted),
    "added_auroc": (trust.added_auroc, added),
    "fnir_at_fpir": (trust.fnir_at_fpir, identified),
    "identification_rates": (trust.identification_rates, identified),
    "match_e_values": (trust.match_e_values, doubted),
    "monitor": (trust.monitor, watched),
    "p_right_metrics": (trust.p_right_metrics, answers(trust.p_right_metrics)),
    "select_by_e_values": (trust.select_by_e_values, lambda g: {"e_values": g.exponential(size=9), "fdr": 0.2}),
    "select_matches": (trust.select_matches, lambda g: doubted(g) | {"fdr": 0.2}),
    "spot_checks": (trust.spot_checks, checked),
    "suspect_labels": (trust.suspect_labels, labelled),
}


def test_every_call_of_trust_gives_a_result_or_a_sentence():
    faults = fuzz(TRUST, CALLS, seed=1)
    assert not faults, f"{len(faults)} of {CALLS}\n" + "\n".join(faults[:12])


def test_a_pilot_whose_groups_all_gain_alike_certifies_as_any_other():
    """Groups of the pilot that all lie where the added one does spread by nothing, which was divided by."""
    doubt = [0.738, 0.401, 0.377, 0.643, 0.864, 0.095, 0.479, 0.621, 0.588, 0.02]
    doubt += [0.446, 0.21, 0.392, 0.119, 0.666, 0.206, 0.871, 0.329, 0.855]
    groups = [40, 58, 7, 18, 40, 34, 3, 87, 48, 12, 86, 82, 85, 83, 42, 67, 34, 42, 0]
    right = np.array([int(mark) for mark in "1110010101011111111"], dtype=bool)
    certificate = trust.certify(doubt, right, risk=0.4, confidence=0.6, groups=groups)
    assert 0.0 <= certificate.risk_bound <= 1.0
