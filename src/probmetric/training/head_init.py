"""What a linear head starts from: a map fitted to the features h (N, D) of the training images.

    pca         z = U^T h           U: the first M axes of E[h h^T / |h|^2], not centred: with M >= D, or the features'
                                    rank, cosines are those of the features
    whitening   z = W (h - mean)    W: the first M axes of the covariance, each divided by its standard deviation
    lda         z = W (h - mean)    W: features whitened within the classes; first the axes along which the class means
                                    differ most, then the others (Fisher 1936; Hastie et al. 2009, section 4.3)

Covariances S are shrunk towards a sphere, (1 - s) S + s tr(S)/D I. Every map is scaled so that the head's weights have
the root mean square of a random head, 1 / sqrt(3 D): learning rates mean what they mean there. Where M is larger than
D, the further rows are zero.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HeadInit = Literal["pca", "whitening", "lda"]
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
    rows = features.double().cpu()
    mean = rows.mean(dim=0)
    if kind == "pca":
        axes, mean = _axes(_second_moment(F.normalize(rows))), torch.zeros_like(mean)
    elif kind == "whitening":
        axes = _whitening(_second_moment(rows - mean), SHRINKAGE[kind])
    else:
        axes = _discriminants(rows, labels.cpu())
    kept = axes[:, : head.out_features].T
    weight = torch.zeros(head.out_features, head.in_features, dtype=torch.float64)
    weight[: len(kept)] = kept
    weight /= kept.square().mean().sqrt() * math.sqrt(3 * head.in_features)
    head.weight.copy_(weight)
    if head.bias is not None:
        head.bias.copy_(-weight @ mean)


def _second_moment(rows: Tensor) -> Tensor:
    return rows.T @ rows / len(rows)


def _axes(matrix: Tensor) -> Tensor:
    """Return eigenvectors as columns (D, D), those of the largest eigenvalues first."""
    return torch.linalg.eigh(matrix).eigenvectors.flip(1)


def _whitening(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return W (D, D) with W^T S W = I for the shrunk covariance S, the widest axes first."""
    width = covariance.trace() / len(covariance)
    shrunk = (1 - shrinkage) * covariance + (shrinkage * width + 1e-12) * torch.eye(len(covariance)).double()
    variances, axes = torch.linalg.eigh(shrunk)
    return (axes / variances.sqrt()).flip(1)


def _discriminants(rows: Tensor, labels: Tensor) -> Tensor:
    """Return W (D, D), which whitens the features within the classes and sorts by what lies between them."""
    sums = torch.zeros(int(labels.max()) + 1, rows.shape[1], dtype=torch.float64).index_add_(0, labels, rows)
    means = sums / torch.bincount(labels)[:, None].clamp(min=1)
    whitening = _whitening(_second_moment(rows - means[labels]), SHRINKAGE["lda"])
    between = (means[labels].unique(dim=0) - rows.mean(dim=0)) @ whitening
    return whitening @ _axes(_second_moment(between))
