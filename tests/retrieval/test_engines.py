"""Every engine, tile size and thread count gives the ranks of the exact keys, to the last one."""

import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from brute_force import cosine_keys, label_positives
from hypothesis import given, settings

from probmetric.retrieval import _ranks_compiled, among, ranks
from probmetric.retrieval import measures as retrieval
from probmetric.retrieval._problem import build_problem, numpy_rows, torch_rows
from probmetric.retrieval._ranks_compiled import compiled_counts
from probmetric.retrieval._ranks_torch import full_precision, torch_counts


def problem_of(rows, labels, distance="cosine", reader=numpy_rows, **options):
    names = ("gallery", "gallery_labels", "positives", "query_index")
    given_options = [options.get(name) for name in names]
    return build_problem(rows, labels, *given_options, distance, False, reader)


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
    problem = problem_of(rows, labels, distance)
    exact, fast = joined(ranks.numpy_counts(problem)), joined(compiled_counts(problem, tile, threads))
    np.testing.assert_array_equal(exact, fast)
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem)))
    on_torch = torch_counts(problem_of(rows, labels, distance, torch_rows), tile)
    np.testing.assert_array_equal(exact, joined(on_torch))


def test_near_ties_are_those_of_integer_arithmetic():
    rows, labels = nearly_tied(1, 60, 32)
    keys, positives = cosine_keys(rows, rows), label_positives(labels, labels, range(60))
    expected_above, expected_tied = [], []
    for i in range(60):
        wrong = [keys[i][j] for j in range(60) if j != i and j not in positives[i]]
        for p in sorted(positives[i], key=lambda j: -keys[i][j]):
            expected_above.append(sum(key > keys[i][p] for key in wrong))
            expected_tied.append(sum(key == keys[i][p] for key in wrong))
    problem = problem_of(rows, labels)
    for counts in (ranks.numpy_counts(problem), compiled_counts(problem, 17), compiled_counts(problem)):
        above, tied = joined(counts)
        np.testing.assert_array_equal(above, expected_above)
        np.testing.assert_array_equal(tied, expected_tied)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_gallery_and_sparse_relation(distance):
    rows, _ = clustered(3, 300, 12, 24, 1.0)
    generator = np.random.default_rng(3)
    pairs = np.unique(np.stack([generator.integers(0, 90, 400), generator.integers(0, 300, 400)], axis=1), axis=0)
    index = np.where(np.arange(90) % 3 == 0, np.arange(90), -1)
    problem = problem_of(rows[:90], None, distance, gallery=rows, positives=pairs, query_index=index)
    exact, fast = joined(ranks.numpy_counts(problem, 7)), joined(compiled_counts(problem, 64))
    np.testing.assert_array_equal(exact, fast)
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem)))
    options = {"gallery": rows, "positives": pairs, "query_index": index, "engine": "torch"}
    here = retrieval.retrieval_per_query(rows[:90], distance=distance, **options)
    there = retrieval.retrieval_per_query(rows[:90], distance=distance, **options | {"engine": "numpy"})
    for name, values in there.items():
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
    exact = joined(ranks.numpy_counts(problem_of(rows, labels, distance)))
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem_of(rows, labels, distance), 128)))
    gallery = {"gallery": rows[::2], "gallery_labels": labels[::2]}
    exact = joined(ranks.numpy_counts(problem_of(rows, labels, distance, **gallery)))
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem_of(rows, labels, distance, **gallery), 128)))


def test_queries_in_parts_give_the_same(monkeypatch):
    rows, labels = clustered(4, 200, 5, 8, 1.0)
    problem = problem_of(rows, labels)
    whole = joined(compiled_counts(problem, 64))
    monkeypatch.setattr("probmetric.retrieval._ranks_compiled.PAIRS", 500)
    assert len(list(compiled_counts(problem, 64))) > 5
    np.testing.assert_array_equal(whole, joined(compiled_counts(problem, 64)))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize(("spread", "crowded"), [(0.3, False), (3.0, True)])
def test_tables_are_made_where_classes_overlap_and_change_nothing(monkeypatch, distance, spread, crowded):
    rows, labels = clustered(5, 1500, 12, 32, spread)
    rows[:40], labels[:40] = rows[40:80], labels[40:80]  # exact ties
    problem = problem_of(rows, labels, distance)
    exact, answers, judge = joined(ranks.numpy_counts(problem)), [], _ranks_compiled._crowded
    monkeypatch.setattr(_ranks_compiled, "_crowded", lambda *given: answers.append(judge(*given)) or answers[-1])
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem, 256)))
    assert answers == [crowded]
    monkeypatch.setattr(_ranks_compiled, "_crowded", lambda *_given: not crowded)
    np.testing.assert_array_equal(exact, joined(compiled_counts(problem, 256)))


def test_blocks_and_shuffles_change_nothing():
    rows, labels = clustered(5, 500, 20, 32, 1.5)
    order = np.random.default_rng(5).permutation(500)
    here = retrieval.retrieval_per_query(rows, labels, block=3)
    there = retrieval.retrieval_per_query(rows[order], labels[order], engine="compiled")
    for name, values in here.items():
        np.testing.assert_array_equal(values[order], there[name], err_msg=name)


@pytest.mark.parametrize("engine", ["numpy", "compiled"])
def test_threads_of_the_matrix_product_change_nothing(engine):
    from threadpoolctl import threadpool_limits

    rows, labels = clustered(9, 700, 20, 96, 2.0)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.append(joined(ranks.positive_counts(problem_of(rows, labels), None, engine)))
    np.testing.assert_array_equal(*found)


def test_engine_is_chosen_by_size_and_numpy_needs_no_numba(monkeypatch):
    rows = np.ones((1, 512), dtype=np.float32)
    monkeypatch.delitem(sys.modules, "probmetric.retrieval._nearest_compiled", raising=False)
    small = problem_of(rows.repeat(100, 0) / np.sqrt(np.float32(512)), np.arange(100) % 50)
    assert ranks.choose_engine(small) == "numpy"
    middle = problem_of(rows.repeat(1_000, 0) / np.sqrt(np.float32(512)), np.arange(1_000) % 500)
    assert ranks.choose_engine(middle) == "numpy"
    among.load_kernels()
    assert [ranks.choose_engine(problem) for problem in (small, middle)] == ["compiled", "compiled"]
    large = problem_of(rows.repeat(15_000, 0) / np.sqrt(np.float32(512)), np.arange(15_000) % 7_500)
    assert ranks.choose_engine(large) == "compiled"
    monkeypatch.setitem(sys.modules, "probmetric.retrieval._ranks_compiled", None)
    assert next(ranks.positive_counts(large, 20)).stop == 20
    with pytest.raises(ImportError):
        ranks.positive_counts(large, None, "compiled")
    with pytest.raises(ValueError, match="engine 'compiled' knows"):
        next(ranks.positive_counts(problem_of(rows / 100, [0], "poincare"), None, "compiled"))


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
    found = retrieval.retrieval_per_query(rows, labels, distance=chosen, ks=(1, 3))
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
    for engine in ("numpy", "compiled", "torch"):
        found = retrieval.retrieval_per_query(rows, labels, distance="euclidean", engine=engine)
        np.testing.assert_array_equal(found["recall_at_1"], expected)


def test_user_distance_is_checked():
    rows, labels = np.eye(4), [0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"distance returned shape \(4,\)"):
        retrieval.retrieval_metrics(rows, labels, distance=lambda a, b: np.zeros(4))
    with pytest.raises(ValueError, match="distance returned NaN"):
        retrieval.retrieval_metrics(rows, labels, distance=lambda a, b: np.full((4, 4), np.nan))


def test_torch_engine_checks_its_input():
    rows, labels = np.eye(4, dtype=np.float32), [0, 0, 1, 1]
    with pytest.raises(ValueError, match="row 0 has norm 2"):
        retrieval.retrieval_metrics(2 * rows, labels, engine="torch")
    with pytest.raises(ValueError, match="row 2 is not finite"):
        retrieval.retrieval_metrics(np.where([[0], [0], [1], [0]], np.nan, rows), labels, engine="torch")
    with pytest.raises(ValueError, match="zero vector"):
        retrieval.retrieval_metrics(0 * rows, labels, engine="torch", normalize=True)
    with pytest.raises(ValueError, match="engine 'torch' knows"):
        retrieval.retrieval_metrics(rows / 2, labels, engine="torch", distance="poincare")


def test_reduced_precision_is_off_during_the_search_and_back_after():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest"
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_cuda_equals_exact_path():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rows, labels = clustered(7, 3000, 60, 128, 1.5)
    here = retrieval.retrieval_per_query(rows, labels, engine="numpy")
    there = retrieval.retrieval_per_query(torch.from_numpy(rows).cuda(), torch.from_numpy(labels).cuda())
    for name, values in here.items():
        np.testing.assert_array_equal(values, there[name], err_msg=name)
