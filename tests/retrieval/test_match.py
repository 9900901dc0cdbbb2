import json
import tracemalloc

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.integrate import quad
from scipy.stats import entropy as scipy_entropy
from scipy.stats import multivariate_normal
from sklearn.metrics import roc_auc_score

from probmetric.directional import VonMisesFisher
from probmetric.metrics.selective import selective_metrics
from probmetric.retrieval import Match, find_match, match_record
from probmetric.retrieval.match import GalleryRows
from probmetric.runs.evaluate import answers_among_others, evaluate_run, run_answers
from probmetric.runs.folder import Embeddings, RunFolder
from probmetric.testing import isolated_components
from probmetric.trust import scores
from probmetric.trust.answers import Answers, among_others, p_right_of, trust_metrics
from probmetric.trust.scores import doubts


def unit(generator, count, dim=6):
    rows = generator.normal(size=(count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_hand(queries, gallery, labels, own=None, k=10):
    """Every field from the full matrix of cosines, sorted."""
    cosines = queries.astype(np.float64) @ gallery.T.astype(np.float64)
    if own is not None:
        mine = own >= 0
        cosines[np.flatnonzero(mine), own[mine]] = -np.inf
    order = np.argsort(-cosines, axis=1)
    nearest = order[:, 0]
    best = np.take_along_axis(cosines, order[:, :1], axis=1)[:, 0]
    others = np.where(labels[None] == labels[nearest][:, None], -np.inf, cosines).max(axis=1)
    votes = labels[order[:, : min(k, len(gallery) - (own is not None))]]
    shares = [np.unique(row, return_counts=True)[1] for row in votes]
    return {
        "nearest": nearest,
        "nearest_class": labels[nearest],
        "cosine": best,
        "gap": best - others,
        "disagreement": (votes != votes[:, :1]).mean(axis=1),
        "entropy": np.array([scipy_entropy(share) for share in shares]),
    }


@pytest.mark.parametrize("classes", [3, 30])  # with 3 the nearest of another class is often beyond the ten nearest
@pytest.mark.parametrize("how", ["separate", "self", "some"])
def test_the_record_is_that_of_all_cosines(classes, how):
    generator = np.random.default_rng(0)
    gallery, labels = unit(generator, 120), generator.integers(0, classes, 120)
    gallery[labels == 0] = gallery[0] + 0.05 * gallery[labels == 0]
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    queries, own = unit(generator, 50), None
    if how != "separate":
        queries, own = gallery, np.arange(120)
    if how == "some":
        own = np.where(np.arange(120) % 2, own, -1)
    found = match_record(queries, gallery, labels, self_index=own)
    for name, expected in by_hand(queries, gallery, labels, own).items():
        np.testing.assert_allclose(found[name], expected, atol=1e-6, err_msg=name)


def test_a_gallery_in_parts_gives_the_same(monkeypatch):
    generator = np.random.default_rng(1)
    rows, labels, queries = unit(generator, 90), np.arange(90) % 2, unit(generator, 20)
    whole = match_record(queries, rows, labels)
    monkeypatch.setattr("probmetric.retrieval.neighbours.BLOCK_ROWS", 7)
    parts = match_record(queries, [rows[:30], rows[30:31], rows[31:]], labels)
    for name in whole:
        assert np.array_equal(whole[name], parts[name]), name


def test_a_copy_of_the_query_is_found_and_the_query_is_not():
    rows = np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 2]]
    found = match_record(rows[[2, 3]], rows, [1, 1, 2, 3, 4], k=2, self_index=np.array([2, 3]))
    assert found["nearest"].tolist() == [0, 0]
    assert found["cosine"].tolist() == [1.0, 0.0]


def test_bad_galleries_are_named():
    rows = np.eye(3, dtype=np.float32)
    with pytest.raises(ValueError, match="gallery has no labels"):
        match_record(rows, rows, None)
    with pytest.raises(ValueError, match="gallery_labels: entry 1 is -2"):
        match_record(rows, rows, [0, -2, 2])
    with pytest.raises(ValueError, match=r"a query ignores, or is, every row of the gallery \(1\) but junk"):
        match_record(rows[:1], rows[:1], [0], self_index=np.array([0]))
    with pytest.raises(ValueError, match="self_index has shape"):
        match_record(rows, rows, [0, 1, 2], self_index=np.array([3, 0, 0]))
    with pytest.raises(ValueError, match=r"gallery has shape \(0, 3\); expected"):
        match_record(rows, rows[:0], [])
    assert "gap" not in match_record(rows, rows, [5, 5, 5])


def matched(query, answer):
    """A match of one query with one answer, with their records."""
    first, second = ({name: np.asarray(values)[None] for name, values in record.items()} for record in (query, answer))
    rows = [record["mean"].astype(np.float32) for record in (first, second)]
    return find_match(first | {"mean": rows[0]}, second | {"mean": rows[1]}, [0])


def test_expected_likelihood_is_the_integral_of_the_product():
    a, b = np.array([1.0, 0.0]), np.array([0.6, 0.8])
    match = matched({"mean": a, "concentration": np.float64(3.0)}, {"mean": b, "concentration": np.float64(7.0)})
    densities = [VonMisesFisher(torch.tensor(mu), torch.tensor(k)) for mu, k in ((a, 3.0), (b, 7.0))]

    def product(angle):
        point = torch.tensor([np.cos(angle), np.sin(angle)])
        return float(torch.exp(sum(density.log_prob(point) for density in densities)))

    expected = np.log(quad(product, -np.pi, np.pi)[0])
    assert doubts(match)["expected_likelihood"][0] == pytest.approx(-expected, rel=1e-5)


def test_mutual_likelihood_is_the_density_of_equal_embeddings():
    generator = np.random.default_rng(2)
    a, b = unit(generator, 2, 3)
    s, t = generator.random(3) + 0.1, generator.random(3) + 0.1
    match = matched({"mean": a, "variance": s}, {"mean": b, "variance": t})
    expected = multivariate_normal(a - b, np.diag(s + t)).logpdf(np.zeros(3)) + 1.5 * np.log(2 * np.pi)
    assert doubts(match)["mutual_likelihood"][0] == pytest.approx(-expected, rel=1e-5)


def test_moments_of_the_product_are_those_of_draws():
    generator = np.random.default_rng(3)
    a, b = unit(generator, 2, 4)
    s, t = 0.2 * generator.random(4), 0.2 * generator.random(4)
    found = doubts(matched({"mean": a, "variance": s}, {"mean": b, "variance": t}))
    x = a + np.sqrt(s) * generator.normal(size=(400_000, 4))
    y = b + np.sqrt(t) * generator.normal(size=(400_000, 4))
    product, scale = (x * y).sum(1), np.sqrt((x**2).sum(1).mean() * (y**2).sum(1).mean())
    assert 1 - found["expected_cosine"][0] == pytest.approx(product.mean() / scale, abs=3e-3)
    assert found["cosine_spread"][0] == pytest.approx(product.std() / scale, rel=1e-2)


def test_scores_are_those_of_each_answer_alone_and_need_little_memory():
    generator = np.random.default_rng(12)
    count, dim = 20_000, 64
    rows = unit(generator, count, dim)
    record = {"mean": rows, "uncertainty": generator.random(count).astype(np.float32)}
    record |= {"concentration": 50 + generator.random(count).astype(np.float32), "variance": rows**2}
    nearest = generator.integers(0, count, (count, 3))
    classes, cosines = generator.integers(0, 9, (count, 3)), -np.sort(-generator.random((count, 3)), axis=1)
    match = Match(cosines, nearest, classes, cosines[:, 0], record, GalleryRows(record, nearest[:, 0]))
    tracemalloc.start()
    found = doubts(match)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 8 * count * dim  # less than one matrix of all queries in double precision
    some = np.isin(np.arange(count), [0, 5_000, 19_999])
    for name, values in doubts(match.rows(some)).items():
        np.testing.assert_allclose(found[name][some], values, rtol=1e-12, err_msg=name)
    assert {"expected_likelihood", "mutual_likelihood", "cosine"} <= found.keys()


def test_a_score_of_ones_own_is_computed_and_checked():
    rows = np.eye(3, dtype=np.float32)
    match = find_match({"mean": rows}, {"mean": rows}, [0, 1, 2], self_index=np.arange(3))
    assert "expected_likelihood" not in doubts(match)
    with isolated_components():

        @scores.score(free=True)
        def second(match):
            """Distance to the second."""
            return 1 - match.similarity[:, 1]

        assert doubts(match)["second"].tolist() == [1.0, 1.0, 1.0]
        assert "second" in scores.free_scores()

        @scores.score()
        def broken(match):
            """Not a number."""
            return np.full(len(match), np.nan)

        with pytest.raises(ValueError, match=r"score 'broken' gave shape .* a number that is none"):
            doubts(match)


@pytest.fixture
def split():
    generator = np.random.default_rng(4)
    labels = np.r_[np.repeat(np.arange(20), 10), 99]  # the last has no positive
    centres = unit(generator, 20)
    rows = centres[labels.clip(max=19)] + 0.5 * generator.normal(size=(201, 6))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    tensors = {"mean": rows, "uncertainty": generator.random(201).astype(np.float32), "label": labels}
    return Embeddings(tensors | {"index": np.arange(201)}, {})


def test_queries_without_positives_are_recorded_and_counted_nowhere(split):
    found = answers_among_others(split)
    assert found.asked.sum() == 200
    assert not found.asked[-1]
    metrics, stated = trust_metrics({"test": found})
    assert stated.shape == (200,)
    by_p_right = selective_metrics(1 - stated, found.right[found.asked])
    assert metrics["p_right/augrc"] == by_p_right["augrc"]
    assert metrics["p_right/coverage_at_risk_5"] == by_p_right["coverage_at_risk_5"]
    changed = Answers(found.match, found.doubts, found.own, found.label, ~found.asked | found.right, found.asked)
    assert trust_metrics({"test": changed})[0] == metrics


def test_what_a_uniform_uncertainty_adds_is_nothing_and_what_an_oracle_adds_is_all(split):
    found = answers_among_others(split)
    assert trust_metrics({"test": found})[0]["trust/added"] < 0.02
    oracle = 1.0 - found.right
    knowing = Answers(found.match, found.doubts, oracle, found.label, found.right, found.asked)
    metrics, _ = trust_metrics({"test": knowing})
    assert metrics["trust/both"] > 0.99
    assert metrics["trust/added_low"] > 0


def test_the_file_of_a_run_holds_what_was_answered(tmp_path, split):
    folder = RunFolder(tmp_path)
    (tmp_path / "embeddings").mkdir()
    save_file(split.tensors, folder.embeddings_file("test"), {})
    save_file(split.tensors, folder.embeddings_file("val"), {})
    save_file(
        {**split.tensors, "source": np.ones(201, dtype=np.int64)},
        folder.embeddings_file("ood"),
        {"sources": json.dumps(["empty", "copies"])},
    )
    answers = run_answers(folder)
    assert set(answers) == {"test", "val", "ood/copies"}
    folder.write_matches({name: found.tensors() for name, found in answers.items()}, {"p_right": "{}"})
    read, metadata = folder.matches()
    assert metadata == {"p_right": "{}"}
    assert np.array_equal(read["test"]["doubt.gap"], answers["test"].doubts["gap"])
    assert np.array_equal(read["ood/copies"]["nearest"], np.arange(201))
    assert not read["ood/copies"]["right"].any()
    fitted = p_right_of(answers)
    assert set(fitted.scores) == set(scores.free_scores())

    metrics, curves = evaluate_run(tmp_path)
    right = read["test"]["right"][:200]
    for name in ("cosine", "gap", "disagreement", "entropy", "knn", "answer_uncertainty"):
        expected = roc_auc_score(~right, read["test"][f"doubt.{name}"][:200])
        assert metrics[f"sparsification/error_auroc_{name}"] == pytest.approx(expected), name
    known, strange = read["test"], read["ood/copies"]
    expected = roc_auc_score(np.r_[~right, np.ones(201)], np.r_[known["doubt.cosine"][:200], strange["doubt.cosine"]])
    assert metrics["ood/copies/scod_auroc_cosine"] == pytest.approx(expected)
    assert metrics["ood/auroc"] == metrics["ood/copies/auroc"]
    assert "ood/empty/auroc" not in metrics
    assert sum(curves["p_right"]["count"]) == 200
    assert metrics["p_right_val/ece"] >= 0


def test_expected_likelihood_of_embeddings_of_one_dimension_is_that_of_two_points():
    record = {
        "mean": np.array([[1.0], [-1.0], [1.0], [-1.0]], dtype=np.float32),
        "uncertainty": np.ones(4, dtype=np.float32),
        "concentration": np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32),
    }
    doubt = among_others(record, np.array([0, 1, 0, 1])).doubts["expected_likelihood"]
    log_c = [-np.log(2 * np.cosh(value)) for value in (1.0, 3.0, 4.0)]
    assert doubt[0] == pytest.approx(log_c[2] - log_c[0] - log_c[1], rel=1e-6)  # each is the nearest of the other
