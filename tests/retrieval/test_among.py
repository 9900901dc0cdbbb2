"""One symmetric pass lists the neighbours of the exact keys, in their order, beside the ranks of the positives."""

import hypothesis.strategies as st
import numpy as np
import pytest
from brute_force import GRID, cosine_keys
from hypothesis import given, settings

from probmetric.retrieval import find_match, match_among, neighbours, rank_counts, retrieval_per_query, search
from probmetric.retrieval.compiled import Lists, compiled_counts
from probmetric.retrieval.match import match_of_lists
from probmetric.retrieval.neighbours import Search, settled
from probmetric.retrieval.problem import build_problem
from probmetric.trust.answers import among_others

FIELDS = ("similarity", "indices", "classes", "gap")


def unit_rows(seed, count, dim=16, kind="apart"):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, dim))
    if kind == "duplicates":
        rows = rows[generator.integers(0, max(1, count // 4), count)]
    if kind == "binary":  # most products are equal
        rows = np.sign(rows)
    if kind == "near ties":  # float32 products cannot order them
        rows = rows[0] / np.linalg.norm(rows[0]) + 3e-8 * rows
    if kind == "ascending":  # every row is nearer than all before it
        angle = np.linspace(1.5, 0, count)
        rows[:, 0], rows[:, 1], rows[:, 2:] = np.cos(angle), np.sin(angle), 0
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def offered(rows, labels, k, tile):
    lists = Lists(rows, labels, k)
    for _ in compiled_counts(build_problem(rows, labels), tile, lists=lists):
        pass
    return lists


def matched(rows, labels, k=10, lists=None):
    """The match of each row among the others."""
    if lists is None:
        return find_match({"mean": rows}, {"mean": rows}, labels, k=k, self_index=np.arange(len(rows)))
    space = Search(rows, [rows], build_problem(rows, labels).struck, labels=labels)
    k = min(k, len(rows) - 1)
    nearest = lists.nearest()
    nearest = nearest._replace(rows=nearest.rows[:, :k], cosines=nearest.cosines[:, :k])
    return match_of_lists(space, settled(space, nearest), lists.nearest_of_others())


def assert_same(found, expected):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def by_integers(rows, labels, k):
    """Neighbours and gap from integer keys, sorted: nearest first, equal ones by ascending row."""
    keys = cosine_keys(rows, rows)
    indices, gaps = [], []
    for i, mine in enumerate(keys):
        order = sorted((j for j in range(len(rows)) if j != i), key=lambda j: (-mine[j], j))
        other = [mine[j] for j in order if labels[j] != labels[order[0]]]
        indices.append(order[:k])
        gaps.append((mine[order[0]] - other[0]) / GRID**2 if other else np.nan)
    return np.array(indices), np.array(gaps)


@pytest.mark.parametrize("kind", ["apart", "duplicates", "binary", "near ties", "ascending"])
def test_lists_are_those_of_integer_arithmetic(kind):
    rows, labels = unit_rows(2, 70, 8, kind), np.random.default_rng(2).integers(0, 5, 70)
    found = matched(rows, labels, 7, offered(rows, labels, 7, 16))
    indices, gaps = by_integers(rows, labels, 7)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_allclose(found.gap, gaps, rtol=0, atol=1e-15)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 150),
    st.sampled_from(["apart", "duplicates", "binary", "near ties", "ascending"]),
    st.sampled_from([1, 2, 3, 40]),
    st.integers(1, 70),
    st.sampled_from([1, 3, 10, 64, 200]),
)
def test_the_match_is_that_of_a_full_search(seed, count, kind, classes, tile, k):
    rows, labels = unit_rows(seed, count, kind=kind), np.random.default_rng(seed).integers(0, classes, count)
    expected = matched(rows, labels, k)
    assert_same(matched(rows, labels, k, offered(rows, labels, k, tile)), expected)


def test_a_class_of_one_image_and_classes_in_a_row():
    rows, labels = unit_rows(5, 300), np.repeat(np.arange(3), 100)
    labels[0] = 9
    for classes in (labels, np.where(np.arange(300), 4, 7)):
        lists = offered(rows, classes, 10, 32)
        expected = matched(rows, classes)
        assert_same(matched(rows, classes, lists=lists), expected)


def test_queries_in_parts_give_the_same_lists(monkeypatch):
    rows, labels = unit_rows(4, 200), np.random.default_rng(4).integers(0, 5, 200)
    expected = matched(rows, labels)
    monkeypatch.setattr("probmetric.retrieval.compiled.PAIRS", 500)
    assert_same(matched(rows, labels, lists=offered(rows, labels, 10, 64)), expected)


def test_spare_candidates_prove_the_lists_of_rows_that_lie_apart():
    rows, labels = unit_rows(6, 1500, 64), np.random.default_rng(6).integers(0, 50, 1500)
    lists = offered(rows, labels, 10, 256)
    assert lists.nearest().sure.mean() > 0.99
    assert lists.nearest_of_others().sure.mean() > 0.99
    again = unit_rows(6, 300, 8, "near ties")
    assert not offered(again, labels[:300], 10, 128).nearest().sure.any()


@pytest.mark.parametrize("numba", [True, False])
def test_metrics_and_match_of_one_pass_are_those_of_two(monkeypatch, numba):
    rows, labels = unit_rows(7, 600, 24), np.random.default_rng(7).integers(0, 60, 600)
    expected, per_query = matched(rows, labels), retrieval_per_query(rows, labels, ks=(1, 5))
    monkeypatch.setattr(rank_counts, "COMPILED_FROM", 1)
    monkeypatch.setattr(rank_counts, "has_kernels", lambda: numba)
    if numba:
        monkeypatch.setattr("probmetric.retrieval.match.nearest", lambda *given: pytest.fail("searched again"))
    found, metrics = match_among({"mean": rows}, labels, ks=(1, 5, 1))
    assert_same(found, expected)
    assert list(metrics) == list(per_query)
    for name, values in per_query.items():
        np.testing.assert_array_equal(metrics[name], values, err_msg=name)


def test_a_large_set_is_searched_symmetrically_without_being_told(monkeypatch):
    rows, labels = unit_rows(8, 700, 16), np.random.default_rng(8).integers(0, 9, 700)
    struck = build_problem(rows, labels).struck
    expected, match = Search(rows, [rows], struck).nearest(10), matched(rows, labels)
    monkeypatch.setattr(neighbours, "COMPILED_FROM", 1)
    found = matched(rows, labels)
    assert_same(found, match)
    monkeypatch.setattr(Search, "nearest", lambda *given: pytest.fail("searched by rows"))
    found = search(rows, k=10)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.cosines, expected.cosines)
    doubled = np.where(np.arange(700)[:, None] == 3, 2 * rows, rows)
    with pytest.raises(ValueError, match="row 3 has norm 2"):
        matched(doubled, labels)


def test_answers_keep_the_metrics_and_their_rows():
    rows, labels = unit_rows(9, 80), np.random.default_rng(9).integers(0, 8, 80)
    record = {"mean": rows, "uncertainty": np.arange(80.0)}
    answers, expected = among_others(record, labels, (2, 4)), retrieval_per_query(rows, labels, ks=(1, 2, 4))
    some = np.arange(80) % 3 == 0
    for name, values in expected.items():
        np.testing.assert_array_equal(answers.retrieval[name], values, err_msg=name)
        np.testing.assert_array_equal(answers.rows(some).retrieval[name], values[some], err_msg=name)
