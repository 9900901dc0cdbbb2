import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.metrics import roc_auc_score

from probmetric.config import Evaluation
from probmetric.io import FileError
from probmetric.metrics import ood_metrics, sparsification, spearman
from probmetric.retrieval import retrieval_metrics
from probmetric.runs.evaluate import ImageFacts, evaluate_run, run_answers
from probmetric.runs.folder import RunFolder
from probmetric.runs.places import Places


def write(folder, name, rows, labels, doubt, metadata=None, **extra):
    place = folder / "embeddings"
    place.mkdir(exist_ok=True)
    tensors = {
        "mean": rows.astype(np.float32),
        "uncertainty": doubt.astype(np.float32),
        "label": labels.astype(np.int64),
        "index": np.arange(len(rows), dtype=np.int64),
    }
    save_file(tensors | extra, place / f"{name}.safetensors", metadata=metadata or {})


@pytest.fixture
def run(tmp_path):
    generator = np.random.default_rng(0)
    data = {}
    for name in ("test", "val", "last"):
        rows = generator.normal(size=(40, 8))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        data[name] = (rows, np.repeat(np.arange(8), 5), generator.random(40))
    probabilities = generator.dirichlet(np.ones(8), size=40).astype(np.float32)
    write(tmp_path, "test", *data["test"], probabilities=probabilities)
    write(tmp_path, "val", *data["val"])
    write(tmp_path, "last", *data["last"])
    outside = generator.random(30) + 0.5
    source = np.repeat([0, 1], 15)
    metadata = {"sources": json.dumps(["letters", "symbols"])}
    write(tmp_path, "ood", data["test"][0][:30], np.full(30, -1), outside, metadata, source=source)
    return tmp_path, data, outside, probabilities


def test_every_group_of_metrics_is_named_and_right(run):
    folder, data, outside, probabilities = run
    rows, labels, doubt = data["test"]
    distortion = np.where(np.arange(40) < 30, np.arange(40.0), np.nan)
    metrics, curves = evaluate_run(folder, Evaluation(ks=(1, 2)), ImageFacts({"distortion": distortion}))
    expected = retrieval_metrics(rows.astype(np.float32), labels, ks=(1, 2))
    assert metrics["retrieval/map_at_r"] == expected["map_at_r"]
    assert metrics["val/retrieval/recall_at_1"] == retrieval_metrics(data["val"][0], data["val"][1])["recall_at_1"]
    assert metrics["last/retrieval/recall_at_1"] == retrieval_metrics(data["last"][0], data["last"][1])["recall_at_1"]
    auroc = ood_metrics(doubt.astype(np.float32), outside[15:].astype(np.float32))["auroc"]
    assert metrics["ood/symbols/auroc"] == auroc
    assert metrics["classification/accuracy"] == np.mean(probabilities.argmax(1) == labels)
    assert metrics["distortion/spearman"] == pytest.approx(spearman(doubt[:30].astype(np.float32), distortion[:30]))
    for name in ("clustering/nmi", "calibration/ece", "calibration/ece_l2", "retrieval/map_at_1000"):
        assert isinstance(metrics[name], float)
    assert curves["sparsification"]["accuracy"][0] == pytest.approx(metrics["retrieval/recall_at_1"])
    kept = {"p_right", "severity/distortion", "unit_errors"}
    assert sum(curves["severity/distortion"]["answers"]) == 30
    units = {name for name in curves if name.startswith("units/")}
    assert set(curves) - units == {"sparsification", "reliability", "roc/letters", "roc/symbols"} | kept
    assert json.loads(json.dumps([metrics, curves], allow_nan=False)) == [metrics, curves]
    assert all(re.fullmatch(r"[\w\-. /]+", name) for name in metrics)


def test_free_scores_and_errors_over_classes_stand_beside_what_they_judge(run):
    folder, data, _, _ = run
    rows, labels, doubt = data["test"]
    metrics, curves = evaluate_run(folder)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1)
    right = labels[order[:, 0]] == labels
    split = np.mean(labels[order[:, :10]] != labels[order[:, :1]], axis=1)
    for name, score in (("", doubt), ("_cosine", -cosines.max(axis=1)), ("_disagreement", split)):
        expected = roc_auc_score(~right, score)
        assert metrics[f"sparsification/error_auroc{name}"] == pytest.approx(expected, abs=1e-6), name
    strangers = rows[:15] @ rows.T
    expected = roc_auc_score(np.repeat([0, 1], [40, 15]), -np.r_[cosines.max(axis=1), strangers.max(axis=1)])
    assert metrics["ood/letters/auroc_cosine"] == pytest.approx(expected, abs=1e-6)
    for name in ("retrieval/recall_at_1", "retrieval/map_at_r", "classification/accuracy", "ood/auroc"):
        assert np.mean(curves[f"units/{name}"]["value"]) == pytest.approx(metrics[name], abs=1e-5), name
        of_known = [label for label in curves[f"units/{name}"]["class"] if label >= 0]
        assert of_known == sorted(set(labels.tolist()))
    names = {"retrieval/recall_at_1", "retrieval/map_at_r", "sparsification/error_auroc", "classification/accuracy"}
    names |= {"calibration/ece", "classification/error_auroc", "ood/letters/auroc", "ood/symbols/auroc", "ood/auroc"}
    assert set(curves["unit_errors"]) == names
    of_classes = [right[labels == label].mean() for label in np.unique(labels)]
    classes = len(of_classes)
    expected = [pytest.approx(np.std(of_classes, ddof=1) / classes**0.5, abs=1e-5), classes]
    assert curves["unit_errors"]["retrieval/recall_at_1"] == expected


def test_sampled_retrieval_is_the_mean_over_the_first_ten_sample_sets(tmp_path):
    generator = np.random.default_rng(4)
    labels = np.repeat(np.arange(6), 4)
    rows = generator.normal(size=(24, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    samples = (rows[:, None] + generator.normal(size=(24, 12, 5))).astype(np.float32)
    write(tmp_path, "test", rows, labels, generator.random(24), samples=samples)
    metrics, _ = evaluate_run(tmp_path)
    each = [retrieval_metrics(samples[:, s], labels, normalize=True)["map_at_r"] for s in range(10)]
    assert metrics["retrieval_sampled/map_at_r"] == pytest.approx(np.mean(each))
    assert metrics["retrieval_sampled/map_at_r"] != metrics["retrieval/map_at_r"]


def test_sparsification_uses_the_neighbour_as_published(run):
    folder, data, _, _ = run
    rows, labels, doubt = data["test"]
    rows, doubt = rows.astype(np.float32).astype(float), doubt.astype(np.float32).astype(float)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -2)
    nearest = cosines.argmax(1)
    correct = labels[nearest] == labels
    metrics, _ = evaluate_run(folder)
    assert metrics["sparsification/ausc"] == pytest.approx(sparsification(doubt, correct)[1])
    pair = (doubt + doubt[nearest]) / 2
    published = sparsification(pair, correct, scaling="as_published")[1]
    assert metrics["sparsification/ausc_as_published"] == pytest.approx(published)
    assert metrics["sparsification/ausc_as_published_empty_as_zero"] == pytest.approx(published)


def test_queries_without_an_answer_are_errors_only_where_the_name_says_so(tmp_path):
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(30, 6)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.where(np.arange(30) < 18, np.arange(30) % 3, np.arange(30))
    doubt = generator.random(30).astype(np.float32).astype(float)
    write(tmp_path, "test", rows, labels, doubt)
    metrics, _ = evaluate_run(tmp_path)
    cosines = rows.astype(float) @ rows.astype(float).T
    np.fill_diagonal(cosines, -2)
    nearest = cosines.argmax(1)
    correct = labels[nearest] == labels
    pair = (doubt + doubt[nearest]) / 2
    assert metrics["retrieval/recall_at_1_empty_as_zero"] == correct.mean() < metrics["retrieval/recall_at_1"]
    for name, kept in (("ausc_as_published", labels < 18), ("ausc_as_published_empty_as_zero", labels >= 0)):
        expected = sparsification(pair[kept], correct[kept], scaling="as_published")[1]
        assert metrics[f"sparsification/{name}"] == pytest.approx(expected)


def test_probabilities_of_other_classes_are_not_judged(run):
    folder, data, _, probabilities = run
    write(folder, "test", *data["test"], {"classes": json.dumps(list(range(20, 28)))}, probabilities=probabilities)
    metrics, curves = evaluate_run(folder)
    assert not [name for name in metrics if name.startswith(("classification", "calibration"))]
    assert "reliability" not in curves
    rows, labels, doubt = data["test"]
    metadata = {"classes": json.dumps(list(range(7, -1, -1)))}
    write(folder, "test", rows, labels, doubt, metadata, probabilities=probabilities)
    assert evaluate_run(folder)[0]["classification/accuracy"] == np.mean(7 - probabilities.argmax(1) == labels)


def test_singleton_classes_give_null_not_nan(tmp_path):
    rows = np.eye(4)
    write(tmp_path, "test", rows, np.arange(4), np.arange(4.0))
    metrics, curves = evaluate_run(tmp_path)
    assert metrics["retrieval/recall_at_1"] is None
    assert metrics["retrieval/queries_without_positives"] == 4
    assert curves == {}


def test_missing_and_broken_files_are_named(run):
    folder, data, *_ = run
    file = folder / "embeddings" / "test.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(FileError, match=r"test\.safetensors is damaged or truncated.*run again"):
        evaluate_run(folder)
    file.unlink()
    with pytest.raises(FileError, match=r"test\.safetensors is missing"):
        evaluate_run(folder)
    rows, labels, doubt = data["test"]
    write(folder, "test", rows, labels, np.where(np.arange(40) == 7, np.nan, doubt))
    with pytest.raises(FileError, match=r"test\.safetensors: uncertainty of row 7 is not finite"):
        evaluate_run(folder)
    write(folder, "test", rows, labels[:-1], doubt)
    with pytest.raises(FileError, match=r"test\.safetensors: label has 39 rows, mean has 40"):
        evaluate_run(folder)
    save_file({"mean": np.eye(3)}, file)
    with pytest.raises(FileError, match="lacks uncertainty, label, index"):
        evaluate_run(folder)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"classes": "[1,"}, "Expecting value"),
        ({"classes": '["a"]'}, "0 should be a valid integer"),
        ({"uncertainty": "norm", "curvature": "1.0.0"}, "Extra data"),
    ],
)
def test_damaged_metadata_name_the_file_and_the_fix(run, metadata, said):
    folder, data, _, probabilities = run
    write(folder, "test", *data["test"], metadata, probabilities=probabilities, concentration=np.ones(40))
    with pytest.raises(FileError, match=rf"test\.safetensors is damaged \({said}.*\); delete the run folder"):
        evaluate_run(folder)
    write(folder, "test", *data["test"])
    write(folder, "ood", *data["test"], {"sources": "{}"})
    with pytest.raises(FileError, match=r"ood\.safetensors is damaged \(top level should be a valid list"):
        evaluate_run(folder)


def norm_run(folder, **metadata):
    generator = np.random.default_rng(4)
    raw = generator.normal(size=(40, 3)) * generator.uniform(0.2, 3, size=(40, 1))
    norm, labels = np.linalg.norm(raw, axis=1), np.repeat(np.arange(8), 5)
    metadata = {"uncertainty": "norm"} | metadata
    write(folder, "test", raw / norm[:, None], labels, 1 / norm, metadata, concentration=norm.astype(np.float32))
    return raw, labels


def recall(distances, labels):
    """Share of rows whose nearest other row, by a full matrix of distances, has their label."""
    distances = distances + np.diag(np.full(len(labels), np.inf))
    return np.mean(labels[distances.argmin(1)] == labels)


def test_raw_embeddings_are_also_compared_by_euclidean_distance(tmp_path):
    raw, labels = norm_run(tmp_path)
    metrics, _ = evaluate_run(tmp_path, Evaluation(ks=(1, 4)))
    apart = np.linalg.norm(raw[:, None] - raw[None], axis=2)
    assert metrics["retrieval_euclidean/recall_at_1"] == recall(apart, labels)
    assert metrics["retrieval_euclidean/recall_at_1"] != metrics["retrieval/recall_at_1"]
    assert "retrieval_euclidean/map_at_r" in metrics
    assert not any(name.startswith("retrieval_poincare") for name in metrics)


def test_hyperbolic_embeddings_are_also_compared_on_the_ball(tmp_path):
    raw, labels = norm_run(tmp_path, curvature="0.3")
    metrics, _ = evaluate_run(tmp_path)
    norm = np.linalg.norm(raw, axis=1, keepdims=True)
    x = np.tanh(np.sqrt(0.3) * norm) * raw / norm
    gap = 1 - (x**2).sum(1)
    apart = np.arccosh(1 + 2 * ((x[:, None] - x[None]) ** 2).sum(2) / (gap[:, None] * gap[None]))
    assert metrics["retrieval_poincare/recall_at_1"] == recall(apart, labels)


def test_concentrations_that_are_no_norms_give_no_euclidean_retrieval(tmp_path):
    norm_run(tmp_path, uncertainty="laplace")
    assert not any(name.startswith("retrieval_euclidean") for name in evaluate_run(tmp_path)[0])


def test_uncertainty_is_judged_by_the_wrong_classifications_it_finds(run):
    folder, data, _, probabilities = run
    _, labels, doubt = data["test"]
    wrong = probabilities.argmax(1) != labels
    pairs = doubt[wrong].astype(np.float32)[:, None] - doubt[~wrong].astype(np.float32)[None]
    expected = np.mean((pairs > 0) + 0.5 * (pairs == 0))
    assert evaluate_run(folder)[0]["classification/error_auroc"] == pytest.approx(expected)


@pytest.mark.parametrize("kept", [15, 0])
def test_a_set_of_strangers_without_images_stops_nothing(run, kept):
    folder, data, outside, _ = run
    metadata = {"sources": json.dumps(["letters", "symbols"])}
    rows, source = data["test"][0][:kept], np.zeros(kept, dtype=np.int64)
    write(folder, "ood", rows, np.full(kept, -1), outside[:kept], metadata, source=source)
    metrics, _ = evaluate_run(folder)
    assert ("ood/letters/auroc" in metrics) == (kept > 0)
    assert not any(name.startswith("ood/symbols/") for name in metrics)
    assert metrics.get("ood/auroc") == metrics.get("ood/letters/auroc")


def test_an_uncertainty_that_is_not_finite_is_named(run):
    folder, data, _, _ = run
    rows, labels, doubt = data["test"]
    write(folder, "test", rows, labels, np.where(np.arange(40) == 3, np.nan, doubt))
    with pytest.raises(FileError, match="uncertainty of row 3 is not finite"):
        evaluate_run(folder)


def test_queries_without_positives_are_left_out_of_retrieval_calibration_too():
    from probmetric.retrieval.votes import retrieval_votes, vote_reliability

    generator = np.random.default_rng(4)
    samples = generator.normal(size=(41, 6, 4)) + 3 * generator.normal(size=(8, 4))[np.arange(41) % 8][:, None]
    labels = np.arange(41) % 8
    alone = np.where(np.arange(41) == 40, 9, labels)  # one image alone in its class
    _, diagram = vote_reliability(*retrieval_votes(samples, alone))
    assert diagram.count.sum() == 40


def test_the_calibration_of_votes_has_an_error_over_the_classes(tmp_path):
    generator = np.random.default_rng(6)
    labels = np.arange(200) % 20
    centres = generator.normal(size=(20, 6))
    samples = (centres[labels][:, None] + generator.normal(size=(200, 5, 6))).astype(np.float32)
    samples /= np.linalg.norm(samples, axis=2, keepdims=True)
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", "test", samples[:, 0], labels, generator.random(200), samples=samples)
    _, curves = evaluate_run(tmp_path / "run")
    error, classes = curves["unit_errors"]["calibration/retrieval_ece"]
    assert classes == 20
    labels[0] = 20  # alone in its class: it votes on nothing
    write(tmp_path / "run", "test", samples[:, 0], labels, generator.random(200), samples=samples)
    assert evaluate_run(tmp_path / "run")[1]["unit_errors"]["calibration/retrieval_ece"][1] == 20
    assert 0.005 < error < 0.1  # a share of 200 answers moves by .035 at most


def test_an_empty_set_of_strangers_is_left_out(run):
    folder, data, outside, _ = run
    metadata = {"sources": json.dumps(["letters", "nothing", "symbols"])}
    rows, source = data["test"][0][:30], np.repeat([0, 2], 15)
    write(folder, "ood", rows, np.full(30, -1), outside, metadata, source=source)
    metrics, _ = evaluate_run(folder, Evaluation(ks=(1,)))
    assert not any(name.startswith("ood/nothing") for name in metrics)
    assert metrics["ood/auroc"] == np.mean([metrics["ood/letters/auroc"], metrics["ood/symbols/auroc"]])
    write(folder, "ood", rows[:0], np.full(0, -1), outside[:0], metadata, source=source[:0])
    assert not any(name.startswith("ood/") for name in evaluate_run(folder, Evaluation(ks=(1,)))[0])


def test_test_images_that_nothing_answers_are_strangers(run):
    folder, data, _, _ = run
    rows, labels, doubt = data["test"]
    labels = np.where(np.arange(40) < 6, 100 + np.arange(40), labels)  # six people of one image
    write(folder, "test", rows, labels, doubt)
    metrics, curves = evaluate_run(folder)
    alone = np.arange(40) < 6
    assert metrics["ood/unanswerable/auroc"] == pytest.approx(roc_auc_score(alone, doubt.astype(np.float32)), abs=1e-12)
    assert metrics["ood/unanswerable/base_rate"] == pytest.approx(6 / 40)
    cosines = rows.astype(np.float32).astype(np.float64) @ rows.astype(np.float32).astype(np.float64).T
    np.fill_diagonal(cosines, -np.inf)
    assert metrics["ood/unanswerable/auroc_cosine"] == pytest.approx(roc_auc_score(alone, -cosines.max(axis=1)))
    assert "ood/unanswerable/auroc" in curves["unit_errors"]
    write(folder, "test", rows, data["test"][1], doubt)
    assert not any(name.startswith("ood/unanswerable") for name in evaluate_run(folder)[0])


def test_answers_along_walks_can_be_trusted_and_certified(run):
    """Queries are frames 5, 10 and 15 of two walks; right is a frame of the same walk within three."""
    folder, data, _, _ = run
    rows, _, doubt = data["test"]
    frame = np.tile(np.arange(20), 2)
    sequence = np.repeat(np.array(["a", "b"], dtype=object), 20)
    role = np.where(frame % 5 == 0, "query", np.where(np.isin(frame % 5, (2, 3)), "database", ""))
    rows = rows.copy()
    rows[5], rows[25] = rows[7], rows[7]  # of the first walk right, of the second wrong
    write(folder, "test", rows, np.repeat([0, 1], 20), doubt)
    facts = ImageFacts(places=Places.in_manifest({"sequence": sequence, "frame": frame, "role": role}))
    metrics, _ = evaluate_run(folder, Evaluation(ks=(1, 2)), facts)
    answers = run_answers(RunFolder(folder), (1, 2), facts)
    asked, searched = np.flatnonzero(role == "query"), np.flatnonzero(role == "database")
    nearest = searched[(rows[asked] @ rows[searched].T).argmax(axis=1)]
    right = (sequence[nearest] == sequence[asked]) & (np.abs(frame[nearest] - frame[asked]) <= 3)
    np.testing.assert_array_equal(answers["test"].right, right)
    assert right[1]
    assert not right[5]
    assert metrics["retrieval/recall_at_1"] == pytest.approx(right.mean())
    np.testing.assert_array_equal(answers["test"].match.indices[:, 0], nearest)
    np.testing.assert_array_equal(answers["test"].label, np.repeat([0, 1], 4))
    assert len(answers["ood/symbols"].own) == 15
    if 0 < right.sum() < len(right):
        expected = roc_auc_score(~right, -(rows[asked] @ rows[searched].T).max(axis=1))
        assert metrics["sparsification/error_auroc_cosine"] == pytest.approx(expected, abs=1e-6)
