"""SoftTriple (Qian et al. 2019): K centres per class, softly assigned.

With x and centres w_ck of unit norm,

    S_ic = sum_k softmax_k(x_i . w_ck / gamma) x_i . w_ck
    L    = mean_i -log softmax_c(lambda (S_ic - delta [c = y_i]))[y_i]
         + tau / (C K (K - 1)) sum_c sum_{s < t} sqrt(2 + 1e-5 - 2 w_cs . w_ct)

with lambda = `scale` and delta = `margin`. The defaults are the original paper's; the non-isotropy paper uses K = 10
(CUB, CARS) and K = 2 (SOP). Its released code normalises the wrong axis and multiplies by gamma; it is not offered.

Classes are the last dimension of the (B, K, C) cosines, so that the softmax over a handful of centres runs along
contiguous memory.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from probmetric.losses import register
from probmetric.losses._base import ProxyLoss, cosine_similarities, unit
from probmetric.registry import LearningRate, NotNegative, Positive, StepCount


@register
class SoftTriple(ProxyLoss):
    """SoftTriple with `proxies_per_class` centres (K) per class; row k C + c of `proxies` is centre k of class c."""

    is_classifier = True

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        proxies_per_class: StepCount = 10,
        scale: Positive = 20.0,
        gamma: Positive = 0.1,
        margin: float = 0.01,
        tau: NotNegative = 0.2,
        proxy_lr: LearningRate = 0.01,
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxy_lr=proxy_lr, per_class=proxies_per_class)
        self.proxies_per_class, self.scale, self.gamma = proxies_per_class, scale, gamma
        self.margin, self.tau = margin, tau

    def similarities(self, embeddings: Tensor) -> Tensor:
        """Return the relaxed similarity (B, C) of every embedding to every class."""
        cosine = cosine_similarities(embeddings, self.proxies)
        cosine = cosine.view(len(embeddings), self.proxies_per_class, self.num_classes)
        return ((cosine / self.gamma).softmax(dim=1) * cosine).sum(dim=1)

    def centres(self) -> Tensor:
        """Return centres by class, (C, K, M)."""
        return self.proxies.view(self.proxies_per_class, self.num_classes, self.dim).transpose(0, 1)

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return scaled similarities (B, C), without the margin."""
        return self.scale * self.similarities(embeddings)

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the cross-entropy with margin plus the regulariser that merges superfluous centres."""
        similarity = self.similarities(embeddings)
        margin = torch.zeros_like(similarity).scatter(1, labels[:, None], self.margin)
        return F.cross_entropy(self.scale * (similarity - margin), labels) + self.tau * self.spread()

    def spread(self) -> Tensor:
        """Return the mean distance between a class's centres, halved: sum over s < t divided by C K (K - 1)."""
        count = self.proxies_per_class
        if count == 1:
            return self.proxies.new_zeros(())
        gram = self.centres() @ self.centres().mT
        first, second = torch.triu_indices(count, count, offset=1, device=gram.device)
        squared = gram.diagonal(dim1=1, dim2=2)
        cosine = gram[:, first, second] * _inverse_root(squared[:, first] * squared[:, second])
        return (2.0 + 1e-5 - 2.0 * cosine).clamp_min(1e-12).sqrt().sum() / (self.num_classes * count * (count - 1))

    def assigned_centre(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the softly assigned centre (B, M) of each embedding's own class, of unit norm."""
        centres = unit(self.centres()[labels])
        similarity = (centres @ unit(embeddings)[:, :, None]).squeeze(2)
        return unit(((similarity / self.gamma).softmax(dim=1)[:, None] @ centres).squeeze(1))


def _inverse_root(squared: Tensor) -> Tensor:
    """Return 1/sqrt of `squared`, zero where that is zero."""
    tiny = torch.finfo(squared.dtype).tiny
    return torch.where(squared > tiny, squared.clamp_min(tiny).rsqrt(), 0.0)
