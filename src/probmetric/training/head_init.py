"""Start a linear head from a map fitted to the features h (N, D) of the training images.

    pca         z = U^T h           U: the first M axes of E[h h^T / |h|^2], not centred; if M is at least D, or the
                                    features' rank, z has the cosines of the features
    whitening   z = W (h - mean)    W: the first M axes of the covariance, each divided by its standard deviation
    lda         z = W (h - mean)    W: features whitened within the classes; first the axes along which the class means
                                    differ most, then the others (Fisher 1936; Hastie et al. 2009, section 4.3)

Covariances S are shrunk towards a sphere, (1 - s) S + s tr(S)/D I. Every map is scaled so that the head's weights have
the root mean square of a random head, 1 / sqrt(3 D); learning rates then have the same effect as on a random head. If M
is larger than D, the further rows are zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probmetric.uncertainty.density import whitening

HeadInit = Literal["pca", "whitening", "lda"]
CHUNK = 2**14  # rows
SHRINKAGE = {"whitening": 0.5, "lda": 0.3}


@torch.no_grad()
def initialise_head(head: nn.Linear, features: Tensor, labels: Tensor, kind: HeadInit) -> None:
    """Replace the head's weights by those of a map fitted to the training images.

    Args:
        head: the layer (D -> M).
        features: (N, D).
        labels: classes 0..C-1 (N,).
        kind: which map.
    """
    features, labels = features.cpu(), labels.cpu()
    mean = torch.stack([part.double().sum(dim=0) for part in features.split(CHUNK)]).sum(dim=0) / len(features)
    if kind == "pca":
        axes, mean = _axes(_second_moment(F.normalize(part.double()) for part in features.split(CHUNK))), 0 * mean
    elif kind == "whitening":
        moment = _second_moment(part.double() - mean for part in features.split(CHUNK))
        axes = whitening(moment, SHRINKAGE[kind]).flip(1)
    else:
        axes = _discriminants(features, labels, mean)
    kept = axes[:, : head.out_features].T
    weight = torch.zeros(head.out_features, head.in_features, dtype=torch.float64)
    weight[: len(kept)] = kept
    weight /= kept.square().mean().sqrt() * math.sqrt(3 * head.in_features)
    head.weight.copy_(weight)
    if head.bias is not None:
        head.bias.copy_(-weight @ mean)


def _second_moment(parts: Iterable[Tensor]) -> Tensor:
    """Return E[h h^T] (D, D) of rows that come in parts (B, D), because copies of all rows in float64 would not fit."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for part in parts:
        total, count = total + part.T @ part, count + len(part)
    return total / count


def _axes(matrix: Tensor) -> Tensor:
    """Return eigenvectors as columns (D, D), those of the largest eigenvalues first."""
    return torch.linalg.eigh(matrix).eigenvectors.flip(1)


def _discriminants(features: Tensor, labels: Tensor, mean: Tensor) -> Tensor:
    """Return W (D, D), which whitens features within the classes and sorts axes by the variance between classes."""
    counts = torch.bincount(labels)
    means = torch.zeros(len(counts), features.shape[1], dtype=torch.float64)
    for part, classes in zip(features.split(CHUNK), labels.split(CHUNK), strict=True):
        means.index_add_(0, classes, part.double())
    means /= counts[:, None].clamp(min=1)
    parts = zip(features.split(CHUNK), labels.split(CHUNK), strict=True)
    within = _second_moment(part.double() - means[classes] for part, classes in parts)
    white = whitening(within, SHRINKAGE["lda"]).flip(1)
    return white @ _axes(_second_moment([(means[counts > 0] - mean) @ white]))
