"""Every engine, tile size and thread count gives the ranks of the exact keys, to the last one."""

import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from brute_force import cosine_keys, label_positives
from hypothesis import given, settings

from probmetric.metrics.ranked import collect
from probmetric.retrieval import rank_counts, retrieval_metrics, retrieval_per_query, search
from probmetric.retrieval.compiled import compiled_counts
from probmetric.retrieval.problem import build_problem
from probmetric.retrieval.rank_counts import compiles, numpy_counts, ranks
from probmetric.retrieval.torch_engine import torch_counts


def per_query(problem, engine, ks=(1, 2, 4, 8)):
    return collect(engine(problem), problem.relation.counts, ks)


def joined(parts):
    found = list(parts)
    return np.concatenate([part.above for part in found]), np.concatenate([part.tied for part in found])


def clustered(seed, count, classes, dim, spread):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    rows = generator.normal(size=(classes, dim))[labels] + spread * generator.normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def nearly_tied(seed, count, dim):
    """Rows a few float32 steps apart: float32 products cannot order them."""
    generator = np.random.default_rng(seed)
    centre = generator.normal(size=dim)
    rows = centre / np.linalg.norm(centre) + 3e-8 * generator.normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), generator.integers(0, 4, count)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 150),
    st.sampled_from(["cosine", "euclidean"]),
    st.sampled_from(["clusters", "duplicates", "binary", "near ties"]),
    st.integers(1, 70),
    st.integers(1, 3),
)
@pytest.mark.slow
def test_compiled_and_torch_equal_exact_path(seed, count, distance, kind, tile, threads):
    rows, labels = clustered(seed, count, 1 + seed % 9, 16, 1.0)
    if kind == "duplicates":
        rows = rows[np.random.default_rng(seed).integers(0, count, count)]
    if kind == "binary":
        rows = (np.sign(rows) / 4.0).astype(np.float32)
    if kind == "near ties":
        rows, labels = nearly_tied(seed, count, 16)
    if distance == "euclidean":
        rows = rows * np.random.default_rng(seed).choice([0, 1, 1, 1, 2.5, 1000], size=(count, 1)).astype(np.float32)
    problem = build_problem(rows, labels, distance=distance)
    exact, fast = joined(numpy_counts(problem)), joined(compiled_counts(problem, tile, threads))
    np.testing.assert_array_equal(exact, fast)
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem)))
    np.testing.assert_array_equal(exact, joined(torch_counts(problem, tile)))


def test_near_ties_are_those_of_integer_arithmetic():
    rows, labels = nearly_tied(1, 60, 32)
    keys, positives = cosine_keys(rows, rows), label_positives(labels, labels, range(60))
    expected_above, expected_tied = [], []
    for i in range(60):
        wrong = [keys[i][j] for j in range(60) if j != i and j not in positives[i]]
        for p in sorted(positives[i], key=lambda j: -keys[i][j]):
            expected_above.append(sum(key > keys[i][p] for key in wrong))
            expected_tied.append(sum(key == keys[i][p] for key in wrong))
    problem = build_problem(rows, labels)
    for counts in (numpy_counts(problem), compiled_counts(problem, 17), compiled_counts(problem)):
        above, tied = joined(counts)
        np.testing.assert_array_equal(above, expected_above)
        np.testing.assert_array_equal(tied, expected_tied)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_gallery_and_sparse_relation(distance):
    rows, _ = clustered(3, 300, 12, 24, 1.0)
    generator = np.random.default_rng(3)
    pairs = np.unique(np.stack([generator.integers(0, 90, 400), generator.integers(0, 300, 400)], axis=1), axis=0)
    index = np.where(np.arange(90) % 3 == 0, np.arange(90), -1)
    problem = build_problem(rows[:90], gallery=rows, positives=pairs, self_index=index, distance=distance)
    exact, fast = joined(numpy_counts(problem, 7)), joined(compiled_counts(problem, 64))
    np.testing.assert_array_equal(exact, fast)
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem)))
    here = per_query(problem, torch_counts)
    for name, values in per_query(problem, numpy_counts).items():
        np.testing.assert_array_equal(values, here[name], err_msg=name)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", ["collapsed", "equal", "binary"])
def test_where_float32_decides_nothing(distance, kind):
    rows, labels = clustered(11, 300, 40, 48, 1.0)
    if kind == "binary":
        rows = (np.sign(rows) / 48**0.5).astype(np.float32)
    else:
        rows = 1.0 + (1e-4 if kind == "collapsed" else 0.0) * rows
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    exact = joined(numpy_counts(build_problem(rows, labels, distance=distance)))
    np.testing.assert_array_equal(exact, joined(compiled_counts(build_problem(rows, labels, distance=distance), 128)))
    gallery = {"gallery": rows[::2], "gallery_labels": labels[::2]}
    exact = joined(numpy_counts(build_problem(rows, labels, distance=distance, **gallery)))
    np.testing.assert_array_equal(
        exact, joined(compiled_counts(build_problem(rows, labels, distance=distance, **gallery), 128))
    )


def test_queries_in_parts_give_the_same(monkeypatch):
    rows, labels = clustered(4, 200, 5, 8, 1.0)
    problem = build_problem(rows, labels)
    whole = joined(compiled_counts(problem, 64))
    monkeypatch.setattr("probmetric.retrieval.compiled.PAIRS", 500)
    assert len(list(compiled_counts(problem, 64))) > 5
    np.testing.assert_array_equal(whole, joined(compiled_counts(problem, 64)))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_many_right_answers_and_exact_ties(distance, spread):
    rows, labels = clustered(5, 1500, 12, 32, spread)
    rows[:40], labels[:40] = rows[40:80], labels[40:80]
    problem = build_problem(rows, labels, distance=distance)
    np.testing.assert_array_equal(joined(numpy_counts(problem)), joined(compiled_counts(problem, 256)))


def test_collapsed_embeddings_are_left_to_float64(monkeypatch):
    rows, labels = clustered(12, 400, 20, 32, 1.0)
    collapsed = 1.0 + 1e-4 * rows
    collapsed = (collapsed / np.linalg.norm(collapsed, axis=1, keepdims=True)).astype(np.float32)
    monkeypatch.setattr(rank_counts, "COMPILED_FROM", 1)
    for distance in ("cosine", "euclidean"):
        assert compiles(build_problem(rows, labels, distance=distance))
        assert not compiles(build_problem(collapsed, labels, distance=distance))


def test_blocks_and_shuffles_change_nothing():
    rows, labels = clustered(5, 500, 20, 32, 1.5)
    order = np.random.default_rng(5).permutation(500)
    here = per_query(build_problem(rows, labels), lambda problem: numpy_counts(problem, 3))
    there = per_query(build_problem(rows[order], labels[order]), compiled_counts)
    for name, values in here.items():
        np.testing.assert_array_equal(values[order], there[name], err_msg=name)


@pytest.mark.parametrize("engine", [numpy_counts, compiled_counts])
def test_threads_of_the_matrix_product_change_nothing(engine):
    from threadpoolctl import threadpool_limits

    rows, labels = clustered(9, 700, 20, 96, 2.0)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.append(joined(engine(build_problem(rows, labels))))
    np.testing.assert_array_equal(*found)


def test_engine_is_chosen_by_size_and_numpy_needs_no_numba(monkeypatch):
    rows = clustered(13, 6_000, 500, 64, 1.0)[0]
    small, large = (build_problem(rows[:count], np.arange(count) % 500) for count in (1_000, 6_000))
    assert [compiles(problem) for problem in (small, large)] == [False, True]
    assert not compiles(build_problem(rows, np.zeros(6_000, dtype=int)))  # all of one class
    assert not compiles(build_problem(rows / 2, np.arange(6_000) % 500, distance="poincare"))
    monkeypatch.setitem(sys.modules, "probmetric.retrieval.compiled", None)
    rank_counts.has_kernels.cache_clear()
    assert not compiles(large)
    monkeypatch.setattr(rank_counts, "BLOCK_BYTES", 8 * 6_000 * 20)
    assert next(ranks(large)).stop == 20
    rank_counts.has_kernels.cache_clear()


@pytest.mark.parametrize("distance", ["euclidean", "poincare", "function"])
def test_other_distances_rank_as_their_formulas(distance):
    generator = np.random.default_rng(6)
    rows = (0.9 * generator.uniform(-1, 1, size=(60, 3)) / 3**0.5).astype(np.float32)
    labels = generator.integers(0, 6, 60)
    x = rows.astype(np.float64)
    squared = ((x[:, None] - x[None]) ** 2).sum(-1)
    inside = 1 - (x**2).sum(-1)
    formulas = {
        "euclidean": np.sqrt(squared),
        "poincare": np.arccosh(1 + 2 * squared / (inside[:, None] * inside[None])),
        "function": np.abs(x[:, None] - x[None]).sum(-1),
    }
    chosen = distance
    if distance == "function":
        chosen = lambda a, b: np.abs(a[:, None].astype(float) - b[None]).sum(-1)  # noqa: E731
    found = retrieval_per_query(rows, labels, distance=chosen, ks=(1, 3))
    order = np.argsort(formulas[distance] + np.diag(np.full(60, np.inf)), axis=1)
    relevant = labels[order] == labels[:, None]
    np.testing.assert_array_equal(found["recall_at_3"], relevant[:, :3].any(1))
    np.testing.assert_allclose(found["precision_at_3"], relevant[:, :3].mean(1))


def test_a_huge_row_does_not_blur_the_others():
    rows, labels = clustered(8, 60, 6, 8, 1.0)
    rows[0] *= 1e6
    x = rows.astype(np.float64)
    squared = ((x[:, None] - x[None]) ** 2).sum(-1) + np.diag(np.full(60, np.inf))
    expected = labels[squared.argmin(1)] == labels
    problem = build_problem(rows, labels, distance="euclidean")
    for engine in (numpy_counts, compiled_counts, torch_counts):
        found = per_query(problem, engine)
        np.testing.assert_array_equal(found["recall_at_1"], expected)


def test_user_distance_is_checked():
    rows, labels = np.eye(4), [0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"distance returned shape \(4,\)"):
        retrieval_metrics(rows, labels, distance=lambda a, b: np.zeros(4))
    with pytest.raises(ValueError, match="distance returned NaN"):
        retrieval_metrics(rows, labels, distance=lambda a, b: np.full((4, 4), np.nan))


def test_reduced_precision_changes_no_rank():
    rows, labels = nearly_tied(2, 80, 32)
    problem, before = build_problem(rows, labels), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = joined(torch_counts(problem))
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(joined(numpy_counts(problem)), found)


@pytest.mark.gpu
def test_cuda_equals_exact_path():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rows, labels = clustered(7, 3000, 60, 128, 1.5)
    here = per_query(build_problem(rows, labels), numpy_counts)
    there = retrieval_per_query(torch.from_numpy(rows).cuda(), torch.from_numpy(labels).cuda())
    for name, values in here.items():
        np.testing.assert_array_equal(values, there[name], err_msg=name)
    on_gpu, listed = search(torch.from_numpy(rows).cuda(), k=7), search(rows, k=7)
    np.testing.assert_array_equal(on_gpu.rows, listed.rows)
    np.testing.assert_array_equal(on_gpu.cosines, listed.cosines)
