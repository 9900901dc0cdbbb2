"""Equality with other libraries where the definitions coincide (where not: docs/reference/evaluation.md)."""

import numpy as np
import pytest
import torch

from probmetric.retrieval import retrieval_metrics, retrieval_per_query


@pytest.fixture(scope="module")
def space():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 12, 200)
    rows = generator.normal(size=(12, 16))[labels] + 1.2 * generator.normal(size=(200, 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def test_pytorch_metric_learning(space):
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    rows, labels = space
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_average_precision")
    peer = AccuracyCalculator(include=names, k=len(rows) - 1, device=torch.device("cpu"))
    theirs = peer.get_accuracy(torch.from_numpy(rows), torch.from_numpy(labels))
    ours = retrieval_metrics(rows, labels)
    assert ours["recall_at_1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert ours["r_precision"] == pytest.approx(theirs["r_precision"], abs=1e-6)
    assert ours["map_at_r"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)
    assert ours["map_at_1000"] == pytest.approx(theirs["mean_average_precision"], abs=1e-6)


def test_scikit_learn_average_precision(space):
    from sklearn.metrics import average_precision_score

    rows, labels = space
    cosines = rows.astype(np.float64) @ rows.T.astype(np.float64)
    found = retrieval_per_query(rows, labels)
    for i in range(len(rows)):
        others = np.arange(len(rows)) != i
        expected = average_precision_score(labels[others] == labels[i], cosines[i, others])
        assert found["map_at_1000"][i] == pytest.approx(expected, abs=1e-9)


def test_torchmetrics_on_shifted_scores(space):
    from torchmetrics.functional.retrieval import (
        retrieval_average_precision,
        retrieval_hit_rate,
        retrieval_precision,
        retrieval_r_precision,
        retrieval_reciprocal_rank,
    )

    rows, labels = space
    cosines = torch.from_numpy(rows.astype(np.float64) @ rows.T.astype(np.float64))
    found = retrieval_per_query(rows, labels, ks=(4,))
    for i in range(0, len(rows), 7):
        others = torch.arange(len(rows)) != i
        score, target = cosines[i][others] + 2, torch.from_numpy(labels)[others] == labels[i]
        assert found["recall_at_4"][i] == float(retrieval_hit_rate(score, target, top_k=4))
        assert found["precision_at_4"][i] == float(retrieval_precision(score, target, top_k=4))
        assert found["mrr"][i] == pytest.approx(float(retrieval_reciprocal_rank(score, target)), abs=1e-6)
        assert found["r_precision"][i] == pytest.approx(float(retrieval_r_precision(score, target)), abs=1e-6)
        assert found["map_at_1000"][i] == pytest.approx(float(retrieval_average_precision(score, target)), abs=1e-6)
