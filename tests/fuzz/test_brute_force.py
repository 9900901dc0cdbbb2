"""Random calls against definitions in float64, and losses and uncertainties under random batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from calls import outcome
from scipy.stats import rankdata, spearmanr
from test_calls import searched

from probmetric import metrics, retrieval
from probmetric.losses import create_loss, list_losses
from probmetric.testing.uncertainties import UncertaintyContract
from probmetric.uncertainty import list_uncertainties

CALLS = 400
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def near_ties(cosines: np.ndarray) -> bool:
    """Whether two cosines of a query differ by rounding alone, so that float32 may order them either way."""
    gaps = np.diff(np.sort(cosines, axis=1), axis=1)
    return bool((gaps < 1e-6).any())


def test_retrieval_is_what_float64_brute_force_says() -> None:
    compared = 0
    for number in range(CALLS):
        made = searched(np.random.default_rng([5, number]))
        rows, gallery = (np.asarray(made[name], dtype=np.float64) for name in ("embeddings", "gallery"))
        cosines = rows @ gallery.T
        if near_ties(cosines) or not (made["gallery_labels"] >= 0).any():
            continue
        compared += 1
        values = retrieval.retrieval_per_query(**made)
        for query in range(len(rows)):
            there = (made["gallery_labels"] >= 0) & ~made["ignore"][query]
            there[made["self_index"][query]] &= made["self_index"][query] < 0
            order = np.flatnonzero(there)[np.argsort(-cosines[query, there])]
            right = made["gallery_labels"][order] == made["labels"][query]
            positives = int(right.sum())
            assert values["positives"][query] == positives, number
            for k in made["ks"]:
                assert values[f"recall_at_{k}"][query] == float(right[:k].any()), (number, k)
            precision = np.cumsum(right) / np.arange(1, len(right) + 1)
            at_r = (precision * right)[:positives].sum() / positives if positives else 0.0
            assert values["map_at_r"][query] == pytest.approx(at_r), number
    assert compared > CALLS / 4


def test_metrics_are_what_their_definitions_say() -> None:
    for number in range(CALLS):
        g = np.random.default_rng([6, number])
        first, second = (g.normal(size=g.integers(1, 20)).round(int(g.integers(0, 3))) for _ in range(2))
        pairs = (second[:, None] > first) + 0.5 * (second[:, None] == first)
        assert metrics.auroc(first, second) == pytest.approx(pairs.mean(), abs=1e-12), number
        other = g.normal(size=len(first)).round(1)
        if len(first) > 2 and len(set(rankdata(first))) > 1 and len(set(rankdata(other))) > 1:
            assert metrics.spearman(first, other) == pytest.approx(spearmanr(first, other)[0], abs=1e-9), number
        confidence, correct = g.random(len(first)).round(2), g.random(len(first)) < 0.5
        bins = np.minimum((confidence * 5).astype(int), 4)
        sums = [abs((confidence - correct)[bins == each].sum()) for each in range(5)]
        found = metrics.calibration_error(confidence, correct, bins=5, scheme="equal_width")
        edges = np.isclose(confidence * 5, np.rint(confidence * 5)).any()
        assert edges or found == pytest.approx(sum(sums) / len(first), abs=1e-12), number


def batch(g: np.random.Generator) -> tuple[Any, Any, int, int]:
    """Embeddings and labels of a random size, type, scale and layout, and the numbers of classes and dimensions."""
    count, dim, classes = int(g.integers(1, 12)), int(g.choice([2, 3, 8, 33])), int(g.integers(2, 9))
    scale = float(g.choice([1e-3, 1.0, 30.0, 1e4]))
    rows = torch.from_numpy(scale * g.normal(size=(count, dim))).to(DTYPES[g.integers(len(DTYPES))])
    if g.random() < 0.3:
        rows = rows.T.contiguous().T
    if g.random() < 0.2:
        rows[0] = rows[-1]
    labels = g.integers(0, classes, count)
    given = (torch.from_numpy(labels), labels, labels.tolist(), torch.from_numpy(labels).int())
    return rows, given[g.integers(len(given))], classes, dim


@pytest.mark.parametrize("name", list_losses())
def test_random_batches_have_a_finite_loss_and_gradient(name: str) -> None:
    for number in range(30):
        g = np.random.default_rng([7, number])
        rows, labels, classes, dim = batch(g)
        torch.manual_seed(number)
        loss, rows = create_loss(name, num_classes=classes, dim=dim), rows.detach().requires_grad_()
        kind, value = outcome(loss, rows, labels, generator=torch.Generator().manual_seed(number))
        assert kind == "result", (number, value)
        assert math.isfinite(float(value.detach())), number
        value.backward()
        assert rows.grad is not None, number
        assert torch.isfinite(rows.grad).all(), number


@pytest.mark.parametrize("name", list_uncertainties())
def test_random_images_have_finite_records(name: str) -> None:
    contract = UncertaintyContract()
    contract.name = name
    encoder, uncertainty, arguments = contract.prepared()
    predictor = uncertainty.bind(encoder, **arguments, seed=0)
    for number in range(20):
        g = np.random.default_rng([8, number])
        pixels = float(g.choice([0.0, 1.0, 100.0, 1e5])) * g.normal(size=(int(g.integers(1, 7)), 3, 2, 2))
        images = torch.from_numpy(pixels).to((torch.float32, torch.float64, torch.float16)[g.integers(3)])
        images = torch.where(images.isfinite(), images, torch.ones_like(images))
        kind, record = outcome(predictor, images)
        assert kind == "result", (number, record)
        for values in record.tensors().values():
            assert torch.isfinite(values).all(), number
