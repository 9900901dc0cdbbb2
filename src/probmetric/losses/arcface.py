"""ARCFACE: additive angular margin (Deng et al. 2019), in the form of Scott et al. 2021.

    L = mean_i -log softmax_c(beta g_ic)[y_i],   g_ic = cos(theta_ic + m [c = y_i])

With m = `margin`, cos(theta + m) is computed as cos(theta) cos(m) - sin(theta) sin(m), from the own class's cosine
clipped to +-(1 - 1e-7). m is zero before epoch `margin_from_epoch` (Scott et al. wait 20 to 100 epochs on small
images). Predictions use no margin. The code of the non-isotropic papers clips the cosine at zero, which removes the
gradient of every obtuse angle; this is not reproduced.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probmetric.losses import register
from probmetric.losses.cosine import CosineSoftmax
from probmetric.registry import CountOrZero, Range


@register
class ArcFace(CosineSoftmax):
    """ArcFace with `margin` in radians and a learned inverse temperature."""

    margin_is_on: Tensor

    def __init__(
        self,
        *,
        margin: Annotated[float, Range(low=0, below=torch.pi)] = 0.3,
        margin_from_epoch: CountOrZero = 0,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.margin, self.margin_from_epoch = margin, margin_from_epoch
        self.register_buffer("margin_is_on", torch.zeros(()))
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Switch the margin on from epoch `margin_from_epoch`."""
        self.margin_is_on.fill_(epoch >= self.margin_from_epoch)

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mean cross-entropy over the batch, with the margin on the own class."""
        cosine = self.cosines(embeddings)
        own_cosine = cosine.gather(1, labels[:, None]).clamp(-1 + 1e-7, 1 - 1e-7)
        margin = self.margin * self.margin_is_on
        widened = own_cosine * margin.cos() - (1.0 - own_cosine.square()).sqrt() * margin.sin()
        return F.cross_entropy(self.log_scale.exp() * cosine.scatter(1, labels[:, None], widened), labels)

    def diagnostics(self) -> dict[str, float]:
        """Return the inverse temperature and the margin in force."""
        return super().diagnostics() | {"margin": float(self.margin * self.margin_is_on)}
