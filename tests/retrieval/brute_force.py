"""Retrieval metrics written straight from their definitions: a full ranking for every query, loops, float64."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

GRID = 2.0**26


def cosine_keys(queries, gallery):
    """The documented rule: coordinates are read to 26 binary places, then compared exactly (as integers)."""
    a = np.rint(np.asarray(queries, np.float64) * GRID).astype(np.int64)
    b = np.rint(np.asarray(gallery, np.float64) * GRID).astype(np.int64)
    return [[sum(int(p) * int(q) for p, q in zip(x, y, strict=True)) for y in b] for x in a]


def ranking(keys, positives, own, ties):
    """Relevance flags of the gallery, nearest first; `ties` decides between right and wrong at equal keys."""
    sign = {"pessimistic": 1, "optimistic": -1}[ties]
    answers = [j for j in range(len(keys)) if j != own]
    answers.sort(key=lambda j: (-keys[j], sign * (j in positives)))
    return [j in positives for j in answers]


def average_precision(relevant, cutoff):
    total, hits = 0.0, 0
    for place, right in enumerate(relevant[:cutoff], start=1):
        hits += right
        total += hits / place if right else 0.0
    return total


def metrics_of_ranking(relevant, ks):
    n = sum(relevant)
    first = relevant.index(True) + 1 if n else float("inf")
    result = {f"recall_at_{k}": float(any(relevant[:k])) for k in ks}
    result |= {f"precision_at_{k}": sum(relevant[:k]) / k for k in ks}
    result["mrr"] = 1.0 / first
    result["r_precision"] = sum(relevant[:n]) / n if n else 0.0
    result["map_at_r"] = average_precision(relevant, n) / n if n else 0.0
    for k in (5, 10, 20, 1000):
        result[f"map_at_{k}"] = average_precision(relevant, k) / min(n, k) if n else 0.0
    result["map_at_1000_over_class_size"] = average_precision(relevant, 1000) / (n + 1)
    result["map_at_class_size"] = average_precision(relevant, n + 1) / (n + 1)
    return result


def per_query(keys, positives, own, ks, ties="pessimistic"):
    """List of metric dicts, one for each query."""
    return [metrics_of_ranking(ranking(keys[i], positives[i], own[i], ties), ks) for i in range(len(keys))]


def expected_metrics(keys, positives, own, ks):
    """Mean of the metrics over every order of the tied answers of one query (small inputs only)."""
    answers = [j for j in range(len(keys)) if j != own]
    levels = sorted({keys[j] for j in answers}, reverse=True)
    groups = [[j in positives for j in answers if keys[j] == level] for level in levels]
    orders = itertools.product(*[list(itertools.permutations(group)) for group in groups])
    found = [metrics_of_ranking([flag for group in order for flag in group], ks) for order in orders]
    return {name: float(sum(Fraction(one[name]) for one in found) / len(found)) for name in found[0]}


def label_positives(labels, gallery_labels, own):
    return [
        {j for j in range(len(gallery_labels)) if gallery_labels[j] == labels[i] and j != own[i]}
        for i in range(len(labels))
    ]
