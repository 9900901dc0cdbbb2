"""Gallery rows that are neither right nor wrong: Market-1501's protocol, brute force in float64, every engine."""

import numpy as np
import pytest
import scipy.sparse
from brute_force import cosine_keys, metrics_of_ranking, ranking

from probmetric.retrieval import find_match, match_record, rank_counts, retrieval_metrics, retrieval_per_query, search
from probmetric.retrieval.compiled import compiled_counts
from probmetric.retrieval.problem import build_problem
from probmetric.retrieval.rank_counts import numpy_counts
from probmetric.retrieval.torch_engine import torch_counts

JUNK, DISTRACTOR = -1, 0


def market(seed, queries=25, gallery=140, people=9, cameras=4, dim=8):
    """A small Market-1501: rows, person and camera of queries and gallery; -1 is junk, 0 a distractor."""
    generator = np.random.default_rng(seed)
    person = generator.integers(1, people, queries), generator.integers(-1, people, gallery)
    camera = generator.integers(0, cameras, queries), generator.integers(0, cameras, gallery)
    centres = generator.normal(size=(people + 1, dim))
    rows = [centres[who] + 1.5 * generator.normal(size=(len(who), dim)) for who in person]
    rows = [(each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in rows]
    same_camera = (person[0][:, None] == person[1]) & (camera[0][:, None] == camera[1])
    return rows, person, same_camera


def as_published(rows, person, ignored):
    """Recall@1 and average precision of each query, written from the protocol: junk and same camera are not there."""
    recalls, precisions = [], []
    similarity = rows[0].astype(np.float64) @ rows[1].astype(np.float64).T
    for query, who in enumerate(person[0]):
        there = np.flatnonzero((person[1] != JUNK) & ~ignored[query])
        right = person[1][there[np.argsort(-similarity[query, there])]] == who
        ranks = np.flatnonzero(right) + 1
        recalls.append(float(right[0]))
        precisions.append(float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else 0.0)
    return np.array(recalls), np.array(precisions)


@pytest.mark.parametrize("seed", range(5))
def test_a_small_market_1501(seed):
    rows, person, ignored = market(seed)
    recall, precision = as_published(rows, person, ignored)
    options = {"gallery": rows[1], "gallery_labels": person[1], "ignore": ignored}
    values = retrieval_per_query(rows[0], person[0], ks=(1,), **options)
    np.testing.assert_array_equal(values["recall_at_1"], recall)
    np.testing.assert_allclose(values["map_at_1000"], precision, rtol=1e-12)
    assert retrieval_metrics(rows[0], person[0], ks=(1,), **options)["map_at_1000"] == pytest.approx(
        precision[values["positives"] > 0].mean()
    )


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_every_engine_ignores_the_same(distance):
    rows, person, ignored = market(7)
    problem = build_problem(
        rows[0], person[0], gallery=rows[1], gallery_labels=person[1], ignore=ignored, distance=distance
    )
    expected = list(numpy_counts(problem))
    for other in (list(compiled_counts(problem, 32)), list(torch_counts(problem, 7))):
        for name in ("above", "tied"):
            first, second = (np.concatenate([getattr(part, name) for part in parts]) for parts in (expected, other))
            np.testing.assert_array_equal(first, second)


def test_among_themselves_each_ignores_its_own():
    rows, person, _ = market(3)
    generator = np.random.default_rng(0)
    ignored = generator.random((140, 140)) < 0.1  # not symmetric
    labels = np.maximum(person[1], 0)
    problem = build_problem(rows[1], labels, ignore=ignored)
    for exact, fast in zip(numpy_counts(problem, 140), compiled_counts(problem, 32), strict=True):
        np.testing.assert_array_equal(exact.above, fast.above)
        np.testing.assert_array_equal(exact.tied, fast.tied)
    similarity = rows[1].astype(np.float64) @ rows[1].astype(np.float64).T
    similarity[ignored | np.eye(140, dtype=bool)] = -np.inf
    order = np.argsort(-similarity, axis=1)[:, :5]
    np.testing.assert_array_equal(search(rows[1], k=5, ignore=ignored).rows, order)


def test_a_large_search_ignores_too(monkeypatch):
    rows, _, _ = market(4)
    ignored = np.random.default_rng(1).random((140, 140)) < 0.3
    expected = search(rows[1], k=6, ignore=ignored)
    monkeypatch.setattr("probmetric.retrieval.neighbours.COMPILED_FROM", 1)
    found = search(rows[1], k=6, ignore=ignored)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.cosines, expected.cosines)


def test_every_form_of_a_mask_is_one():
    rows, person, ignored = market(5)
    forms = {
        "array": ignored,
        "lists of rows": [np.flatnonzero(row) for row in ignored],
        "lists of bools": ignored.tolist(),
        "pairs": np.argwhere(ignored),
        "sparse": scipy.sparse.csr_matrix(ignored),
    }
    results = {
        name: match_record(rows[0], rows[1], person[1], k=4, ignore=form)["nearest"] for name, form in forms.items()
    }
    for name, nearest in results.items():
        np.testing.assert_array_equal(nearest, results["array"], err_msg=name)


def test_the_match_finds_neither_junk_nor_what_is_ignored():
    rows, person, ignored = market(6)
    match = find_match({"mean": rows[0]}, {"mean": rows[1], "row": np.arange(140)}, person[1], k=8, ignore=ignored)
    assert (match.classes != JUNK).all()
    np.testing.assert_array_equal(match.classes, person[1][match.indices])
    assert not ignored[np.arange(25)[:, None], match.indices].any()
    np.testing.assert_array_equal(match.answer["row"], match.indices[:, 0])
    similarity = np.where(ignored | (person[1] == JUNK), -np.inf, rows[0].astype(float) @ rows[1].astype(float).T)
    np.testing.assert_array_equal(match.indices, np.argsort(-similarity, axis=1)[:, :8])
    other = np.where(person[1] == match.classes[:, :1], -np.inf, similarity).max(axis=1)
    np.testing.assert_allclose(match.gap, similarity.max(axis=1) - other, atol=1e-6)


def test_two_images_of_one_camera_are_ignored():
    angles = np.radians([5.0, 30.0, 20.0, 5.0])
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    options = {"gallery": gallery, "normalize": True, "ks": (1,)}
    assert retrieval_metrics([[1.0, 0.0]], positives=[[2]], ignore=[[0, 3]], **options)["recall_at_1"] == 1.0
    assert retrieval_metrics([[1.0, 0.0]], positives=[[2]], **options)["recall_at_1"] == 0.0
    junk = retrieval_metrics([[1.0, 0.0]], [0], gallery_labels=[-1, 1, 0, -1], **options)
    assert junk["map_at_r"] == 1.0


def test_bad_masks_are_named():
    rows = np.eye(3)
    for bad, message in {
        "row 3": r"ignore: entry 0 names gallery row 3; there are 3 rows",
        "lists 1": r"ignore lists 1 queries; there are 3",
        "dtype float64": r"ignore has shape \(3, 3\), dtype float64",
    }.items():
        ignore = {"row 3": [[3], [], []], "lists 1": [[0]], "dtype float64": np.ones((3, 3))}[bad]
        with pytest.raises(ValueError, match=message):
            retrieval_metrics(rows, [0, 0, 1], ignore=ignore)
    with pytest.raises(ValueError, match="gallery_labels: all 3 are -1"):
        retrieval_metrics(rows, [0, 0, 1], gallery=rows, gallery_labels=[-1, -1, -1])
    with pytest.raises(ValueError, match="a query ignores, or is, every row"):
        search(rows, ignore=np.ones((3, 3), dtype=bool))


@pytest.mark.parametrize("compiled", [False, True])
def test_an_embedding_of_norm_zero_has_cosine_0_with_everything(compiled, monkeypatch):
    generator = np.random.default_rng(2)
    rows, labels = generator.normal(size=(40, 6)), np.arange(40) % 4
    rows[[3, 7]] = 0
    if compiled:
        monkeypatch.setattr(rank_counts, "COMPILED_FROM", 1)
        monkeypatch.setattr("probmetric.retrieval.neighbours.COMPILED_FROM", 1)
    metrics = retrieval_metrics(rows, labels, normalize=True)
    assert all(0.0 <= value <= 1.0 for name, value in metrics.items() if name != "queries_without_positives")
    nearest = search(rows, k=3, normalize=True)
    np.testing.assert_array_equal(nearest.cosines[[3, 7]], 0.0)
    np.testing.assert_array_equal(nearest.rows[[3, 7]], [[0, 1, 2], [0, 1, 2]])
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    record = match_record(unit, unit, labels, self_index=np.arange(40))
    assert np.isfinite(record["gap"]).all()
    assert record["cosine"][3] == record["gap"][3] == 0.0
    assert 3 not in np.delete(record["nearest"], [3, 7])


def test_rows_that_are_no_numbers_are_named():
    rows = np.eye(4)
    rows[[1, 2], 0] = np.nan, np.inf
    with pytest.raises(ValueError, match=r"embeddings: row 1 is not finite \(nan\); 2 of 4 are affected"):
        retrieval_metrics(rows, [0, 0, 1, 1])


def test_one_query_one_class_and_images_alone_in_their_class():
    rows = np.eye(3)
    assert retrieval_metrics(rows, [0, 0, 0])["recall_at_1"] == 1.0
    alone = retrieval_metrics(rows, [0, 1, 2])
    assert np.isnan(alone["recall_at_1"])
    assert alone["queries_without_positives"] == 3
    one = retrieval_metrics(rows[:1], [0], gallery=rows, gallery_labels=[0, 1, 2])
    assert one["mrr"] == 1.0
    assert "gap" not in match_record(rows[:1], rows, [5, 5, 5])
    two = match_record(rows, rows, [5, 5, 6], self_index=np.arange(3))
    assert np.isfinite(two["gap"]).all()


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
def test_random_problems_equal_full_rankings(ties):
    """Brute force in integers: every metric of every query, with junk, rows to ignore, itself, and tied rows."""
    for seed in range(150):
        generator = np.random.default_rng(seed)
        count, others, dim = (int(size) for size in generator.integers(1, 9, 3))
        gallery = generator.integers(-1, 2, (others, dim)) + 0.0
        gallery /= np.maximum(np.linalg.norm(gallery, axis=1, keepdims=True), 1)
        itself = generator.integers(-1, others, count)
        queries = np.where(itself[:, None] >= 0, gallery[itself], 0.0)
        labels, classes = generator.integers(0, 3, count), generator.integers(-1, 3, others)
        ignored = generator.random((count, others)) < 0.2
        if (classes == JUNK).all():
            continue
        values = retrieval_per_query(
            queries,
            labels,
            gallery=gallery,
            gallery_labels=classes,
            self_index=itself,
            ignore=ignored,
            ties=ties,
            ks=(1, 3),
        )
        keys = cosine_keys(queries.astype(np.float32), gallery.astype(np.float32))
        for query in range(count):
            there = (classes != JUNK) & ~ignored[query] & (np.arange(others) != itself[query])
            kept = [key for key, listed in zip(keys[query], there, strict=True) if listed]
            right = set(np.flatnonzero(classes[there] == labels[query]).tolist())
            expected = metrics_of_ranking(ranking(kept, right, -1, ties), (1, 3))
            for name, value in expected.items():
                assert values[name][query] == pytest.approx(value, abs=1e-12), (seed, query, name)
