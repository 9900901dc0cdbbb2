"""Mined and dataset-weighted pairs against a literal enumeration."""

import itertools

import pytest
import torch

from probmetric.uncertainty import laplace


def entries(targets):
    """Targets that are not zero, by pair."""
    return {(i, j): float(targets[i, j]) for i, j in targets.nonzero().tolist()}


def enumerate_triplets(embeddings, labels, margin, triplets):
    """Every (a, p, n) of the rule, as signed counts per ordered pair."""
    u = embeddings / embeddings.norm(dim=1, keepdim=True)
    counts, total = {}, 0
    for a, p, n in itertools.permutations(range(len(labels)), 3):
        if labels[a] != labels[p] or labels[a] == labels[n]:
            continue
        gap = float((u[a] - u[n]).norm() - (u[a] - u[p]).norm())
        keep = {"all": gap <= margin, "hard": gap <= 0, "semihard": 0 < gap <= margin, "easy": gap > margin}[triplets]
        if keep:
            total += 1
            counts[a, p] = counts.get((a, p), 0) + 1
            counts[a, n] = counts.get((a, n), 0) - 1
    return counts, total


@pytest.mark.parametrize("triplets", ["all", "hard", "semihard", "easy"])
def test_mined_pairs_equal_enumeration(triplets):
    embeddings = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 3])
    targets, count = laplace.mined_pairs(embeddings, labels, margin=0.3, triplets=triplets)
    expected, total = enumerate_triplets(embeddings, labels, 0.3, triplets)
    assert entries(targets) == expected
    assert count == total > 0


def test_mined_pairs_of_one_class_are_none():
    targets, count = laplace.mined_pairs(torch.randn(4, 3), torch.zeros(4, dtype=torch.long), margin=1.0)
    assert torch.equal(targets, torch.zeros(4, 4))
    assert count == 0


def test_dataset_pairs_average_each_type():
    embeddings = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(9) % 3
    targets, count = laplace.dataset_pairs(embeddings, labels, margin=0.9)
    u = embeddings / embeddings.norm(dim=1, keepdim=True)
    expected = {}
    for i, j in itertools.combinations(range(9), 2):
        if labels[i] == labels[j]:
            expected[i, j] = 1 / 9
        elif (u[i] - u[j]).norm() < 0.9:
            expected[i, j] = -1 / 27
    assert entries(targets) == pytest.approx(expected)
    assert count == len(expected)


def test_negative_weight_is_equation_10_up_to_two():
    target = torch.tensor([1.0, -1.0, 2.0, -3.0])
    assert torch.equal(laplace.weigh_negatives(target, 0.5), target)
    assert torch.equal(laplace.weigh_negatives(target, 0.0), torch.tensor([2.0, 0.0, 4.0, 0.0]))
    assert torch.allclose(laplace.weigh_negatives(target, 0.2), torch.tensor([1.6, -0.4, 3.2, -1.2]))
