"""OPIS against its definition, pair by pair."""

import itertools
import math

import numpy as np
import pytest

from probmetric.metrics import direction, threshold, threshold_metrics


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def by_definition(rows: np.ndarray, labels: np.ndarray) -> float:
    def distance(a: int, b: int) -> float:
        return math.dist(rows[a].astype(float), rows[b].astype(float))

    pairs = [(a, b, distance(a, b)) for a, b in itertools.combinations(range(len(rows)), 2)]
    apart = [d for a, b, d in pairs if labels[a] != labels[b]]
    thresholds = np.linspace(*np.quantile(apart, [0.01, 0.1]), 101)
    utilities = []
    for name in np.unique(labels):
        within = [d for a, b, d in pairs if labels[a] == labels[b] == name]
        without = [d for a, b, d in pairs if (labels[a] == name) != (labels[b] == name)]
        if not within:
            continue
        row = []
        for t in thresholds:
            accepted, refused = np.mean([d <= t for d in within]), np.mean([d > t for d in without])
            row.append(2 * accepted * refused / (accepted + refused) if accepted + refused else 0.0)
        utilities.append(row)
    mean = np.mean(utilities, axis=0)
    return float(np.mean([(np.array(row) - mean) ** 2 for row in utilities]))


@pytest.mark.parametrize("seed", range(3))
def test_opis_by_definition(seed):
    generator = np.random.default_rng(seed)
    labels = np.array([0] * 9 + [4] * 6 + [5] * 12 + [7])  # the last class has no pairs
    centres = generator.normal(size=(8, 5))
    rows = unit(
        centres[labels] + generator.uniform(0.2, 1.5, 8)[labels, None] * generator.normal(size=(len(labels), 5))
    )
    assert threshold_metrics(rows, labels)["opis"] == pytest.approx(by_definition(rows, labels), rel=1e-6)


def test_classes_of_one_spread_share_a_threshold_and_others_do_not():
    generator = np.random.default_rng(0)
    labels, centres = np.repeat(np.arange(20), 30), generator.normal(size=(20, 16))

    def opis(spread: np.ndarray) -> float:
        rows = centres[labels] + spread[labels, None] * generator.normal(size=(len(labels), 16))
        return threshold_metrics(unit(rows), labels)["opis"]

    assert opis(np.full(20, 0.5)) < 0.2 * opis(np.linspace(0.1, 0.9, 20))


def test_many_images_are_drawn(monkeypatch):
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(10), 60)
    rows = unit(generator.normal(size=(10, 8))[labels] + 0.8 * generator.normal(size=(600, 8)))
    whole = threshold_metrics(rows, labels)["opis"]
    monkeypatch.setattr(threshold, "MOST", 200)
    drawn = threshold_metrics(rows, labels, seed=3)["opis"]
    assert drawn != whole
    assert drawn == pytest.approx(whole, rel=0.25)
    assert drawn == threshold_metrics(rows, labels, seed=3)["opis"]


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 2]])
def test_without_two_classes_of_pairs_there_is_none(labels):
    assert math.isnan(threshold_metrics(unit(np.eye(4)), labels)["opis"])


def test_lower_is_better():
    assert direction("threshold/opis") == "lower"


def test_images_of_one_class_among_those_drawn_have_no_threshold():
    rows = unit(np.random.default_rng(0).normal(size=(20_000, 4)))
    labels = np.zeros(20_000, dtype=int)
    labels[[5, 77]] = 1
    drawn = [threshold_metrics(rows, labels, seed=seed)["opis"] for seed in range(3)]
    assert any(map(math.isnan, drawn))
