"""How many mined triplets (anchor a, positive p, negative n) each pair of a batch belongs to.

With the violation D = d_an - d_ap, d any distance, and margin m, mining keeps

    all: D <= m     hard: D <= min(0, m)     semihard: 0 < D <= m     easy: D > m

The triplets are counted by sorting each anchor's distances (B^2 log B), not listed (B^3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Mining = Literal["all", "hard", "semihard", "easy"]


def triplets_of_pairs(
    distance: Tensor, positive: Tensor, negative: Tensor, *, margin: float, mining: Mining
) -> tuple[Tensor, Tensor]:
    """Kept triplets of every positive pair (a, p) and of every negative pair (a, n), int64 (B, B) each.

    Args:
        distance: d (B, B), anchors in rows.
        positive: whether a pair counts as positive (B, B).
        negative: whether a pair counts as negative (B, B).
        margin: m.
        mining: which triplets are kept.
    """
    low, high = _kept_violations(margin, mining)
    of_positives = _ranked(distance, negative)
    of_negatives = _ranked(distance, positive)
    negatives_of_pair = of_positives(high, True) - of_positives(low, True)
    positives_of_pair = of_negatives(-low, False) - of_negatives(-high, False)
    return positive * negatives_of_pair, negative * positives_of_pair


def _kept_violations(margin: float, mining: Mining) -> tuple[float, float]:
    """Triplets are kept where low < D <= high."""
    infinity = float("inf")
    return {
        "all": (-infinity, margin),
        "hard": (-infinity, min(0.0, margin)),
        "semihard": (0.0, margin),
        "easy": (margin, infinity),
    }[mining]


def _ranked(distance: Tensor, mask: Tensor) -> Callable[[float, bool], Tensor]:
    """Counts (B, B), per anchor (row), of masked distances below distance + bound, `inclusive` of equal ones."""
    ordered = distance.masked_fill(~mask, float("inf")).sort(dim=1).values
    total = mask.sum(dim=1, keepdim=True)

    def count(bound: float, inclusive: bool) -> Tensor:
        if math.isinf(bound):
            return total if bound > 0 else torch.zeros_like(total)
        return torch.minimum(torch.searchsorted(ordered, distance + bound, right=inclusive), total)

    return count
