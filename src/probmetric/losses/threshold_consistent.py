"""TCM, the threshold-consistent margin (Zhang et al. 2024, "Threshold-Consistent Margin Loss for Open-World Deep Metric
Learning", section 4), on top of another loss.

With S+ the cosines s of the batch's pairs of one class and S- those of its pairs of two classes,

    L = L_base + lambda+ mean{m+ - s : s in S+, s <= m+} + lambda- mean{s - m- : s in S-, s >= m-}

with m+ = `positive_margin` and lambda+ = `positive_weight`. An empty mean is zero. Only hard pairs move: pairs of one
class below m+, and pairs of two classes above m-. One threshold between the margins can then separate the pairs of all
classes; under the base loss each class needs its own.

`base_scale` and `base_margin` are options of the base loss; None keeps its default.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from probmetric.losses import create_loss, register
from probmetric.losses._base import WrappingLoss, options_of, pairs_of, unit
from probmetric.registry import Flag, NotNegative, Positive, Range, When

Cosine = Annotated[float, Range(low=-1, high=1)]


@register
class ThresholdConsistent(WrappingLoss):
    """Threshold-consistent margin on top of the loss `base`."""

    has_proxies: ClassVar[Flag] = {"base": ["proxy_anchor", "proxy_nca_pp", "soft_triple"]}
    is_classifier: ClassVar[Flag] = {"base": ["proxy_nca_pp", "soft_triple", "cosine", "arcface"]}

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        base: Literal[
            "proxy_anchor", "proxy_nca_pp", "soft_triple", "cosine", "arcface", "multi_similarity"
        ] = "proxy_anchor",
        base_scale: Annotated[Positive | None, When(base=("proxy_anchor", "soft_triple", "cosine", "arcface"))] = None,
        base_margin: Annotated[float | None, When(base=("proxy_anchor", "soft_triple", "arcface"))] = None,
        positive_margin: Cosine = 0.9,
        negative_margin: Cosine = 0.5,
        positive_weight: NotNegative = 1.0,
        negative_weight: NotNegative = 1.0,
    ) -> None:
        options = options_of(base, {"scale": base_scale, "margin": base_margin})
        super().__init__(create_loss(base, num_classes=num_classes, dim=dim, **options))
        self.positive_margin, self.negative_margin = positive_margin, negative_margin
        self.positive_weight, self.negative_weight = positive_weight, negative_weight

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the base loss plus the mean distances of hard pairs from the margins."""
        directions = unit(embeddings)
        cosine = directions @ directions.T
        positive, negative = pairs_of(labels)
        attraction = _mean_of(self.positive_margin - cosine, positive)
        repulsion = _mean_of(cosine - self.negative_margin, negative)
        value: Tensor = self.inner(embeddings, labels, generator=generator)
        return value + self.positive_weight * attraction + self.negative_weight * repulsion

    def class_proxies(self) -> tuple[Tensor, Tensor] | None:
        """Return proxies of the base loss."""
        return self.inner.class_proxies()


def _mean_of(excess: Tensor, pairs: Tensor) -> Tensor:
    """Return the mean of `excess` (B, B) over the `pairs` (B, B) where it is not negative; 0 if there are none."""
    hard = pairs & (excess.detach() >= 0)
    return (excess * hard).sum() / hard.sum().clamp_min(1)
