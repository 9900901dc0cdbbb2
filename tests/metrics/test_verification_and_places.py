"""Pairs of faces and street scenes, each by its own protocol, against references written out."""

import numpy as np
import pytest

from probmetric.config import Evaluation
from probmetric.io import write_tensors
from probmetric.metrics.verification import Pairs, error_versus_discard, verification_metrics
from probmetric.runs.evaluate import ImageFacts, evaluate_run
from probmetric.runs.folder import RunFolder
from probmetric.runs.places import Places


def unit(rng, count, dim=8):
    rows = rng.standard_normal((count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_pairs_are_looked_up_by_manifest_row():
    mean, index = unit(np.random.default_rng(0), 6), np.array([3, 5, 8, 9, 20, 21])
    pairs = Pairs(np.array([[5, 21], [3, 3]]), np.array([False, True]))
    np.testing.assert_allclose(pairs.similarities(mean, index), [mean[1] @ mean[5], 1.0])
    assert pairs.doubt(np.array([0.5, 0.4, 0.9, 0.1, 0.2, 0.3]), index).tolist() == [0.4, 0.5]
    with pytest.raises(ValueError, match=r"\[ 5 22\]; not all are embedded"):
        Pairs(np.array([[5, 22]]), np.array([True])).similarities(mean, index)


@pytest.mark.parametrize("seed", range(5))
def test_verification_against_every_threshold(seed):
    rng = np.random.default_rng(seed)
    same = rng.random(300) < 0.4
    scores = np.round(rng.normal(np.where(same, 0.6, 0.2), 0.2), 2)
    found = verification_metrics(scores, same)
    thresholds = np.r_[np.unique(scores), 2.0]
    refused = np.array([(scores[same] < t).mean() for t in thresholds])
    accepted = np.array([(scores[~same] >= t).mean() for t in thresholds])
    assert found["tar_at_far_1"] == pytest.approx(max((1 - refused)[accepted <= 0.01]))
    wins = (scores[same][:, None] > scores[~same]) + 0.5 * (scores[same][:, None] == scores[~same])
    assert found["auroc"] == pytest.approx(wins.mean())
    right = 0
    for fold in range(10):
        own = np.where(same, np.cumsum(same), np.cumsum(~same)) % 10 == fold
        levels = np.unique(scores[~own])
        between = [levels[0], *(levels[1:] + levels[:-1]) / 2, np.inf]
        told = [((scores[~own] >= t) == same[~own]).sum() for t in between]
        right += ((scores[own] >= between[int(np.argmax(told))]) == same[own]).sum()
    assert found["accuracy"] == right / 300


@pytest.mark.parametrize("seed", range(20))
def test_the_equal_error_rate_is_where_the_roc_curve_crosses_the_diagonal(seed):
    """By bisection on the polyline through all thresholds, as is usual (bob, `brentq` on an interpolated ROC curve)."""
    rng = np.random.default_rng(seed)
    same = rng.permutation(np.arange(4 + 3 * seed) < 1 + seed)
    scores = rng.normal(0.8 * same, 1.0).round(1 + seed % 2)
    points = {(1.0, 1.0)}
    for threshold in [*scores, np.inf]:
        points.add(((scores[~same] >= threshold).mean(), (scores[same] >= threshold).mean()))
    false, true = np.array(sorted(points)).T
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        left = np.flatnonzero(false <= middle).max()
        right = min(left + 1, len(false) - 1)
        step = false[right] - false[left]
        hit = true[left] + (true[right] - true[left]) * ((middle - false[left]) / step if step else 0.0)
        low, high = (middle, high) if 1 - hit > middle else (low, middle)
    assert verification_metrics(scores, same)["eer"] == pytest.approx(high, abs=1e-9)


def test_an_equal_error_rate_between_two_thresholds():
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    same = np.array([True, False, True, True, False])
    # (false, true) accepts: (0, 1/3), (1/2, 1/3), (1/2, 1): the ROC curve crosses 1 - x on the step at 1/2
    assert verification_metrics(scores, same)["eer"] == pytest.approx(0.5)
    # one threshold refuses 1/4 and accepts 0, the next refuses 0 and accepts 1/2, both at once for tied scores
    tied = verification_metrics(np.array([3, 3, 3, 2, 2, 1.0]), np.array([True, True, True, True, False, False]))
    assert tied["eer"] == pytest.approx(1 / 6)


def test_scores_that_are_neighbours_in_float64_are_told_apart():
    """Their middle is rounded to one of them."""
    same = np.arange(20) % 2 == 0
    for score in (0.5, np.nextafter(0.5, 1)):
        assert verification_metrics(np.where(same, np.nextafter(score, 1), score), same)["accuracy"] == 1.0


def test_chance_and_perfection():
    rng = np.random.default_rng(2)
    same = np.arange(2000) % 2 == 0
    chance = verification_metrics(rng.random(2000), same)
    assert chance["accuracy"] == pytest.approx(0.5, abs=0.04)
    assert chance["eer"] == pytest.approx(0.5, abs=0.04)
    perfect = verification_metrics(same + 0.1 * rng.random(2000), same)
    assert perfect == {"accuracy": 1.0, "auroc": 1.0, "eer": 0.0, "tar_at_far_1": 1.0}


@pytest.mark.parametrize("measure", [verification_metrics, lambda *pairs: error_versus_discard(*pairs, np.zeros(3))])
@pytest.mark.parametrize("same", [np.ones(3), np.zeros(3)])
def test_pairs_of_one_kind_are_refused(measure, same):
    with pytest.raises(ValueError, match="both kinds are needed"):
        measure(np.ones(3), same)


@pytest.mark.parametrize("levels", [1, 7, 1000])
def test_error_versus_discard_by_definition(levels):
    """Of pairs that are equally doubtful the same share goes of either kind, in whatever order they come."""
    rng = np.random.default_rng(levels)
    same, doubt = rng.random(150) < 0.4, rng.integers(0, levels, 150)
    scores = rng.normal(1.2 * same).round(2)
    threshold = min(t for t in [*scores, np.inf] if (scores[~same] >= t).mean() <= 0.01)
    rates = []
    for share in range(21):
        left, genuine, refused = 150 - 150 * share // 100, 0.0, 0.0
        for level in np.unique(doubt):
            alike = doubt == level
            kept = min(left, alike.sum()) / alike.sum()
            left -= min(left, alike.sum())
            genuine += kept * (alike & same).sum()
            refused += kept * (alike & same & (scores < threshold)).sum()
        rates.append(refused / genuine)
    assert 0 < error_versus_discard(scores, same, doubt) == pytest.approx(np.mean(rates))
    order = rng.permutation(150)
    assert error_versus_discard(scores[order], same[order], doubt[order]) == pytest.approx(np.mean(rates))


def test_discarding_every_genuine_pair_is_no_gain():
    """Two of twenty are genuine, and refused; without them there is no rate."""
    same = np.arange(20) < 2
    assert error_versus_discard(np.arange(20.0), same, same) == 1.0
    assert error_versus_discard(np.arange(20.0), same, same, most=1.0) == 1.0


@pytest.fixture
def street():
    rng = np.random.default_rng(3)
    count = 120
    columns = {
        "city": rng.choice(["a", "b"], count),
        "easting": rng.uniform(0, 120, count),
        "northing": rng.uniform(0, 60, count),
        "role": rng.choice(["query", "database"], count),
        "night": rng.random(count) < 0.4,
    }
    return unit(rng, count), Places(columns)


@pytest.mark.parametrize("task", ["all", "day_to_night", "night_to_day"])
def test_a_query_is_answered_by_the_database_within_25_metres(street, task):
    mean, places = street
    c = places.columns
    asks, searched = c["role"] == "query", c["role"] == "database"
    if task != "all":
        asks &= c["night"] == (task == "night_to_day")
        searched &= c["night"] == (task == "day_to_night")
    sides = places.asked(np.arange(len(mean)), task)
    queries, database = sides.queries, sides.gallery
    values = sides.per_query(mean, np.arange(len(mean)), (1, 5))
    np.testing.assert_array_equal(queries, np.flatnonzero(asks))
    np.testing.assert_array_equal(database, np.flatnonzero(searched))
    for i, query in enumerate(queries):
        metres = np.hypot(c["easting"] - c["easting"][query], c["northing"] - c["northing"][query])
        right = (metres <= 25) & (c["city"] == c["city"][query])
        ranked = database[np.argsort(-(mean[database] @ mean[query]))]
        assert values["recall_at_1"][i] == right[ranked[0]]
        assert values["recall_at_5"][i] == right[ranked[:5]].any()
        assert values["positives"][i] == right[database].sum()


def measured(folder, mean, places, index, ks):
    """Return metrics and curves of the images with these manifest rows."""
    numbers = {"label": index, "index": index}
    tensors = {"mean": mean[index], "uncertainty": np.linspace(0, 1, len(index))} | numbers
    write_tensors(RunFolder(folder).embeddings_file("test"), tensors)
    unit = "image" if places.walks is None else "walk"
    return evaluate_run(folder, Evaluation(ks=ks), ImageFacts(places=places, unit=unit))


def test_metrics_of_places(street, tmp_path):
    mean, places = street
    metrics, curves = measured(tmp_path, mean, places, np.arange(len(mean)), (1, 5))
    for name in ("retrieval/recall_at_5", "retrieval/map_at_5", "sparsification/ausc_query_and_neighbour"):
        assert 0 <= metrics[name] <= 1
    assert {"retrieval_day_to_night/recall_at_1", "retrieval_night_to_day/recall_at_1"} < metrics.keys()
    assert not any(name.startswith(("clustering", "structure")) for name in metrics)
    kept = [f"units/{name}" for name in ("retrieval/recall_at_1", "retrieval/map_at_r", "sparsification/error_auroc")]
    assert curves.keys() == {"sparsification", *kept, "unit_errors", "p_right"}
    assert np.mean(curves[kept[0]]["value"]) == pytest.approx(metrics["retrieval/recall_at_1"], abs=1e-5)
    assert curves[kept[0]].keys() == {"value", "image"}


def test_the_unit_of_places_is_the_walk(street, tmp_path):
    """Images of a walk show the same street a few metres further on; those of no known walk stand for themselves."""
    mean, places = street
    sequence = np.array([["", "north", "south"][place % 3] for place in range(len(mean))])
    walked = Places.in_manifest(places.columns | {"sequence": sequence})
    names = {number: set(sequence[walked.walks == number]) for number in np.unique(walked.walks)}
    assert sorted(map(sorted, (walk for number, walk in names.items() if number >= 0))) == [["north"], ["south"]]
    assert sum(number < 0 for number in names) == np.count_nonzero(sequence == "")
    _, curves = measured(tmp_path, mean, walked, np.arange(len(mean)), (1,))
    asked = walked.walks[np.flatnonzero(places.columns["role"] == "query")]
    assert set(curves["units/retrieval/recall_at_1"]["walk"]) <= set(asked.tolist())
    assert curves["unit_errors"]["retrieval/recall_at_1"][1] < len(asked)


@pytest.mark.parametrize("role", ["none", "query", "database"])
def test_a_split_without_queries_or_database_has_no_metrics(street, tmp_path, role):
    mean, places = street
    index = np.flatnonzero(places.columns["role"] == role)
    assert measured(tmp_path, mean, places, index, (1,)) == ({}, {})


@pytest.mark.parametrize("impostors", [100, 300, 700, 3000])
def test_one_per_cent_of_the_impostors_may_be_accepted(impostors):
    """1 - 99 / 100 is more than 0.01 in floating point."""
    false = np.arange(impostors) / impostors
    threshold = false[-impostors // 100] - 0.5 / impostors  # a hundredth of the impostors lies above
    same = np.arange(impostors + 50) >= impostors
    scores = np.append(false, np.full(50, threshold))
    assert verification_metrics(scores, same)["tar_at_far_1"] == 1.0
    assert error_versus_discard(scores, same, np.zeros(len(scores)), most=0.0) == 0.0
