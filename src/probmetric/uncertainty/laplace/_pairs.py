"""Pairs of a batch and their targets y for the contrastive curvature (paper 003, section 3 and appendix B).

`mined_pairs`: triplets (anchor a, positive p, negative n) with Δ = d_an − d_ap, d the Euclidean distance of the
normalised embeddings; which are kept: `probmetric.losses.contrastive`. Each triplet gives the
pairs (a, p) with y = +1 and (a, n) with y = −1, with repetition; repetitions are returned as one pair with the
count as its target, which gives the same sum. This is the rule of the authors' code.

`dataset_pairs`: every pair of the batch, y = 1/|B_pos| for positives and −1/|B_neg| for negatives inside the
margin (equations 23 and 30 with the factor |D²|/|B| of equation 31 applied): each batch estimates the curvature
of the loss averaged over the whole dataset.

`negative_weight` is w_n of equation 10, scaled by two so that w_n = 0.5 (unbiased sampling) changes nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from probmetric.losses.contrastive import Mining as Triplets
from probmetric.losses.contrastive import triplets_of_pairs

Tensor = torch.Tensor
PairSource = Literal["mined", "dataset"]


def mined_pairs(
    embeddings: Tensor, labels: Tensor, *, margin: float, triplets: Triplets = "all"
) -> tuple[Tensor, Tensor, int]:
    """Pairs (P, 2), targets (P,) and the number of triplets mined from embeddings (B, M) and labels (B,)."""
    distance = _distances(embeddings)
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    attracted, repelled = triplets_of_pairs(distance, positive, ~same, margin=margin, mining=triplets)
    counts = attracted - repelled
    pairs = counts.nonzero()
    target = counts[pairs[:, 0], pairs[:, 1]]
    return pairs, target.to(distance.dtype), int(target.clamp_min(0).sum())


def dataset_pairs(embeddings: Tensor, labels: Tensor, *, margin: float) -> tuple[Tensor, Tensor, int]:
    """Pairs (P, 2), targets (P,) and the number of pairs that contribute, from embeddings (B, M), labels (B,)."""
    first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
    positive = labels[first] == labels[second]
    inside = _distances(embeddings)[first, second] < margin
    attracting, repelling = (kind.sum().clamp_min(1).to(embeddings.dtype) for kind in (positive, ~positive))
    target = torch.where(positive, 1 / attracting, -1 / repelling)
    keep = positive | inside
    return torch.stack([first, second], dim=1)[keep], target[keep], int(keep.sum())


def weigh_negatives(target: Tensor, negative_weight: float) -> Tensor:
    """Targets (P,) with positives scaled by 2(1 − w_n) and negatives by 2w_n."""
    return torch.where(target > 0, 2 * (1 - negative_weight) * target, 2 * negative_weight * target)


def _distances(embeddings: Tensor) -> Tensor:
    """Euclidean distances (B, B) between the normalised embeddings (B, M)."""
    units = F.normalize(embeddings, dim=1)
    return torch.cdist(units, units, compute_mode="donot_use_mm_for_euclid_dist")
