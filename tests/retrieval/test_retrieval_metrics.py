import math
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
import torch
from brute_force import cosine_keys, expected_metrics, label_positives, per_query
from hypothesis import given, settings

from probmetric.retrieval import retrieval_metrics, retrieval_per_query, summarize

KS = (1, 2, 4, 8)


@st.composite
def problems(draw, largest=50):
    """Unit rows and labels: random, or on a coarse grid (ties), with duplicates, singletons or one class."""
    count, dim = draw(st.integers(1, largest)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = generator.normal(size=(count, dim))
    if draw(st.booleans()):
        rows = np.rint(rows)
        rows[~rows.any(axis=1), 0] = 1.0
    if draw(st.booleans()):
        rows = rows[generator.integers(0, count, size=count)]
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    labels = generator.integers(0, draw(st.integers(1, count)), size=count)
    return rows, labels


def assert_same(found, expected, queries):
    for name in expected[0]:
        reference = np.array([one[name] for one in expected])
        np.testing.assert_allclose(found[name], reference, rtol=0, atol=1e-12, err_msg=name)
    assert len(found["mrr"]) == queries


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from(["pessimistic", "optimistic"]), st.integers(1, 60))
def test_self_retrieval_equals_full_rankings(problem, ties, block):
    rows, labels = problem
    own = range(len(rows))
    expected = per_query(cosine_keys(rows, rows), label_positives(labels, labels, own), own, KS, ties)
    blocks = patch("probmetric.retrieval.rank_counts.BLOCK_BYTES", 8 * len(rows) * block)
    with blocks, patch("probmetric.metrics.ranked.PAIRS", block):
        found = retrieval_per_query(rows, labels, ks=KS, ties=ties)
    assert_same(found, expected, len(rows))


@settings(max_examples=60, deadline=None)
@given(problems(largest=7))
def test_expected_ties_equal_mean_over_all_orders(problem):
    rows, labels = problem
    keys, positives = cosine_keys(rows, rows), label_positives(labels, labels, range(len(rows)))
    found = retrieval_per_query(rows, labels, ks=KS, ties="expected")
    for i in range(len(rows)):
        reference = expected_metrics(keys[i], positives[i], i, KS)
        for name, value in reference.items():
            assert found[name][i] == pytest.approx(value, abs=1e-12), name


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_query_gallery_with_sparse_relation_in_every_form(problem, seed):
    rows, _ = problem
    generator = np.random.default_rng(seed)
    queries = rows[: max(1, len(rows) // 3)]
    relation = generator.random((len(queries), len(rows))) < 0.2
    positives = [set(np.flatnonzero(row)) for row in relation]
    expected = per_query(cosine_keys(queries, rows), positives, [None] * len(queries), KS)
    forms = [scipy.sparse.csr_array(relation), np.argwhere(relation), [np.flatnonzero(row) for row in relation]]
    for form in forms:
        assert_same(retrieval_per_query(queries, gallery=rows, positives=form, ks=KS), expected, len(queries))


def test_means_and_queries_without_positives():
    rows = np.eye(4, dtype=np.float32)[[0, 0, 1, 2]]
    found = retrieval_metrics(rows, [3, 3, 5, 7])
    assert found["queries_without_positives"] == 2
    assert found["recall_at_1"] == 1.0
    assert summarize(retrieval_per_query(rows, [3, 3, 5, 7]), empty="zero")["recall_at_1"] == 0.5
    assert found["map_at_5_empty_as_one"] == 1.0
    assert found["recall_at_1_empty_as_zero"] == 0.5
    assert math.isnan(retrieval_metrics(rows[:1], [0])["recall_at_1"])
    with pytest.raises(ValueError, match="'skip', 'zero'"):
        summarize(retrieval_per_query(rows, [3, 3, 5, 7]), empty="one")


def test_wrongly_labelled_duplicates_are_not_taken_for_the_query():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    doubled, labels = np.concatenate([rows, rows]), np.r_[np.zeros(20, int), np.ones(20, int)]
    assert retrieval_metrics(doubled, labels)["recall_at_1"] == 0.0


def test_torch_tensors_give_the_same():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(30, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = generator.integers(0, 5, 30)
    assert retrieval_metrics(torch.from_numpy(rows), torch.from_numpy(labels)) == retrieval_metrics(rows, labels)


def test_gallery_that_contains_the_queries():
    generator = np.random.default_rng(2)
    rows = generator.normal(size=(30, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = generator.integers(0, 5, 30)
    order = generator.permutation(30)
    inside = retrieval_metrics(
        rows, labels, gallery=rows[order], gallery_labels=labels[order], self_index=np.argsort(order)
    )
    assert inside == retrieval_metrics(rows, labels)


BAD = {
    "nan": (lambda x, y: (np.where(np.arange(len(x))[:, None] == 3, np.nan, x), y), {}, "row 3 is not finite"),
    "norm": (lambda x, y: (x * 2, y), {}, "row 0 has norm 2.*normalize=True"),
    "length": (lambda x, y: (x, y[:-1]), {}, r"labels has shape \(5,\); expected \(6,\)"),
    "negative": (lambda x, y: (x, np.where(np.arange(6) == 2, -1, y)), {}, "labels: entry 2 is -1"),
    "vector": (lambda x, y: (x[0], y), {}, r"embeddings has shape \(3,\)"),
    "ks": (lambda x, y: (x, y), {"ks": (0,)}, "a cutoff in ks is 0; expected at least 1"),
    "ties": (lambda x, y: (x, y), {"ties": "random"}, "'expected'"),
    "distance": (lambda x, y: (x, y), {"distance": "cosin"}, "did you mean 'cosine'"),
    "ball": (lambda x, y: (x, y), {"distance": "poincare"}, "inside the unit ball"),
    "scale": (lambda x, y: (x * 1e20, y), {"distance": "euclidean"}, "largest row norm is 1e.20"),
    "both": (lambda x, y: (x, y), {"positives": [[1]] * 6}, "either labels or positives"),
    "gallery": (lambda x, y: (x, y), {"gallery": np.eye(3, dtype=np.float32)}, "go together"),
    "dims": (lambda x, y: (x, y), {"gallery": np.eye(2), "gallery_labels": [0, 1]}, "3 dimensions, the gallery has 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    change, options, message = BAD[name]
    rows, labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]], np.array([0, 1, 2, 0, 1, 2])
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(*change(rows, labels), **options)


def test_float_labels_are_refused():
    with pytest.raises(TypeError, match=r"labels has dtype float64.*np.unique\(labels, return_inverse=True\)"):
        retrieval_metrics(np.eye(3), [0.0, 1.0, 0.0])
