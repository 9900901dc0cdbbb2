"""How far an image lies from the training images: density of the embeddings, for any frozen encoder.

    knn           u = 1 - cosine with the k-th nearest training image (Sun et al. 2022, "Out-of-distribution detection
                  with deep nearest neighbors")
    mahalanobis   u = smallest squared Mahalanobis distance of z/|z| to the mean of a training class; all classes share
                  the covariance S within classes (Lee et al. 2018; on unit embeddings: Mueller and Hein 2025), which is
                  shrunk towards a sphere, (1 - s) S + s tr(S)/M I

Symbols: z raw embedding (M,), s = `shrinkage`, class means m_c, whitening W with W W^T = S^-1.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from probmetric.registry import Count, Share, When
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Fitting, Posterior, Predictor, Uncertainty, evaluating, polar


@register
class Density(Uncertainty):
    """Distance from the training images."""

    fits, fits_each_image = True, True
    needs = ("references",)

    def __init__(
        self,
        *,
        kind: Literal["knn", "mahalanobis"] = "knn",
        neighbours: Annotated[Count, When(kind="knn")] = 10,
        shrinkage: Annotated[Share, When(kind="mahalanobis")] = 0.1,
    ) -> None:
        self.kind, self.neighbours, self.shrinkage = kind, neighbours, shrinkage

    def fitted(self, fitting: Fitting) -> Posterior:
        """Return `references`: unit training embeddings (N, M), or class means (C, M), whitened, and `whitening`."""
        with evaluating(fitting.encoder):
            batches = [(polar(fitting.encoder(images))[0], y) for images, y in fitting.batches]
        rows = torch.cat([unit for unit, _ in batches])
        if self.kind == "knn":
            return {"references": rows.cpu()}
        labels = torch.unique(torch.cat([y for _, y in batches]).to(rows.device), return_inverse=True)[1]
        axes, means = _whitened_classes(rows.double(), labels, self.shrinkage)
        return {"references": (means @ axes).float().cpu(), "whitening": axes.float().cpu()}

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of raw embeddings (N, M)."""
        mean, _ = polar(rows)
        references = predictor.posterior["references"].to(rows)
        if self.kind == "knn":
            count = min(self.neighbours, len(references))
            doubt = torch.cat([1 - (part @ references.T).topk(count).values[:, -1] for part in mean.split(1024)])
        else:
            doubt = torch.cdist(mean @ predictor.posterior["whitening"].to(rows), references).amin(1).square()
        return DirectionalBatch(mean, doubt, probabilities=predictor.probabilities(rows))


def _whitened_classes(rows: Tensor, labels: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Return W (M, M) and class means (C, M) of rows (N, M) with labels 0..C-1 (N,)."""
    counts = torch.bincount(labels)
    means = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, labels, rows) / counts[:, None]
    within = rows - means[labels]
    return whitening(within.T @ within / len(rows), shrinkage), means


def whitening(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return W (M, M) with W^T S W = I for the shrunk covariance S, the narrowest axes first."""
    width = covariance.trace() / len(covariance)
    shrunk = (1 - shrinkage) * covariance + (shrinkage * width + 1e-12) * torch.eye(len(covariance)).to(covariance)
    variances, axes = torch.linalg.eigh(shrunk)
    return axes / variances.sqrt()
